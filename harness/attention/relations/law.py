"""What a relation says: versions of a problem, what to compare of them, and what it convicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvassay.harness.attention.relations.problem import Problem
from kvassay.harness.attention.relations.view import View
from kvassay.harness.attention.wrong import Anomaly
from kvassay.harness.contract import Determinism

LEVELS = tuple(Determinism)
"""From the weakest claim to the strongest; each includes those before it."""

Sides = Callable[[Sequence[Sequence[View]]], tuple[View, View]]
"""From the rows of every sequence of every version to what has to be the same."""


@dataclass(frozen=True)
class Law:
    """What is broken where the two differ."""

    invariant: str
    anomaly: Anomaly
    expected: str
    """In words."""
    exact_from: Determinism | None = None
    """The weakest claim under which bits must be equal: NONE for the law itself, None for never."""
    bits: str | None = None
    """The invariant that is broken where only bits differ, if it is another one."""
    direct: bool = False
    """Whether a difference shows what is wrong even where all results are wrong by themselves."""

    def exact(self, claimed: Determinism) -> bool:
        """Whether bits are looked at."""
        least = self.exact_from
        return least is not None and LEVELS.index(claimed) >= LEVELS.index(least)


@dataclass(frozen=True)
class Arranged:
    """Versions of a problem, in the order in which the kernel gets them, and what to compare.

    One that appears twice is the same memory both times.
    """

    problems: tuple[Problem, ...]
    sides: Sides
