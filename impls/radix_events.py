"""The record of what the radix tree stored and removed, token by token.

Each resident token has an opaque entry id of its own, kept beside its element in the tree. Nothing
is recorded, and no id given, before somebody asks for the first time.
"""

from __future__ import annotations

from itertools import islice

from kvassay.harness.contract import CacheEvent, EventKind
from kvassay.impls.radix_key import Contents, Elements, Space


class EventLog:
    """Events since the last `take`, once `recording` is set."""

    __slots__ = ("_contents", "_events", "_next_entry", "recording")

    def __init__(self, contents: Contents) -> None:
        self.recording = False
        self._contents = contents
        self._events: list[CacheEvent] = []
        self._next_entry = 0

    def stored(self, parent: int | None, elements: Elements, space: Space) -> list[int]:
        """Record a run of new tokens below `parent`; returns their entries."""
        if not self.recording:
            return []
        first, self._next_entry = self._next_entry, self._next_entry + len(elements)
        entries = list(range(first, self._next_entry))
        self._events.append(
            CacheEvent(
                EventKind.STORED,
                entries=tuple(entries),
                parent=parent,
                tokens=self._contents.tokens_of(elements),
                salt=space[0],
                adapter=space[1],
                spans=self._contents.spans_of(elements),
            )
        )
        return entries

    def removed(self, entries: list[int], kept: int) -> None:
        """Record that all but the first `kept` entries of a run went, the deepest first."""
        if len(entries) > kept:
            gone = tuple(islice(reversed(entries), len(entries) - kept))
            self._events.append(CacheEvent(EventKind.REMOVED, entries=gone))

    def cleared(self) -> None:
        """Record that everything went at once."""
        if self.recording:
            self._events.append(CacheEvent(EventKind.CLEARED))

    def take(self) -> list[CacheEvent]:
        """The events so far, which are then forgotten."""
        events, self._events = self._events, []
        return events
