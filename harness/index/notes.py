"""Counts what a run of an index meets: the evidence behind a pass."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from kvassay.harness.contract import CacheKey, Declaration
from kvassay.harness.evidence import Seen
from kvassay.harness.index.state import IndexState
from kvassay.reference.index_model import Fate


class Notes(IndexState):
    """The part of the checker that only counts."""

    _splitting = False
    """Whether this operation may split an edge."""

    def __init__(
        self, index: Any, declaration: Declaration, capacity: int | None, page_size: int
    ) -> None:
        super().__init__(index, declaration, capacity, page_size)
        self._spaces: dict[tuple[int, ...], set[object]] = {}
        self._gone: dict[int, Fate] = {}
        """Places that were stored or offered, and are not stored."""

    def _note_key(self, key: CacheKey, places: Sequence[int]) -> None:
        """Whether a wrong answer is at hand: a key nearly equal, evicted, or refused."""
        evidence, model = self.evidence, self.model
        found = model.resident(places)
        self._splitting = bool(found) and len(model.below.get(places[found - 1], ())) == 1
        first = tuple(key.tokens[: model.page_size])
        spaces = self._spaces.setdefault(first, set())
        space = (key.salt, key.adapter, key.spans, model.epoch)
        if spaces - {space}:
            evidence[Seen.NEAR_KEY] += 1
        spaces.add(space)
        if len(places) % model.page_size:
            evidence[Seen.UNALIGNED_KEY] += 1
        fate = self._gone.get(places[found]) if found < len(places) else None
        if fate is Fate.FREED:
            evidence[Seen.STALE_KEY] += 1
        elif fate is Fate.REFUSED:
            evidence[Seen.REFUSED_KEY] += 1

    def _note_found(self, key: CacheKey, places: Sequence[int], found: int) -> None:
        evidence = self.evidence
        if not found:
            return
        evidence[Seen.HIT] += 1
        evidence[Seen.MUST_HIT] += 1
        if found == self.model.floor(len(places)):
            evidence[Seen.FULL_HIT] += 1
        self._note_split(places, found)

    def _note_split(self, places: Sequence[int], found: int) -> None:
        if not self._splitting:
            return
        self.evidence[Seen.DIVERGED] += 1
        if places[found - 1] in self.model.covers:
            self.evidence[Seen.LOCKED_SPLIT] += 1

    def _note_stored(self, key: CacheKey, places: Sequence[int], there: int) -> None:
        self._note_split(places, there)
        if there:
            self.evidence[Seen.DUPLICATE] += 1
        for place in places[there:]:
            self._gone.pop(place, None)

    def _note_refused(self, places: Sequence[int]) -> None:
        self.evidence[Seen.REFUSED] += 1
        for place in places[self.model.resident(places) :]:
            self._gone[place] = Fate.REFUSED

    def _note_evicted(self, asked: int, freed: Collection[int], compared: bool) -> None:
        evidence, evictable = self.evidence, self.model.evictable()
        evidence[Seen.EVICT_CALLED] += 1
        if freed:
            evidence[Seen.EVICTED_ON_DEMAND] += 1
            evidence[Seen.EVICTED] += 1
        if compared:
            evidence[Seen.POLICY_TESTED] += 1
        if asked >= evictable and self.model.covers:
            evidence[Seen.PINNED_PRESSURE] += 1
        if asked == evictable:
            evidence[Seen.EVICT_EXACT] += 1
        else:
            evidence[Seen.EVICT_LESS if asked < evictable else Seen.EVICT_MORE] += 1
        for place in freed:
            self._gone[place] = Fate.FREED
