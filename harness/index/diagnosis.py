"""From a wrong value or a missing prefix to the invariant that is broken, and what to say."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NoReturn

from kvassay.harness.diagnosis import in_words, plain
from kvassay.harness.index.state import IndexState
from kvassay.harness.violation import Anomaly, Violation
from kvassay.reference.index_model import Fate

OF_FATE: dict[Fate, tuple[str, Anomaly]] = {
    Fate.DUPLICATE: ("P11", Anomaly.DUPLICATE_HIT),
    Fate.TAIL: ("P3", Anomaly.LAW),
    Fate.REFUSED: ("P4", Anomaly.REFUSED_HIT),
    Fate.FREED: ("P5", Anomaly.STALE_HIT),
    Fate.FORGOTTEN: ("P5", Anomaly.STALE_HIT),
}
"""What a value convicts of that is served although the index does not own it."""


class Telling(IndexState):
    """The part of the checker that knows why something is wrong."""

    def _wrong_value(
        self, place: int, value: object, where: str, path: Collection[int]
    ) -> NoReturn:
        """`value` stands where the value of `place` belongs; `path` is all of that key."""
        offer = self.model.offers.get(value) if isinstance(value, int) else None
        if offer is None:
            invariant, anomaly, what = "P5", Anomaly.PHANTOM_HIT, "was never inserted"
        elif offer.fate is Fate.STORED:
            same = offer.place in path
            invariant, anomaly = ("P1", Anomaly.LAW) if same else ("P2", Anomaly.WRONG_KEY)
            what = f"belongs to {self._describe(offer.place)}"
        else:
            invariant, anomaly = OF_FATE[offer.fate]
            what = f"of {self._describe(offer.place)} was {offer.fate.value}"
        stored = self.model.values.get(place)
        due = f"value {stored}" if stored is not None else "nothing: it is not stored"
        raise Violation(
            invariant,
            anomaly,
            f"{due} at {self._describe(place)}{where}",
            f"value {value!r}, which {what}",
        )

    def _lost(self, places: Sequence[int], found: int, what: str) -> NoReturn:
        """`what` tells of only `found` leading tokens, and more of the key are stored."""
        model = self.model
        due = model.resident(places)
        invariant, anomaly = "P12", Anomaly.MISSED_HIT
        if found and places[found - 1] in model.splits:
            invariant, anomaly = "P6", Anomaly.SPLIT
        raise Violation(
            invariant,
            anomaly,
            f"{due} of {len(places)} tokens: they were inserted, and evict has not freed them",
            f"{what} {found}",
        )

    def _unstored(self, places: Sequence[int], count: int, what: str) -> NoReturn:
        """`what` tells of `count` leading tokens, and fewer are stored: where do they come from?"""
        model = self.model
        due = model.resident(places)
        reason = self._known_as(places[:count]) or self._known_as(places[due:count])
        invariant, anomaly, known = reason or ("P3", Anomaly.LAW, "")
        raise Violation(
            invariant,
            anomaly,
            f"{due} of {len(places)} tokens: no more of this key is stored",
            f"{what} {count}{known}",
        )

    def _known_as(self, places: Sequence[int]) -> tuple[str, Anomaly, str] | None:
        """What else these tokens were inserted as, if they were; whether it is stored decides."""
        tokens = [self.model.tokens[place] for place in places]
        found = None
        for offer in self.model.offers.values():
            if not self._ends_with(offer.place, tokens):
                continue
            known = f"; the same tokens were inserted as {self._describe(offer.place)}"
            if offer.fate is Fate.STORED:
                return "P2", Anomaly.WRONG_KEY, known
            invariant, anomaly = OF_FATE[offer.fate]
            found = invariant, anomaly, f"{known}, and {offer.fate.value}"
        return found

    def _ends_with(self, place: int, tokens: Sequence[int]) -> bool:
        return plain(self.model.prefix_of(place)[1])[-len(tokens) :] == tokens

    def _describe(self, place: int) -> str:
        return in_words(*self.model.prefix_of(place))
