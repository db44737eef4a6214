"""A mirror of the cache, built from its events alone (invariants E1, E2).

What an indexer outside the engine sees. Entries are opaque ids; the mirror knows them by what
they hang under and by the tokens they stand for. With multiset semantics an entry that was
stored twice survives one removal, with set semantics it does not.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from kvassay.harness.contract import CacheEvent, CacheKey, EventKind, EventSemantics
from kvassay.harness.violation import Anomaly, Violation
from kvassay.reference.model import CacheModel
from kvassay.reference.tags import Element, elements_of

Place = tuple[Hashable, tuple[Element, ...]]
"""What an entry hangs under (an entry, or a namespace at the top) and its content."""


@dataclass(slots=True)
class Mirrored:
    place: Place
    count: int


class Mirror:
    """Answers look-ups from the events alone."""

    def __init__(self, model: CacheModel) -> None:
        self.model = model
        self.is_set = model.declaration.events is EventSemantics.SET
        self._entries: dict[Hashable, Mirrored] = {}
        self._at: dict[Place, dict[Hashable, None]] = {}

    def look_up(self, key: CacheKey) -> int:
        """Tokens that the cache should count as a hit for `key`."""
        unit, elements = self.model.unit, elements_of(key)
        above: Iterable[Hashable] = [("root", key.salt, key.adapter)]
        reach = 0
        for start in range(0, len(elements) - unit + 1, unit):
            piece = tuple(elements[start : start + unit])
            above = [entry for parent in above for entry in self._at.get((parent, piece), ())]
            if not above:
                break
            reach = start + unit
        return self.model.law(len(elements), reach)

    def take(self, events: Any) -> None:
        """Apply events in their order; an event that cannot be applied breaks E2."""
        for event in events:
            if event.kind is EventKind.STORED:
                self._store(event)
            elif event.kind is EventKind.REMOVED:
                self._remove(event)
            else:
                self._entries.clear()
                self._at.clear()

    def _store(self, event: CacheEvent) -> None:
        unit = self.model.unit
        if len(event.tokens) != unit * len(event.entries):
            expected = f"{unit} tokens per entry"
            self._fail(expected, f"{len(event.tokens)} for {len(event.entries)} entries")
        if event.parent is not None and event.parent not in self._entries:
            self._fail("a parent that is stored", f"unknown parent {event.parent!r}")
        above: Hashable = event.parent
        if above is None:
            above = ("root", event.salt, event.adapter)
        elements = _elements(event)
        for index, entry in enumerate(event.entries):
            self._enter(entry, (above, tuple(elements[index * unit : (index + 1) * unit])))
            above = entry

    def _enter(self, entry: Hashable, place: Place) -> None:
        known = self._entries.get(entry)
        if known is None:
            self._entries[entry] = Mirrored(place, 1)
            self._at.setdefault(place, {})[entry] = None
        elif known.place != place:
            self._fail(f"entry {entry!r} to stand for one content", "a store with another one")
        else:
            known.count += 1

    def _remove(self, event: CacheEvent) -> None:
        for entry in event.entries:
            known = self._entries.get(entry)
            if known is None:
                self._fail("removals of entries that are stored", f"unknown entry {entry!r}")
            elif self.is_set or known.count == 1:
                del self._entries[entry]
                del self._at[known.place][entry]
            else:
                known.count -= 1

    @staticmethod
    def _fail(expected: str, got: str) -> NoReturn:
        raise Violation("E2", Anomaly.EVENT_ORDER, expected, got)


def _elements(event: CacheEvent) -> Sequence[Element]:
    if not event.spans:
        return event.tokens
    elements: list[Element] = list(event.tokens)
    for span in event.spans:
        for position in range(max(0, span.start), min(len(elements), span.start + span.length)):
            elements[position] = (event.tokens[position], span.content, position - span.start)
    return elements
