"""Runs operations on an index and on the model, and compares them.

Every check names the invariant that it enforces and raises a `Violation`. What an index stores is
known exactly, since `insert` never evicts and `evict` tells what it freed; so every match, peek
and insert has one right answer, and after each operation a walk and the counts have one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from operator import index as as_int
from typing import Any

from kvassay.harness.calling import REFUSED, at_most
from kvassay.harness.checker import Effect
from kvassay.harness.contract import CacheKey, Capability, Declaration
from kvassay.harness.evidence import Seen
from kvassay.harness.index.looking import Looking
from kvassay.harness.index.notes import Notes
from kvassay.harness.index.scenario import Evict, Insert, Lock, Match, Operation, Unlock
from kvassay.harness.index.state import Reader
from kvassay.harness.keys import cut
from kvassay.harness.scenario import Peek, Reset
from kvassay.harness.violation import Anomaly, Crash, Violation
from kvassay.reference.tags import spans_fit


class IndexChecker(Looking, Notes):
    """Runs one index under test, one operation at a time."""

    def __init__(
        self, index: Any, declaration: Declaration, capacity: int | None, page_size: int
    ) -> None:
        super().__init__(index, declaration, capacity, page_size)
        self.index = -1
        self._slots = count()
        self._steps: dict[type, Callable[[Any], Effect]] = {
            Match: self._match,
            Insert: self._insert,
            Lock: self._lock,
            Unlock: self._unlock,
            Evict: self._evict,
            Reset: self._reset,
            Peek: self._peek,
        }

    def step(self, operation: Operation) -> Effect:
        """Run one operation; raises `Violation` or `Crash`, which name this operation."""
        self.index += 1
        self.operation = operation
        self.model.now += 1
        self._refused = False
        try:
            effect = self._steps[type(operation)](operation)
            self._refused = effect is Effect.REFUSED
            if effect is not Effect.SKIPPED:
                self._look()
        except (Violation, Crash) as verdict:
            verdict.index, verdict.operation = self.index, operation
            raise
        except (Exception, SystemExit, GeneratorExit) as error:
            unusable = f"an answer that cannot be used: {type(error).__name__}: {error}"
            raise Crash(unusable, self.index, operation) from error
        if not isinstance(operation, Peek) and effect is not Effect.SKIPPED:
            self.looked = self.model.now
        return effect

    def met(self) -> Counter[Seen]:
        """What the run has met."""
        return self.evidence

    def _usable(self, key: CacheKey) -> bool:
        return (
            len(key.tokens) > 0
            and (key.salt is None or self.has(Capability.SALT))
            and (key.adapter is None or self.has(Capability.ADAPTER))
            and (not key.spans or self.has(Capability.SPANS))
            and spans_fit(key.spans, len(key.tokens))
        )

    # ------------------------------------------------------------------------------------ look-up

    def _match(self, op: Match) -> Effect:
        before = self.readers.get(op.request)
        if not self._usable(op.key) or (before is not None and before.locks):
            return Effect.SKIPPED
        model = self.model
        places = model.places_of(op.key)
        self._note_key(op.key, places)
        answer = self._call_plain(self.tree.match, op.key)
        found = self._number(answer.length, len(places), "a match of")
        values = [as_int(value) for value in at_most(answer.values, found)]
        if len(values) != found:
            expected = f"as many values as the {found} tokens matched"
            self._fail("P3", Anomaly.NOT_AN_ANSWER, expected, f"{values}")
        for place, value in zip(places, values, strict=False):
            if model.values.get(place) != value:
                self._wrong_value(place, value, f", matched by {op.request}", places)
        self._check_found(places, found, "a match of")
        self._note_found(op.key, places, found)
        model.match(places, found)
        self.readers[op.request] = Reader(places[:found], answer.handle, model.now)
        self._check_cuts(op.key, found)
        return Effect.DONE

    def _peek(self, op: Peek) -> Effect:
        if not self._peeks or not self._usable(op.key):
            return Effect.SKIPPED
        places = self.model.places_of(op.key)
        self._note_key(op.key, places)
        self._peeked(op.key, places)
        self.evidence[Seen.PEEKED] += 1
        return Effect.DONE

    def _peeked(self, key: CacheKey, places: Sequence[int]) -> None:
        found = self._number(self._call_plain(self.tree.peek, key), len(places), "a peek of")
        self._check_found(places, found, "a peek of")

    def _check_cuts(self, key: CacheKey, found: int) -> None:
        """P6: right after a split, the key matches at every cut beside it."""
        if not self._peeks or not self._splitting:
            return
        size = self.model.page_size
        for length in (found - size, found - 1, found, found + 1, found + size):
            if 0 < length <= len(key.tokens):
                shorter = cut(key, length)
                self._peeked(shorter, self.model.places_of(shorter))

    def _number(self, answer: Any, length: int, what: str) -> int:
        """P3, as far as the number alone tells."""
        if not isinstance(answer, int) or isinstance(answer, bool) or answer < 0:
            self._fail("P3", Anomaly.NOT_AN_ANSWER, "a number of tokens", f"{what} {answer!r}")
        if answer > length:
            self._fail("P3", Anomaly.LAW, f"at most all {length} tokens", f"{what} {answer}")
        if answer % self.model.page_size:
            expected = f"whole pages of {self.model.page_size} tokens"
            self._fail("P3", Anomaly.LAW, expected, f"{what} {answer}")
        return answer

    def _check_found(self, places: Sequence[int], found: int, what: str) -> None:
        """P3, P6, P12: the longest prefix that is stored, no more and no less."""
        due = self.model.resident(places)
        if found > due:
            self._unstored(places, found, what)
        if found < due:
            self._lost(places, found, what)

    # ----------------------------------------------------------------------------------- storing

    def _insert(self, op: Insert) -> Effect:
        if not self._usable(op.key):
            return Effect.SKIPPED
        model = self.model
        places = model.places_of(op.key)
        values = [next(self._slots) for _ in places]
        self._note_key(op.key, places)
        due = model.resident(places)
        fits = model.fits(model.floor(len(places)) - due)
        self.changed = model.now
        answer = self._call(self.tree.insert, op.key, list(values))
        if answer is REFUSED:
            return self._refuse(places, values, fits)
        there = self._number(answer, len(places), "an insert that found")
        self._check_found(places, there, "an insert that found")
        if not fits:
            expected = f"OutOfBlocks: at most {model.capacity} tokens can be stored"
            self._fail("P8", Anomaly.ACCOUNTING, expected, f"{len(places) - there} more of them")
        self._note_stored(op.key, places, there)
        model.insert(places, values, there)
        self._check_cuts(op.key, there)
        return Effect.DONE

    def _refuse(self, places: Sequence[int], values: Sequence[int], fits: bool) -> Effect:
        """A4: a refusal is justified, and changes nothing that can be read (see `_look`)."""
        model = self.model
        if fits:
            limit = "there is no limit" if model.capacity is None else f"limit {model.capacity}"
            stored = f"{len(model.values)} tokens are stored, {limit}"
            self._fail("A4", Anomaly.UNDUE_REFUSAL, f"success: {stored}", "OutOfBlocks")
        model.refuse(places, values)
        self._note_refused(places)
        return Effect.REFUSED

    # ------------------------------------------------------------------------------------ locking

    def _lock(self, op: Lock) -> Effect:
        reader = self.readers.get(op.request)
        if not self._locks or reader is None or not reader.places:
            return Effect.SKIPPED
        if not reader.locks and reader.since < self.changed:
            return Effect.SKIPPED  # the handle is void
        try:
            self._call_plain(self.tree.lock, reader.handle)
        except Crash as crash:
            if not isinstance(crash.__cause__, KeyError):
                raise
            if not reader.locks and reader.since < self.looked:
                return Effect.REFUSED  # to some, a look-up that splits may void a handle
            self._fail("P7", Anomaly.LOCK_LOST, f"the handle of {op.request} valid", str(crash))
        reader.locks.append(self.model.lock(reader.places))
        self.evidence[Seen.LOCKED] += 1
        return Effect.DONE

    def _unlock(self, op: Unlock) -> Effect:
        reader = self.readers.get(op.request)
        if not self._locks or reader is None or not reader.places:
            return Effect.SKIPPED
        if not reader.locks:
            return self._misused(reader)
        try:
            self._call_plain(self.tree.unlock, reader.handle)
        except Crash as crash:
            if not isinstance(crash.__cause__, KeyError | ValueError):
                raise
            expected = f"{op.request} to unlock what it has locked"
            self._fail("P7", Anomaly.LOCK_LOST, expected, str(crash))
        self.model.unlock(reader.places, reader.locks.pop())
        self.evidence[Seen.UNLOCKED] += 1
        return Effect.DONE

    def _misused(self, reader: Reader) -> Effect:
        """P7: an unlock gives back what a lock took, and nothing else.

        Tried only where that is claimed to be validated, and nothing is locked: elsewhere the
        handle may well be the one of somebody else who holds a lock.
        """
        if not self.has(Capability.VALIDATES_INPUT) or self.locked():
            return Effect.SKIPPED
        try:
            self.tree.unlock(reader.handle)
        except (KeyError, ValueError):
            self.evidence[Seen.MISUSED] += 1
        except (Exception, SystemExit, GeneratorExit) as error:
            raise Crash(f"{type(error).__name__}: {error}") from error
        else:
            expected = "ValueError: nothing is locked"
            self._fail("P7", Anomaly.LOCK_LEFT, expected, "it was accepted")
        return Effect.REFUSED

    # ----------------------------------------------------------------------------------- eviction

    def _evict(self, op: Evict) -> Effect:
        if not self.has(Capability.EVICT) or op.num_tokens < 1:
            return Effect.SKIPPED
        model = self.model
        before = self._call_plain(self.tree.counters) if self._counters else None
        self.changed = model.now
        answer = at_most(self._call_plain(self.tree.evict, op.num_tokens), len(model.values))
        freed = self._freed([as_int(value) for value in answer])
        self._check_pinned(freed)
        self._check_amount(op.num_tokens, freed, before)
        wrong, compared = model.wrong_leaf(freed)
        self._note_evicted(op.num_tokens, freed, compared)
        if wrong is not None:
            expected = f"{self._describe(wrong.stayed)} evicted before {self._describe(wrong.gone)}"
            order = f"{expected} (order={self.declaration.order})"
            self._fail("P10", Anomaly.WRONG_VICTIM, order, "the latter, and not the former")
        model.evict(freed)
        return Effect.DONE

    def _freed(self, values: Sequence[int]) -> set[int]:
        """The places whose values were freed; each was stored and is named once."""
        model = self.model
        freed: set[int] = set()
        for value in values:
            offer = model.offers.get(value)
            place = -1 if offer is None else offer.place
            if model.values.get(place) != value or place in freed:
                what = "never inserted" if offer is None else offer.fate.value
                expected = "values that are stored freed, each once"
                self._fail("P9", Anomaly.EVICT_AMOUNT, expected, f"{value}, which is {what}")
            freed.add(place)
        return freed

    def _check_pinned(self, freed: set[int]) -> None:
        """P7, P9: nothing locked goes, nothing stays behind out of reach, and no part of a page."""
        model = self.model
        for place in freed:
            if place in model.covers:
                holders = ", ".join(self._holders([place]))
                expected = f"{self._describe(place)} kept, locked by {holders}"
                self._fail(
                    "P7", Anomaly.LOCK_IGNORED, expected, f"value {model.values[place]} freed"
                )
        behind = model.unreachable(freed)
        if behind is not None:
            expected = f"{self._describe(behind)} freed with what is before it"
            self._fail("P9", Anomaly.UNREACHABLE, expected, f"value {model.values[behind]} kept")

    def _check_amount(self, asked: int, freed: set[int], before: Any) -> None:
        """P8, P9: what can be freed of `asked`, and what was said to be evictable."""
        model, number = self.model, len(freed)
        least = min(asked, model.surely_evictable())
        left = model.values.keys() - freed - model.covers.keys()
        if number < least and left <= model.once_locked:
            names = self._describe(min(left, key=lambda place: model.accesses[place].depth))
            expected = f"{names} evictable: every lock on it was given back"
            self._fail("P7", Anomaly.LOCK_LEFT, expected, "evict did not free it")
        if number < least:
            expected = f"at least {least} of the {model.evictable()} evictable tokens freed"
            self._fail("P9", Anomaly.EVICT_AMOUNT, expected, f"{number}")
        most = model.most_evicted(asked, freed)
        if number > most or number % model.page_size:
            granularity = f"granularity={self.declaration.granularity}"
            expected = f"at most {most} tokens freed, in whole pages ({granularity})"
            self._fail("P9", Anomaly.EVICT_AMOUNT, expected, f"{number}")
        if before is not None and asked >= before.evictable != number:
            expected = f"the {before.evictable} tokens freed that counters() says are evictable"
            self._fail("P8", Anomaly.ACCOUNTING, expected, f"{number}")

    def _reset(self, op: Reset) -> Effect:
        if not self.has(Capability.RESET) or self.locked():
            return Effect.SKIPPED
        try:
            self._call_plain(self.tree.reset)
        except Crash as crash:
            if not isinstance(crash.__cause__, ValueError):
                raise
            self._fail("P7", Anomaly.LOCK_LEFT, "a reset: nothing is locked", str(crash))
        self.model.reset()
        self.readers.clear()
        self.changed = self.model.now
        self.evidence[Seen.RESET] += 1
        return Effect.DONE
