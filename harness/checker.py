"""Runs operations on an implementation, the model and the shadow device, and compares them.

After every operation the tables of all live requests are read again and every readable slot is
compared with the tag that belongs there. Every check names the invariant that it enforces and
raises a `Violation`; what the run has met is counted in `evidence`, since a check that never
looked is not a check that passed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from kvassay.harness.contract import (
    CacheKey,
    Capability,
    Counters,
    Declaration,
    Dedup,
    Outcome,
    Publish,
    Refusal,
    is_out_of_blocks,
)
from kvassay.harness.device import ShadowDevice
from kvassay.harness.diagnosis import Diagnosis
from kvassay.harness.evidence import Seen
from kvassay.harness.mirror import Mirror
from kvassay.harness.quiescence import quiesce
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
from kvassay.harness.violation import Anomaly, Crash, Violation
from kvassay.reference.model import CacheModel, Live
from kvassay.reference.tags import spans_fit


class Effect(StrEnum):
    """What became of an operation."""

    DONE = "done"
    REFUSED = "refused"
    SKIPPED = "skipped"


REFUSED = object()
"""What `_call` returns when the implementation is out of blocks."""


class Checker:
    """One implementation under test together with the model and the device."""

    def __init__(self, manager: Any, declaration: Declaration) -> None:
        self.manager = manager
        self.declaration = declaration
        self.model = CacheModel(manager.num_blocks, manager.block_size, declaration)
        self.device = ShadowDevice(manager.block_size)
        self.diagnosis = Diagnosis(self.model, self.device)
        self.evidence: Counter[Seen] = Counter()
        self.index = -1
        self.operation: Operation | None = None
        has = declaration.has
        self.commits = has(Capability.COMMIT) and declaration.publish is not Publish.RESERVATION
        self._commit_calls = has(Capability.COMMIT)
        self._copies = has(Capability.COPIES)
        self._counters = has(Capability.COUNTERS)
        self._refcounts = has(Capability.REFCOUNTS)
        self._mirror = Mirror(self.model) if has(Capability.EVENTS) else None
        self._promise: CacheKey | None = None
        self._ids: set[int] = set()
        self._spaces: dict[tuple[int, ...], set[object]] = {}
        self._steps: dict[type, Callable[[Any], Effect]] = {
            Admit: self._admit,
            Begin: self._begin,
            Reserve: self._reserve,
            Commit: self._commit,
            Append: self._append,
            Accept: self._accept,
            Fork: self._fork,
            Truncate: self._truncate,
            Release: self._release,
            Evict: self._evict,
            Reset: self._reset,
            Drain: self._drain,
            Query: self._query,
            Peek: self._peek,
            Quiesce: self._quiesce,
        }
        if self._mirror is not None:
            self._mirror.take(self._call(manager.take_events))

    # ------------------------------------------------------------------------------------ steps

    def step(self, operation: Operation) -> Effect:
        """Run one operation; raises `Violation` or `Crash`, which name this operation."""
        self.index += 1
        self.operation = operation
        self.model.now += 1
        promise, self._promise = self._promise, None
        try:
            effect = self._steps[type(operation)](operation)
            if effect is not Effect.SKIPPED:
                self._look()
            else:
                self._promise = promise
            if promise is not None:
                self._kept(promise, operation, effect)
        except (Violation, Crash) as verdict:
            verdict.index, verdict.operation = self.index, operation
            verdict.tables = {name: list(live.table) for name, live in self.model.live.items()}
            raise
        return effect

    def step_within(self, operation: Operation) -> Effect:
        """Run an operation as part of a composite one: same number, all checks."""
        self.model.now += 1
        effect = self._steps[type(operation)](operation)
        if effect is not Effect.SKIPPED:
            self._look()
        return effect

    def has(self, *capabilities: Capability) -> bool:
        """Whether the implementation declares all of these."""
        return self.declaration.has(*capabilities)

    def met(self) -> Counter[Seen]:
        """What this run has met so far."""
        met = Counter(self.evidence)
        met[Seen.DUPLICATE] = self.model.publications.duplicates
        met[Seen.POLICY_TESTED] = self.model.watch.compared
        return met

    def _admissible(self, request: str, key: CacheKey) -> bool:
        return (
            request not in self.model.live
            and len(key.tokens) > 0
            and (key.salt is None or self.has(Capability.SALT))
            and (key.adapter is None or self.has(Capability.ADAPTER))
            and (not key.spans or self.has(Capability.SPANS))
            and (not key.spans or spans_fit(key.spans, len(key.tokens)))
        )

    def _admit(self, op: Admit) -> Effect:
        if not self._admissible(op.request, op.key):
            return Effect.SKIPPED
        return self._look_up(op.request, op.key, self.manager.admit, len(op.key.tokens))

    def _begin(self, op: Begin) -> Effect:
        if not self.has(Capability.CHUNKED) or not self._admissible(op.request, op.key):
            return Effect.SKIPPED
        return self._look_up(op.request, op.key, self.manager.begin, 0)

    def _look_up(
        self, name: str, key: CacheKey, call: Callable[[str, CacheKey], int], reserves: int
    ) -> Effect:
        """`admit` (all of the prompt gets slots) and `begin` (only the hit has some)."""
        model = self.model
        live = Live(key, model.tags_of(key))
        length = len(live.tags)
        must = model.must_hit(live.tags)
        need = model.blocks_for(reserves) - must // model.block_size if reserves else 0
        may_refuse = not model.admissible() or not model.must_succeed(
            model.blocks_for(reserves), length, admission=True
        )
        mirrored = self._mirror.look_up(key) if self._mirror is not None else None
        self._note_unwritten(live)
        hit = self._call(call, name, key)
        if hit is REFUSED:
            return self._refused(model.blocks_for(reserves), may_refuse, admission=True)
        self._check_hit_number(hit, length)
        live.hit = hit
        live.length = reserves or hit
        pressed = model.pressed_by(need, admission=True)
        if not pressed:
            self._check_missed(live.tags, hit, must)
        self._take(name, live, hit=hit, pressed=pressed)
        self._check_mirror(key, mirrored, hit, pressed)
        model.live[name] = live
        live.committed = live.published = hit
        live.published -= hit % model.block_size
        self._note_key(live)
        model.confirm(live)
        model.reserve_stamp(live)
        self._note_hit(live)
        if not self.commits and reserves:
            self._write(live, length)
        return Effect.DONE

    def _reserve(self, op: Reserve) -> Effect:
        live = self.model.live.get(op.request)
        if live is None or not live.pending or not 0 < op.num_tokens <= self._left(live):
            return Effect.SKIPPED
        model, length = self.model, live.length + op.num_tokens
        need = model.append_need(live, op.num_tokens)
        may_refuse = not model.must_succeed(need, length, admission=True)
        answer = self._call(self.manager.reserve, op.request, op.num_tokens)
        if answer is REFUSED:
            return self._refused(need, may_refuse, admission=True)
        if answer != length:
            self._fail("A7", Anomaly.NOT_AN_ANSWER, f"{length} tokens with slots", repr(answer))
        live.length = length
        self._take(op.request, live, pressed=model.pressed_by(need, admission=True))
        model.reserve_stamp(live)
        if not self.commits:
            self._write(live, length)
        return Effect.DONE

    @staticmethod
    def _left(live: Live) -> int:
        return len(live.tags) - live.length

    def _append(self, op: Append) -> Effect:
        live = self.model.live.get(op.request)
        count = len(op.tokens)
        if live is None or live.pending or live.drafts or not count:
            return Effect.SKIPPED
        if not 0 <= op.drafts <= count or (op.drafts and not self.has(Capability.DRAFTS)):
            return Effect.SKIPPED
        model = self.model
        need = model.append_need(live, count)
        may_refuse = not model.must_succeed(need, live.length + count)
        arguments = {"drafts": op.drafts} if op.drafts else {}
        answer = self._call(self.manager.append, op.request, list(op.tokens), **arguments)
        if answer is REFUSED:
            return self._refused(need, may_refuse)
        self._note_write(live, count)
        live.tags += model.book.chain(live.tags[-1], op.tokens)
        live.length += count
        live.drafts = op.drafts
        self._take(op.request, live, pressed=model.pressed_by(need))
        model.reserve_stamp(live)
        if not self.commits:
            self._write(live, live.length)
        return Effect.DONE

    def _commit(self, op: Commit) -> Effect:
        live = self.model.live.get(op.request)
        if not self.commits or live is None:
            return Effect.SKIPPED
        num_tokens = live.length if op.num_tokens is None else op.num_tokens
        if not live.committed < num_tokens <= live.length:
            return Effect.SKIPPED
        self._write_device(live, num_tokens)
        self._call_plain(self.manager.commit, op.request, num_tokens)
        live.committed = num_tokens
        self._take(op.request, live)
        self._publish_written(live)
        return Effect.DONE

    def _accept(self, op: Accept) -> Effect:
        live = self.model.live.get(op.request)
        if live is None or not live.drafts or not 0 <= op.num_tokens <= live.drafts:
            return Effect.SKIPPED
        self._call_plain(self.manager.accept, op.request, op.num_tokens)
        rejected = live.drafts - op.num_tokens
        live.drafts = 0
        if rejected:
            self.model.truncate(live, live.length - rejected)
            self.evidence[Seen.DRAFTS_REJECTED] += 1
        self._take(op.request, live)
        self._publish_written(live)
        return Effect.DONE

    def _fork(self, op: Fork) -> Effect:
        model, parent = self.model, self.model.live.get(op.parent)
        fresh_names = len(set(op.children)) == len(op.children) > 0
        if not self.has(Capability.FORK) or parent is None or not fresh_names:
            return Effect.SKIPPED
        if any(child in model.live for child in op.children):
            return Effect.SKIPPED
        if parent.pending or parent.drafts or parent.committed < parent.length:
            return Effect.SKIPPED
        limit = self.declaration.max_requests
        may_refuse = limit is not None and len(model.live) + len(op.children) > limit
        need = len(op.children) * len(parent.table)
        may_refuse = may_refuse or not model.must_succeed(need, parent.length)
        answer = self._call(self.manager.fork, op.parent, list(op.children))
        if answer is REFUSED:
            return self._refused(need, may_refuse)
        self._adopt(op.parent, parent, op.children)
        self.evidence[Seen.FORK] += 1
        return Effect.DONE

    def _adopt(self, name: str, parent: Live, children: Sequence[str]) -> None:
        """Enter the children of a fork; blocks that are copies were handed out anew."""
        model = self.model
        copies = self._take_copies()
        copied = {destination for _, destination in copies}
        tables = {family: self._read_table(family, parent.length) for family in (name, *children)}
        fresh = {family: [b for b in table if b in copied] for family, table in tables.items()}
        handed_out = [block for blocks in fresh.values() for block in blocks]
        self._check_fresh(name, handed_out, ())
        self._check_copies(parent, copies, handed_out)
        if len(handed_out) > model.surely_free():
            self._may_evict(())
        self._note_victims(handed_out, ())
        self.device.begin_tenancies(handed_out, copies)
        for child in children:
            live = Live(parent.key, list(parent.tags))
            live.length, live.committed = parent.length, parent.committed
            live.published, live.cut = parent.published, parent.cut
            model.take_table(live, tables[child], fresh[child])
            model.live[child] = live
        model.take_table(parent, tables[name], fresh[name])

    def _truncate(self, op: Truncate) -> Effect:
        live = self.model.live.get(op.request)
        if not self.has(Capability.TRUNCATE) or live is None or live.pending:
            return Effect.SKIPPED
        if not 1 <= op.num_tokens <= live.length:
            return Effect.SKIPPED
        self._call_plain(self.manager.truncate, op.request, op.num_tokens)
        if op.num_tokens < live.length:
            live.drafts = max(0, live.drafts - (live.length - op.num_tokens))
            self.model.truncate(live, op.num_tokens)
            self.evidence[Seen.TRUNCATED] += 1
        self._take(op.request, live)
        return Effect.DONE

    def _release(self, op: Release) -> Effect:
        live = self.model.live.get(op.request)
        if live is None:
            return Effect.SKIPPED
        self._call_plain(self.manager.release, op.request, op.outcome)
        self._note_release(live, op.outcome)
        self.model.leave(op.request, op.outcome)
        self._discard_copies()
        return Effect.DONE

    def _evict(self, op: Evict) -> Effect:
        if not self.has(Capability.EVICT) or op.num_blocks < 1:
            return Effect.SKIPPED
        model = self.model
        before = self.manager.counters() if self._counters else None
        surely = model.surely_evictable()
        self.check_cached(surely)
        freed = self._call_plain(self.manager.evict, op.num_blocks)
        self._check_evicted(op.num_blocks, freed, surely, before)
        if freed:
            model.blocks.evicted += freed
            moment = model.watch.open(model.now, (), model.publications.pressure)
            moment.allowance = freed
            self.evidence[Seen.EVICTED_ON_DEMAND] += 1
        model.press()
        self._discard_copies()
        return Effect.DONE

    def _reset(self, op: Reset) -> Effect:
        if not self.has(Capability.RESET) or self.model.live:
            return Effect.SKIPPED
        try:
            self.manager.reset()
        except ValueError as error:
            self._fail("A5", Anomaly.LEAK, "a reset: no request is live", f"ValueError: {error}")
        except Exception as error:
            raise Crash(f"{type(error).__name__}: {error}") from error
        self.model.reset()
        self.evidence[Seen.RESET] += 1
        return Effect.DONE

    def _drain(self, op: Drain) -> Effect:
        if not self.has(Capability.DRAIN):
            return Effect.SKIPPED
        self._call_plain(self.manager.drain)
        self._discard_copies()
        return Effect.DONE

    def _query(self, op: Query) -> Effect:
        if not self.has(Capability.QUERY) or not self._admissible("", op.key):
            return Effect.SKIPPED
        answer = self._call_plain(self.manager.can_admit, op.key)
        if not isinstance(answer, bool):
            self._fail("A4", Anomaly.NOT_AN_ANSWER, "True or False", repr(answer))
        self._promise = op.key if answer else None
        self.evidence[Seen.QUERIED] += 1
        return Effect.DONE

    def _peek(self, op: Peek) -> Effect:
        if not self.has(Capability.PEEK) or not self._admissible("", op.key):
            return Effect.SKIPPED
        model = self.model
        tags = model.tags_of(op.key)
        must = model.must_hit(tags)
        need = model.blocks_for(len(tags)) - must // model.block_size
        pressed = model.pressed_by(need, admission=True)
        mirrored = self._mirror.look_up(op.key) if self._mirror is not None else None
        hit = self._call_plain(self.manager.peek, op.key)
        self._check_hit_number(hit, len(tags))
        if not pressed:
            self._check_missed(tags, hit, must)
        self._check_mirror(op.key, mirrored, hit, pressed)
        self.evidence[Seen.PEEKED] += 1
        return Effect.DONE

    def _quiesce(self, op: Quiesce) -> Effect:
        quiesce(self)
        return Effect.DONE

    # ------------------------------------------------------------------------------------ calls

    def _call(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call the implementation; REFUSED when it is out of blocks, `Crash` on other errors."""
        try:
            return method(*arguments, **named)
        except Exception as error:
            if is_out_of_blocks(error):
                return REFUSED
            raise Crash(f"{type(error).__name__}: {error}") from error

    def _call_plain(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method that has no right to refuse."""
        answer = self._call(method, *arguments)
        if answer is REFUSED:
            raise Crash(f"{method.__name__} raised OutOfBlocks, which it may not")
        return answer

    def _take_copies(self) -> Sequence[tuple[int, int]]:
        copies = self._call_plain(self.manager.take_copies) if self._copies else ()
        if copies:
            self.evidence[Seen.COPIED] += 1
        return copies

    def _discard_copies(self) -> None:
        """Copies after an operation that hands out nothing are done like any other."""
        copies = self._take_copies()
        if copies:
            self.device.begin_tenancies((), copies)

    def _fail(self, invariant: str, anomaly: Anomaly, expected: str, got: str) -> None:
        raise Violation(invariant, anomaly, expected, got)

    # ----------------------------------------------------------------------------------- tables

    def _read_table(self, name: str, length: int) -> list[int]:
        """A request's table, checked for form."""
        table = list(self._call_plain(self.manager.block_table, name))
        least = self.model.blocks_for(length)
        most = least + self.declaration.lookahead
        if not least <= len(table) <= most:
            wanted = f"{least} blocks" if least == most else f"{least} to {most} blocks"
            wanted += f" for {length} tokens of {name}"
            self._fail("A7", Anomaly.TABLE, wanted, f"{len(table)}: {table}")
        if len(set(table)) != len(table):
            self.diagnosis.repeated_block(name, table)
        for block in table:
            if block not in self._ids:
                self._new_id(name, block)
        return table

    def _new_id(self, name: str, block: Any) -> None:
        """A block id that was never seen before."""
        if not isinstance(block, int) or block < 0 or block in self.declaration.reserved_ids:
            self._fail("A7", Anomaly.TABLE, "block ids >= 0 that hold KV", f"{block!r} in {name}")
        self._ids.add(block)
        if len(self._ids) > self.model.num_blocks:
            self._fail(
                "A1",
                Anomaly.TOO_MANY_BLOCKS,
                f"at most {self.model.num_blocks} distinct blocks",
                f"{len(self._ids)}, the last of them {block} in the table of {name}",
            )

    def _take(
        self,
        name: str,
        live: Live,
        *,
        hit: int = 0,
        pressed: bool = False,
        copies: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        """Read the request's table after an operation on it, and enter what has changed."""
        model, old = self.model, live.table
        copies = self._take_copies() if copies is None else copies
        table = self._read_table(name, live.length)
        if table == old and not copies:
            if pressed:
                self._may_evict(())
            return
        fresh = self._fresh(live, table, hit, {destination for _, destination in copies})
        shared = [block for block in table[: model.blocks_for(hit)] if block not in fresh]
        self._check_fresh(name, fresh, shared)
        self._check_copies(live, copies, fresh)
        pinned = [*shared, *(source for source, _ in copies)]
        if pressed:
            self._may_evict(pinned)
        self._note_victims(fresh, pinned)
        self.device.begin_tenancies(fresh, copies)
        model.take_table(live, table, fresh)
        if hit:
            self._check_hit_content(name, live, hit)

    def _fresh(self, live: Live, table: list[int], hit: int, copied: set[int]) -> list[int]:
        """The blocks of a new table that were handed out as new."""
        old, size = live.table, self.model.block_size
        fresh = []
        for index, block in enumerate(table):
            known = index < len(old)
            if known and old[index] == block:
                continue
            if block in copied or index * size >= max(hit, live.committed):
                fresh.append(block)
            elif known and not self._remapped(live, index, block):
                fresh.append(block)  # copy-on-write; whether it was copied shows in its content
        return fresh

    def _remapped(self, live: Live, index: int, block: int) -> bool:
        """Whether a changed entry now shows another block that holds the same KV."""
        known = block in self.model.blocks.users or block in self.model.blocks.published
        complete = (index + 1) * self.model.block_size <= live.committed
        if not known or not complete or not self._same_content(live, index, block):
            return False
        if self.declaration.dedup is not Dedup.REMAP:
            self._fail(
                "P11",
                Anomaly.REMAP,
                f"logical block {index} to stay in block {live.table[index]} (dedup=keep)",
                f"block {block}",
            )
        self.evidence[Seen.REMAPPED] += 1
        return True

    def _same_content(self, live: Live, index: int, block: int) -> bool:
        low = index * self.model.block_size
        return self.device.memory[block] == live.tags[low : low + self.model.block_size]

    def _check_copies(
        self, live: Live, copies: Sequence[tuple[int, int]], fresh: Sequence[int]
    ) -> None:
        """C2: a copy goes to a block that is the request's own, never over shared content."""
        blocks = self.model.blocks
        for source, destination in copies:
            if destination in fresh:
                continue
            shared = blocks.users.get(destination, 0) - (destination in live.table)
            if shared or destination in blocks.published:
                self._fail(
                    "C2",
                    Anomaly.LOST_COPY,
                    "copies into blocks that were handed out as new by this operation",
                    f"a copy {source} -> {destination}, over content that others read",
                )

    def _check_fresh(self, name: str, fresh: Sequence[int], shared: Sequence[int]) -> None:
        """A2, A3: what is handed out as new is covered by nobody."""
        users = self.model.blocks.users
        for block in fresh:
            if block in users or block in shared:
                self.diagnosis.covered(name, block, shared)
            if block in self.model.blocks.tenancy:
                self.evidence[Seen.REUSED] += 1

    # --------------------------------------------------------------------------------- eviction

    def _may_evict(self, pinned: Sequence[int]) -> None:
        model = self.model
        model.watch.open(model.now, pinned, model.publications.pressure)
        model.press()
        self.evidence[Seen.PRESSURE] += 1
        if any(live.pending for live in model.live.values()):
            self.evidence[Seen.PINNED_PRESSURE] += 1

    def _note_victims(self, fresh: Sequence[int], pinned: Sequence[int]) -> None:
        """Published blocks among the fresh ones were evicted: were they due?"""
        model = self.model
        victims = [block for block in fresh if block in model.blocks.published]
        if not victims:
            return
        model.watch.open(model.now, pinned, model.publications.pressure)
        self.evidence[Seen.EVICTED] += 1
        if model.blocks.users:
            self.evidence[Seen.EVICTED_BESIDE_PINNED] += 1
        for block in filter(model.surely_cached, victims):
            self.diagnosis.wrong_victim(model.watch.went(block))

    def _check_evicted(self, asked: int, freed: Any, surely: int, before: Any) -> None:
        """P9: evict(n) frees what can be freed of n blocks, and reports the true amount."""
        if not isinstance(freed, int) or isinstance(freed, bool) or freed < 0:
            self._fail("P9", Anomaly.NOT_AN_ANSWER, "a number of blocks", repr(freed))
        self.evidence[Seen.EVICT_CALLED] += 1
        if freed < min(asked, surely):
            expected = f"at least {min(asked, surely)} of the {surely} idle cached blocks freed"
            self._fail("P9", Anomaly.EVICT_AMOUNT, expected, f"{freed}")
        most = self.model.most_evicted(asked)
        if freed > most:
            self._fail("P9", Anomaly.EVICT_AMOUNT, f"at most {most} blocks freed", f"{freed}")
        if before is None:
            return
        after = self.manager.counters()
        if freed > before.cached:
            expected = f"at most the {before.cached} blocks freed that counters() says are cached"
            self._fail("P9", Anomaly.EVICT_AMOUNT, expected, f"{freed}")
        if (after.free, after.cached) != (before.free + freed, before.cached - freed):
            self._fail(
                "P9",
                Anomaly.EVICT_AMOUNT,
                f"{freed} reported, so free {before.free + freed}, cached {before.cached - freed}",
                f"free {after.free}, cached {after.cached}",
            )

    def check_cached(self, surely: int) -> None:
        """P8: what is surely cached and idle is counted as such."""
        if not self._counters or not self.model.caches:
            return
        counters = self._call_plain(self.manager.counters)
        if surely:
            self.evidence[Seen.CACHED_COUNTED] += 1
        if counters.cached < surely:
            expected = f"at least {surely} blocks counted as cached"
            self._fail("P8", Anomaly.ACCOUNTING, expected, f"{counters}")

    # ------------------------------------------------------------------------------------- hits

    def _check_hit_number(self, hit: Any, length: int) -> None:
        """P3, as far as the number alone tells."""
        model, declared = self.model, self.declaration
        if not isinstance(hit, int) or isinstance(hit, bool) or hit < 0:
            self._fail("P3", Anomaly.NOT_AN_ANSWER, "a number of tokens", repr(hit))
        if hit and not model.caches:
            self._fail("P3", Anomaly.LAW, "0 without PREFIX_CACHE", f"{hit}")
        most = model.law(length, length)
        if hit > most:
            self._fail("P3", Anomaly.LAW, f"at most {most} of {length} tokens hit", f"{hit}")
        if hit % model.unit:
            self._fail("P3", Anomaly.LAW, f"a multiple of {model.unit} tokens", f"{hit}")
        if declared.drop and hit:
            self.evidence[Seen.DROPPED] += 1

    def _check_hit_content(self, name: str, live: Live, hit: int) -> None:
        """P1, P2, P4, P5: what counts as a hit is what a legal schedule would have written."""
        wrong = self.device.first_wrong(live.table, live.tags, hit)
        if wrong is not None:
            self.diagnosis.wrong_hit(name, live, wrong)
        shared = live.table[: self.model.blocks_for(hit)]
        self.diagnosis.wrong_victim(self.model.watch.stay(shared))

    def _check_missed(self, tags: Sequence[int], hit: int, must: int) -> None:
        """P9, P12: what is missing was evicted, and no more than was asked for."""
        self.diagnosis.over_evicted(tags, hit)
        if must:
            self.evidence[Seen.MUST_HIT] += 1
        if hit < must:
            self.diagnosis.missed_hit(tags, hit, must)

    def _check_mirror(
        self, key: CacheKey, mirrored: int | None, hit: int, pressed: bool = False
    ) -> None:
        """E1: the mirror of the events answers like the cache.

        An operation short of blocks may give up a part of its hit.
        """
        if mirrored is None or (pressed and hit < mirrored):
            return
        if mirrored:
            self.evidence[Seen.MIRRORED] += 1
        if mirrored != hit:
            expected = f"a hit of {mirrored} of {len(key.tokens)} tokens, as the events say"
            self._fail("E1", Anomaly.MIRROR, expected, f"{hit}")

    # ----------------------------------------------------------------------------------- writes

    def _write(self, live: Live, stop: int) -> None:
        """Write up to `stop` at once, where the implementation has no separate commit."""
        if stop <= live.committed:
            return
        self._write_device(live, stop)
        if self._commit_calls:
            name = next(name for name, other in self.model.live.items() if other is live)
            self._call_plain(self.manager.commit, name, stop)
        live.committed = stop
        self._publish_written(live)

    def _write_device(self, live: Live, stop: int) -> None:
        self.device.write(live.table, live.tags, live.committed, stop)

    def _publish_written(self, live: Live) -> None:
        if self.declaration.publish is not Publish.RELEASE:
            self.model.publish(live)

    # ------------------------------------------------------------------------------- refusals

    def _refused(self, need: int, may_refuse: bool, admission: bool = False) -> Effect:
        """A4: a refusal is justified, and changes nothing that can be read (see `_look`)."""
        model = self.model
        if not may_refuse:
            room = model.num_blocks - model.blocks.num_used
            self._fail(
                "A4",
                Anomaly.UNDUE_REFUSAL,
                f"success: it needs {need} blocks and {room} of {model.num_blocks} are not in use",
                "OutOfBlocks",
            )
        copies = self._take_copies()
        if copies:
            self._fail("A4", Anomaly.REFUSAL_DAMAGE, "no copies after a refusal", f"{copies}")
        if self.declaration.refusal is Refusal.CLEAN:
            model.publications.refused = model.now
        elif model.pressed_by(need, admission):
            self._may_evict(())
        self.evidence[Seen.REFUSED] += 1
        return Effect.REFUSED

    def _kept(self, promise: CacheKey, operation: Operation, effect: Effect) -> None:
        """A4: a yes of can_admit binds the next operation, if it admits that key."""
        if not isinstance(operation, Admit) or operation.key != promise:
            return
        if effect is Effect.REFUSED:
            expected = "admission, as can_admit has just promised for this key"
            self._fail("A4", Anomaly.BROKEN_PROMISE, expected, "OutOfBlocks")
        self.evidence[Seen.PROMISED] += effect is Effect.DONE

    # --------------------------------------------------------------------------- after every step

    def _look(self) -> None:
        """Read every live request again, and compare what can be inspected."""
        try:
            self._inspect()
        except (Violation, Crash):
            raise
        except Exception as error:
            raise Crash(f"while it was only looked at: {type(error).__name__}: {error}") from error

    def _inspect(self) -> None:
        manager = self.manager
        for name, live in self.model.live.items():
            table = list(manager.block_table(name))
            if table != live.table:
                expected = f"table of {name} unchanged: {live.table}"
                self._fail("A7", Anomaly.FOREIGN_CHANGE, expected, f"{table}")
            self._check_content(name, live)
        if self._counters:
            self._check_counters(manager.counters())
        if self._refcounts:
            self._check_refcounts(manager.refcounts())
        if self._mirror is not None:
            self._mirror.take(manager.take_events())

    def _check_content(self, name: str, live: Live) -> None:
        """C1, C2, A2: every readable slot holds the tag that belongs there."""
        wrong = self.device.first_wrong(live.table, live.tags, live.committed)
        if wrong is not None:
            self.diagnosis.wrong_slot(name, live, wrong)

    def _check_counters(self, counters: Counters) -> None:
        """A1: counters equal the sizes of the sets that they name."""
        blocks = self.model.blocks
        free, cached, used = counters.free, counters.cached, counters.used
        if min(free, cached, used) < 0 or free + cached + used != self.model.num_blocks:
            expected = f"counts >= 0 that add up to {self.model.num_blocks}"
            self._fail("A1", Anomaly.ACCOUNTING, expected, f"{counters}")
        if used != blocks.num_used:
            expected = f"{blocks.num_used} blocks used, the union of the live tables"
            self._fail("A1", Anomaly.ACCOUNTING, expected, f"{counters}")
        self.evidence[Seen.COUNTED] += 1
        if cached and not self.model.caches:
            self._fail("P8", Anomaly.ACCOUNTING, "none cached without PREFIX_CACHE", f"{counters}")

    def _check_refcounts(self, refcounts: Mapping[int, int]) -> None:
        counts = dict(refcounts)
        if counts != self.model.blocks.users:
            expected = f"holders per block {self.model.blocks.users}"
            self._fail("A1", Anomaly.ACCOUNTING, expected, f"{counts}")

    # ----------------------------------------------------------------------------------- evidence

    def _note_hit(self, live: Live) -> None:
        evidence, model = self.evidence, self.model
        if not model.caches and not live.length:
            return
        length, size = live.length, model.block_size
        edge = length % size
        if edge == 0:
            evidence[Seen.AT_BLOCK_END] += 1
        elif edge == size - 1:
            evidence[Seen.BEFORE_BLOCK_END] += 1
        elif edge == 1:
            evidence[Seen.AFTER_BLOCK_END] += 1
        if not live.hit:
            return
        evidence[Seen.HIT] += 1
        if live.hit == model.law(len(live.tags), len(live.tags)):
            evidence[Seen.FULL_HIT] += 1
        else:
            self._note_divergence(live)

    def _note_unwritten(self, live: Live) -> None:
        """Somebody else has slots for what is looked up here, but has not written it yet."""
        for other in self.model.live.values():
            at = other.committed
            if at < other.length and at < len(live.tags) - 1 and other.tags[at] == live.tags[at]:
                self.evidence[Seen.UNWRITTEN_KEY] += 1
                return

    def _note_key(self, live: Live) -> None:
        """Whether the look-up could have been answered from recycled blocks or a near key."""
        model = self.model
        if not model.caches:
            return
        beyond = live.hit + model.unit
        if beyond <= len(live.tags):
            entry = model.publications.entries.get(live.tags[beyond - 1])
            if entry is not None and not model.publications.intact(entry, model.blocks.tenancy):
                self.evidence[Seen.STALE_KEY] += 1
        first = tuple(live.key.tokens[: model.unit])
        space = (live.key.salt, live.key.adapter, live.key.spans, model.epoch)
        spaces = self._spaces.setdefault(first, set())
        if spaces - {space}:
            self.evidence[Seen.NEAR_KEY] += 1
        spaces.add(space)

    def _note_divergence(self, live: Live) -> None:
        """A prefix was left before its end: the tree has to split there."""
        if len(live.tags) > live.hit + 1:
            self.evidence[Seen.DIVERGED] += 1
            self.diagnosis.splits.add(live.tags[live.hit - 1])

    def _note_write(self, live: Live, count: int) -> None:
        if live.table and live.length % self.model.block_size:
            tail = live.table[(live.length - 1) // self.model.block_size]
            if self.model.blocks.users[tail] > 1:
                self.evidence[Seen.FORK_THEN_WRITE] += 1
        if live.cut is not None:
            self.evidence[Seen.CUT_THEN_WRITE] += 1
            live.cut = None
        if count:
            self.evidence[Seen.APPENDED] += 1

    def _note_release(self, live: Live, outcome: Outcome) -> None:
        evidence, users = self.evidence, self.model.blocks.users
        if any(users[block] > 1 for block in live.table):
            evidence[Seen.SHARER_LEFT] += 1
        if live.committed < live.length:
            evidence[Seen.ABORTED_UNWRITTEN] += 1
        if live.length % self.model.block_size:
            evidence[Seen.PARTIAL_PAGE_RELEASED] += 1
        if outcome is not Outcome.FINISHED:
            evidence[Seen.ABORTED] += 1
