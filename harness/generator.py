"""Draws the next operation from the state that the model knows.

Uniform random operations rarely meet: most admissions are refused and few hit. Here sizes are
drawn around what is free (need - 1, need, need + 1), keys are made out of earlier ones, and a
share of the time goes to *plays*: short plans that are known to corner managers (compute a
prefix twice before either commits, fork and write on both sides, truncate and diverge, evict
and look up who is missing), interleaved with everything else. Every run mixes differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Generic, TypeVar

from kvassay.harness.moves import Driver
from kvassay.harness.plays import Plays
from kvassay.harness.scenario import Operation, Quiesce

Choice = TypeVar("Choice")
Drawn = TypeVar("Drawn")

FOCUS: dict[str, dict[str, float]] = {
    "allocator": {"fill": 3, "abort": 2, "chunked": 1.5, "query": 2},
    "cow": {"fork": 5, "diverge": 2, "partial": 3},
    "prefix": {"twice": 2, "rewrite": 2, "age": 3, "evict": 2, "unwritten": 2, "again": 2},
    "events": {"twice": 3, "age": 2, "evict": 1, "again": 2, "reset": 2},
}
"""Plays that each suite favours, as factors."""


class Mix(Generic[Choice]):
    """Swarm testing: every run leaves some kinds almost out and favours others."""

    def __init__(
        self, rng: Random, offered: dict[str, tuple[float, Choice]], factors: dict[str, float]
    ) -> None:
        self._rng = rng
        self._choices = [choice for _, choice in offered.values()]
        self._weights = [
            weight * factors.get(name, 1) * rng.choice((0.1, 0.5, 1, 1, 3))
            for name, (weight, _) in offered.items()
        ]

    def draw(self) -> Choice:
        """One of the choices, by weight."""
        return self._rng.choices(self._choices, self._weights)[0]


class Interleaving(Generic[Drawn]):
    """Plays that go on beside each other, with single moves in between."""

    def __init__(
        self,
        rng: Random,
        moves: Mix[Callable[[], Drawn | None]],
        plays: Mix[Callable[[], Iterator[Drawn]]],
    ) -> None:
        self._rng = rng
        self._moves = moves
        self._plays = plays
        self._playing: list[Iterator[Drawn]] = []
        self._alone = False
        """Whether the one play that is on goes on undisturbed."""
        self._appetite = rng.choice((0.3, 0.5, 0.8))

    def next(self) -> Drawn | None:
        """The next operation, if there is any to make."""
        rng = self._rng
        for _ in range(20):
            if self._playing and (self._alone or rng.random() < 0.75):
                play = rng.choice(self._playing)
                operation = next(play, None)
                if operation is not None:
                    return operation
                self._playing.remove(play)
                self._alone = False
            elif len(self._playing) < 2 and rng.random() < self._appetite:
                self._playing.append(self._plays.draw()())
                self._alone = len(self._playing) == 1 and rng.random() < 0.5
            else:
                drawn = self._moves.draw()()
                if drawn is not None:
                    return drawn
        return None


class Generator(Plays):
    """An endless supply of operations for one checker; `Quiesce` ends a run."""

    def __init__(self, rng: Random, checker: Driver, focus: str = "") -> None:
        super().__init__(rng, checker)
        moves = Mix(rng, self._all_moves(), {})
        plays = Mix(rng, self._all_plays(), FOCUS.get(focus, {}))
        self._drawn: Interleaving[Operation] = Interleaving(rng, moves, plays)

    def next(self) -> Operation:
        """The next operation; it is legal in the present state, most of the time."""
        return self._drawn.next() or Quiesce()
