"""Plays the operations of a scenario on a manager, and does with real memory what it says.

The rules are those of the contract: copies and clearings are taken after every operation, KV of
[committed, n) is written before `commit(n)`, or at once where there is none. Nothing is judged but
what no worker could carry out (an answer that is no number, a table too short for its request);
whether the contents are right shows in the attention.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from kvassay.harness.calling import REFUSED, Calling
from kvassay.harness.checker import Effect
from kvassay.harness.contract import CacheKey, Capability, Declaration, Outcome, Publish
from kvassay.harness.pairs.evidence import Met
from kvassay.harness.pairs.form import Form
from kvassay.harness.pairs.history import History
from kvassay.harness.pairs.legality import Legality, wanted
from kvassay.harness.pairs.pool import Garbage, NoPlace, Pool
from kvassay.harness.scenario import (
    Accept,
    Admit,
    Append,
    Begin,
    Commit,
    Drain,
    Evict,
    Fork,
    Operation,
    Peek,
    Query,
    Quiesce,
    Release,
    Reserve,
    Reset,
    Truncate,
)
from kvassay.harness.session import TIME_LIMIT, time_limit
from kvassay.harness.violation import Anomaly, Crash, Hang, Violation
from kvassay.reference.model import CacheModel, Live

Copies = list[tuple[int, int]]
"""Source and destination."""
Due = tuple[Met, int]
"""Something that counts as met once the position has been attended to."""


class Worker(Calling):
    """One manager, the memory behind its tables, and the live requests with their history."""

    def __init__(
        self, manager: Any, declaration: Declaration, form: Form, garbage: Garbage
    ) -> None:
        self.manager = manager
        self.declaration = declaration
        self.model = CacheModel(manager.num_blocks, manager.block_size, declaration)
        self.history = History(self.model.book, form)
        attends = declaration.has(Capability.ATTEND)
        rows = manager.num_blocks + (len(declaration.reserved_ids) if attends else 0)
        self.pool = Pool(form, rows, manager.block_size, garbage, numbered=attends)
        self.index = -1
        self.operation: Operation | None = None
        self.written: dict[str, int] = {}
        """First position that the last operation has written, by request."""
        self.due: dict[str, list[Due]] = {}
        self.met: Counter[Met] = Counter()
        """What was met with no position to attend to."""
        has = declaration.has
        self.commits = has(Capability.COMMIT) and declaration.publish is not Publish.RESERVATION
        self._commit_calls = has(Capability.COMMIT)
        late = declaration.publish is Publish.RELEASE
        self._withholds = late or has(Capability.DRAFTS)
        """Whether what has slots, or is written, may be known to nobody else."""
        self._copies, self._zeroes = has(Capability.COPIES), has(Capability.ZEROES)
        self._legality = Legality(declaration, self.model.live, self.commits)
        self._forked: set[str] = set()
        """Requests that share all they have with another, and have not written since."""
        self._spaces: dict[tuple[int, ...], set[object]] = {}
        self._steps = self._all_steps()

    def _all_steps(self) -> dict[type, Callable[[Any], Effect]]:
        manager = self.manager
        return {
            Admit: lambda op: self._look_up(op, manager.admit, len(op.key.tokens)),
            Begin: lambda op: self._look_up(op, manager.begin, 0),
            Reserve: self._reserve,
            Commit: self._commit,
            Append: self._append,
            Accept: self._accept,
            Fork: self._fork,
            Truncate: self._truncate,
            Release: lambda op: self._release(op.request, op.outcome),
            Evict: lambda op: self._plain(manager.evict, op.num_blocks),
            Reset: self._reset,
            Drain: lambda op: self._plain(manager.drain),
            Query: lambda op: self._plain(manager.can_admit, op.key),
            Peek: lambda op: self._plain(manager.peek, op.key),
            Quiesce: self._quiesce,
        }

    def has(self, *capabilities: Capability) -> bool:
        """Whether the manager declares all of these."""
        return self.declaration.has(*capabilities)

    def step(self, operation: Operation) -> Effect:
        """Do one operation; raises `Crash`, or `Violation` for what cannot be carried out."""
        self.index += 1
        self.operation = operation
        self.model.now += 1
        self.written.clear()
        if not self._legality.allows(operation):
            return Effect.SKIPPED
        try:
            with time_limit(TIME_LIMIT):
                return self._steps[type(operation)](operation)
        except (Violation, Crash) as verdict:
            raise self._placed(verdict) from verdict.__cause__
        except Hang as hang:
            raise self._placed(Crash(str(hang), hangs=True)) from None
        except (Exception, SystemExit, GeneratorExit) as error:
            what = f"an answer that cannot be used: {type(error).__name__}: {error}"
            raise self._placed(Crash(what)) from error

    def _placed(self, verdict: Violation | Crash) -> Violation | Crash:
        verdict.index, verdict.operation = self.index, self.operation
        verdict.tables = {name: list(live.table) for name, live in self.model.live.items()}
        return verdict

    # ------------------------------------------------------------------------------- operations

    def _look_up(
        self, op: Admit | Begin, call: Callable[[str, CacheKey], int], reserves: int
    ) -> Effect:
        model, live = self.model, Live(op.key, self.model.tags_of(op.key))
        hit = self._call(call, op.request, op.key)
        if hit is REFUSED:
            return self._refused()
        if type(hit) is not int or not 0 <= hit <= len(live.tags):
            expected = f"a hit of 0 to {len(live.tags)} tokens"
            self._fail("P3", Anomaly.NOT_AN_ANSWER, expected, repr(hit))
        live.hit, live.length = hit, reserves or hit
        self._take(op.request, live, hit)
        self._note_look_up(op.request, live)
        model.live[op.request] = live
        live.committed = hit
        live.published = hit - hit % model.block_size
        model.confirm(live)
        if not self.commits and reserves:
            self._write(op.request, live, live.length)
            self._publish(live)
        return Effect.DONE

    def _reserve(self, op: Reserve) -> Effect:
        live = self.model.live[op.request]
        if self._call(self.manager.reserve, op.request, op.num_tokens) is REFUSED:
            return self._refused()
        live.length += op.num_tokens
        self._grown(op.request, live)
        return Effect.DONE

    def _append(self, op: Append) -> Effect:
        live = self.model.live[op.request]
        arguments = {"drafts": op.drafts} if op.drafts else {}
        answer = self._call(self.manager.append, op.request, list(op.tokens), **arguments)
        if answer is REFUSED:
            return self._refused()
        self._note_append(op.request, live)
        live.tags += self.model.book.chain(live.tags[-1], op.tokens)
        live.length += len(op.tokens)
        live.drafts = op.drafts
        self._grown(op.request, live)
        return Effect.DONE

    def _commit(self, op: Commit) -> Effect:
        live = self.model.live[op.request]
        self._write(op.request, live, wanted(op, live))
        self._take(op.request, live)
        self._publish(live)
        return Effect.DONE

    def _accept(self, op: Accept) -> Effect:
        live = self.model.live[op.request]
        self._call_plain(self.manager.accept, op.request, op.num_tokens)
        rejected, live.drafts = live.drafts - op.num_tokens, 0
        self._cut(op.request, live, live.length - rejected)
        self._publish(live)
        if rejected:
            self._owe(op.request, Met.REJECTED, live.length - 1)
        return Effect.DONE

    def _fork(self, op: Fork) -> Effect:
        model, parent = self.model, self.model.live[op.parent]
        if self._call(self.manager.fork, op.parent, list(op.children)) is REFUSED:
            return self._refused()
        copies = self._taken()
        fresh = self._enter(op.parent, parent, 0, copies)
        for child in op.children:
            live = Live(parent.key, list(parent.tags))
            live.length, live.committed = parent.length, parent.committed
            live.published = parent.published
            fresh += self._enter(child, live, 0, copies)
            model.live[child] = live
        self._carry_out(fresh, copies)
        self._forked |= {op.parent, *op.children}
        return Effect.DONE

    def _truncate(self, op: Truncate) -> Effect:
        live = self.model.live[op.request]
        self._call_plain(self.manager.truncate, op.request, op.num_tokens)
        live.drafts = max(0, live.drafts - (live.length - op.num_tokens))
        self._cut(op.request, live, op.num_tokens)
        return Effect.DONE

    def _release(self, name: str, outcome: Outcome) -> Effect:
        self._call_plain(self.manager.release, name, outcome)
        self.model.leave(name, outcome)
        self.due.pop(name, None)
        self._forked.discard(name)
        self._carry_out(())
        return Effect.DONE

    def _reset(self, op: Reset) -> Effect:
        try:
            self.manager.reset()
        except ValueError as error:
            self._fail("A5", Anomaly.LEAK, "a reset: no request is live", f"ValueError: {error}")
        self.model.reset()
        return Effect.DONE

    def _quiesce(self, op: Quiesce) -> Effect:
        """Every request leaves; whether blocks were lost on the way is the checker's business."""
        for name in list(self.model.live):
            self._release(name, Outcome.FINISHED)
        return Effect.DONE

    def _plain(self, method: Callable[..., Any], *arguments: Any) -> Effect:
        """An operation that hands out nothing."""
        self._call_plain(method, *arguments)
        self._carry_out(())
        return Effect.DONE

    def _refused(self) -> Effect:
        self._carry_out(())
        self.met[Met.REFUSED] += bool(self.model.live)
        return Effect.REFUSED

    # ---------------------------------------------------------------------------- tables, memory

    def table(self, name: str) -> list[int]:
        """A request's block table as the manager shows it now, checked for what makes it usable."""
        length = self.model.live[name].length
        return self._read_table(name, length)

    def _read_table(self, name: str, length: int) -> list[int]:
        table = list(self._call_plain(self.manager.block_table, name))
        needed = self.model.blocks_for(length)
        usable = all(type(block) is int and block >= 0 for block in table)
        if len(table) < needed or not usable or {*table} & {*self.declaration.reserved_ids}:
            expected = f"{needed} blocks that hold KV, for {length} tokens of {name}"
            self._fail("A7", Anomaly.TABLE, expected, f"{table}")
        try:
            self.pool.places(table)
        except NoPlace:
            most = f"at most {self.model.num_blocks} distinct blocks"
            self._fail("A1", Anomaly.TOO_MANY_BLOCKS, most, f"one more in {table} of {name}")
        return table

    def _take(self, name: str, live: Live, hit: int = 0) -> None:
        """Enter the table after an operation on a request, and carry out what it asks for."""
        copies = self._taken()
        self._carry_out(self._enter(name, live, hit, copies), copies)

    def _taken(self) -> Copies:
        return list(self._call_plain(self.manager.take_copies)) if self._copies else []

    def _carry_out(self, fresh: Sequence[int], copies: Copies | None = None) -> None:
        """Clear and copy, as the manager asks for it after every operation."""
        zeroes = self._call_plain(self.manager.take_zeroes) if self._zeroes else ()
        self.pool.hand_out(fresh, zeroes, self._taken() if copies is None else copies)

    def _enter(self, name: str, live: Live, hit: int, copies: Copies) -> list[int]:
        """Note a request's table and what of it was handed out as new, which is returned."""
        blocks, old = self.model.blocks, live.table
        copied = {destination for _, destination in copies}
        table, fresh = self._read_table(name, live.length), []
        for index, block in enumerate(table):
            start = index * self.model.block_size
            if block in copied:
                self._owe(name, Met.COPIED, start)
            if index < len(old) and old[index] == block:
                continue
            seen_before = block in blocks.tenancy
            if block in copied or start >= max(hit, live.committed) or not seen_before:
                fresh.append(block)
                if seen_before:
                    self._owe(name, Met.REUSED, start)
                if block in blocks.published:
                    self._owe(name, Met.EVICTED, start)
        self.model.take_table(live, table, fresh)
        return fresh

    def _grown(self, name: str, live: Live) -> None:
        """A request has more slots."""
        self._take(name, live)
        if not self.commits:
            self._write(name, live, live.length)
            self._publish(live)

    def _cut(self, name: str, live: Live, num_tokens: int) -> None:
        """A request keeps its first tokens only."""
        if num_tokens < live.length:
            self.model.truncate(live, num_tokens)
            self.due[name] = [due for due in self.due.get(name, []) if due[1] < num_tokens]
        self._take(name, live)

    def _write(self, name: str, live: Live, stop: int) -> None:
        """Write KV up to `stop`, and say so where that is a call."""
        start = live.committed
        if stop <= start:
            return
        self.pool.write(live.table, live.tags, start, stop, self.history)
        if self._commit_calls:
            self._call_plain(self.manager.commit, name, stop)
        live.committed = stop
        self.written[name] = start

    def _publish(self, live: Live) -> None:
        if self.declaration.publish is not Publish.RELEASE:
            self.model.publish(live)

    # --------------------------------------------------------------------------------- evidence

    def _owe(self, name: str, state: Met, position: int) -> None:
        self.due.setdefault(name, []).append((state, position))

    def _note_look_up(self, name: str, live: Live) -> None:
        last = max(0, live.hit - 1)
        if live.hit:
            self._owe(name, Met.HIT, last)
        if self._is_near(live):
            self._owe(name, Met.NEAR_KEY, last)
        if self._is_stale(live):
            self._owe(name, Met.STALE_KEY, last)
        if self._is_unwritten(live):
            self._owe(name, Met.UNWRITTEN_KEY, last)
        if self._withholds and self._is_unpublished(live):
            self._owe(name, Met.UNPUBLISHED_KEY, last)

    def _is_near(self, live: Live) -> bool:
        """Whether another key agrees with it in its first tokens, or in a part of its prefix."""
        model, key = self.model, live.key
        space = (key.salt, key.adapter, key.spans, model.epoch)
        spaces = self._spaces.setdefault(tuple(key.tokens[: model.unit]), set())
        others = spaces - {space}
        spaces.add(space)
        return bool(others) or 0 < live.hit < model.law(len(live.tags), len(live.tags))

    def _is_stale(self, live: Live) -> bool:
        """Whether what it does not hit was published in blocks that were recycled since."""
        publications, beyond = self.model.publications, live.hit + self.model.unit
        if beyond > len(live.tags):
            return False
        entry = publications.entries.get(live.tags[beyond - 1])
        return entry is not None and not publications.intact(entry, self.model.blocks.tenancy)

    def _is_unwritten(self, live: Live) -> bool:
        """Whether somebody else has slots for what is looked up, and has not written it."""
        return any(
            other.committed < min(other.length, len(live.tags) - 1)
            and other.tags[other.committed] == live.tags[other.committed]
            for other in self.model.live.values()
        )

    def _is_unpublished(self, live: Live) -> bool:
        """Whether somebody has, or had, slots for what is looked up, and has not published it."""
        model, limit = self.model, len(live.tags) - self.declaration.reserve
        reach = model.publications.published(live.tags, limit)
        return model.held_back(live.tags[:limit], reach)

    def _note_append(self, name: str, live: Live) -> None:
        if name in self._forked:
            self._owe(name, Met.FORKED_WRITE, live.length)
            self._forked.discard(name)
        if live.cut is not None:
            self._owe(name, Met.REWRITTEN, live.length)
            live.cut = None
