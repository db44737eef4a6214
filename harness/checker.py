"""Runs operations on an implementation, the model and the shadow device, and compares them.

After every operation the tables of all live requests are read again and every readable slot is
compared with the tag that belongs there. Every check names the invariant that it enforces and
raises a `Violation`; what the run has met is counted in `evidence`, since a check that never
looked is not a check that passed.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from kvassay.harness.calling import REFUSED
from kvassay.harness.contract import (
    CacheKey,
    Capability,
    Declaration,
    Publish,
    Refusal,
)
from kvassay.harness.evidence import Seen
from kvassay.harness.hits import Hits
from kvassay.harness.looking import Looking
from kvassay.harness.notes import Notes
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
from kvassay.harness.tables import Tables
from kvassay.harness.violation import Anomaly, Crash, Violation
from kvassay.reference.model import Live
from kvassay.reference.tags import spans_fit


class Effect(StrEnum):
    """What became of an operation."""

    DONE = "done"
    REFUSED = "refused"
    SKIPPED = "skipped"


class Checker(Tables, Hits, Looking, Notes):
    """Runs one implementation under test, one operation at a time."""

    def __init__(self, manager: Any, declaration: Declaration) -> None:
        super().__init__(manager, declaration)
        self.index = -1
        self.operation: Operation | None = None
        self._commit_calls = declaration.has(Capability.COMMIT)
        self._promise: CacheKey | None = None
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
            raise self._placed(verdict) from verdict.__cause__
        except (Exception, SystemExit, GeneratorExit) as error:
            unusable = Crash(f"an answer that cannot be used: {type(error).__name__}: {error}")
            raise self._placed(unusable) from error
        return effect

    def _placed(self, verdict: Violation | Crash) -> Violation | Crash:
        """The verdict, with the operation and the tables that it speaks of."""
        verdict.index, verdict.operation = self.index, self.operation
        verdict.tables = {name: list(live.table) for name, live in self.model.readers().items()}
        return verdict

    def step_within(self, operation: Operation) -> Effect:
        """Run an operation as part of a composite one: same number, all checks."""
        self.model.now += 1
        effect = self._steps[type(operation)](operation)
        if effect is not Effect.SKIPPED:
            self._look()
        return effect

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
        live = model.enter(key)
        length = len(live.tags)
        must = model.must_hit(live)
        most = model.admission_need(reserves)
        need = most - must // model.block_size if reserves else model.begin_need()
        may_refuse = not model.admissible() or not model.must_succeed(most, length, admission=True)
        mirrored = self._mirror.look_up(key) if self._mirror is not None else None
        self._note_unwritten(live)
        self._note_unpublished(live)
        hit = self._call(call, name, key)
        if hit is REFUSED:
            model.refused(live.tags)
            return self._refused(most, may_refuse, admission=True)
        self._check_hit_number(hit, length)
        live.hit = hit
        live.length = reserves or hit
        pressed = model.pressed_by(need, admission=True)
        if not pressed:
            self._check_missed(live, hit, must)
        self._take(name, live, hit=hit, pressed=pressed)
        self._check_hit_content(name, live, hit)
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
        model.extend(live, op.tokens)
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
        except (Exception, SystemExit, GeneratorExit) as error:
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
        live = model.enter(op.key)
        must = model.must_hit(live)
        need = model.admission_need(len(live.tags)) - must // model.block_size
        pressed = model.pressed_by(need, admission=True)
        mirrored = self._mirror.look_up(op.key) if self._mirror is not None else None
        hit = self._call_plain(self.manager.peek, op.key)
        self._check_hit_number(hit, len(live.tags))
        if not pressed:
            self._check_missed(live, hit, must)
        self._check_published(live, hit)
        self._check_mirror(op.key, mirrored, hit, pressed)
        self.evidence[Seen.PEEKED] += 1
        return Effect.DONE

    def _quiesce(self, op: Quiesce) -> Effect:
        quiesce(self)
        return Effect.DONE

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
            room = model.unheld()
            self._fail(
                "A4",
                Anomaly.UNDUE_REFUSAL,
                f"success: it needs {need} blocks and {room} of {model.num_blocks} are not in use",
                "OutOfBlocks",
            )
        copies = self._take_copies()
        if copies:
            self._fail("A4", Anomaly.REFUSAL_DAMAGE, "no copies after a refusal", f"{copies}")
        if self.declaration.refusal is not Refusal.MAY_EVICT:
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
