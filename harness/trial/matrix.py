"""What all trials of a run show together: counts, budgets, what each invariant convicted."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kvassay.harness.trial.fate import Ended, Fate
from kvassay.harness.trial.removal import Removed

MEDIAN_SECONDS, WORST_SECONDS = 1.0, 20.0
MEDIAN_OPERATIONS = 8


@dataclass(frozen=True)
class Matrix:
    """How every trial of a run ended, and what was to be tried."""

    ended: tuple[Ended, ...]
    asked: int
    """Trials that were to be made; more than `ended` if the run was broken off."""
    seconds: float
    """Of the whole run, by the clock."""
    profile: str
    left_out: str = "nothing was left out"
    without: tuple[str, ...] = ()
    """Checks that were taken out."""
    necessity: bool = False
    """Whether it was tried what each check is needed for."""
    removed: tuple[Removed, ...] = ()
    """Checks that were drawn at random, and what survived without them."""
    seed: int = 0
    """Of that draw."""

    @property
    def complete(self) -> bool:
        """Whether all of it was tried."""
        return len(self.ended) == self.asked

    @property
    def faults(self) -> list[Ended]:
        """Of faults, in the order of family and name."""
        return sorted((one for one in self.ended if one.is_fault), key=_place)

    @property
    def controls(self) -> list[Ended]:
        """Of controls, likewise."""
        return sorted((one for one in self.ended if not one.is_fault), key=_place)

    @property
    def bad(self) -> list[Ended]:
        """What makes the run fail."""
        return sorted((one for one in self.ended if not one.good), key=_place)

    def families(self) -> list[str]:
        """In the order in which they are told."""
        return list(dict.fromkeys(one.family for one in self.faults + self.controls))

    def problems(self) -> list[str]:
        """Why the run fails, in words; empty if it does not."""
        told = [f"{one.fate.value}: {one.key}: {one.told or one.hides}" for one in self.bad]
        if not self.complete:
            told.append(f"broken off: {len(self.ended)} of {self.asked} were tried")
        if not self.ended:
            told.append("nothing was tried")
        return told

    def over_budget(self) -> list[str]:
        """Budgets that were not kept; told, and no failure, as time depends on the machine."""
        told = []
        figures = Figures.of(self.faults)
        if figures.median_seconds is not None and figures.median_seconds > MEDIAN_SECONDS:
            told.append(f"median {figures.median_seconds:.2f} s, budget {MEDIAN_SECONDS:g} s")
        slow = [one for one in self.faults if (one.seconds or 0.0) > WORST_SECONDS]
        told += [f"{one.key}: {one.seconds:.1f} s, budget {WORST_SECONDS:g} s" for one in slow]
        operations = figures.median_operations
        if operations is not None and operations > MEDIAN_OPERATIONS:
            told.append(f"median {operations:g} operations, budget {MEDIAN_OPERATIONS}")
        return told

    def by_invariant(self) -> dict[str, Uses]:
        """What each invariant convicted; those that only stand in what faults accept too."""
        accepted = Counter(each for one in self.faults for each in one.accepted)
        first = Counter(one.killers[0][1] for one in self.faults if one.fate is Fate.KILLED)
        any_of = Counter(
            invariant for one in self.faults for invariant in {name for _, name in one.killers}
        )
        known = sorted({*accepted, *first, *any_of}, key=in_order)
        return {name: Uses(accepted[name], first[name], any_of[name]) for name in known}


@dataclass(frozen=True)
class Uses:
    """What one invariant was good for."""

    accepted: int
    """Faults that name it."""
    first: int
    """Faults whose shortest counterexample shows it."""
    seen: int
    """Faults that it convicted, if only on the way."""


@dataclass(frozen=True)
class Figures:
    """Of some faults; None where nothing was measured."""

    median_seconds: float | None
    worst_seconds: float | None
    median_operations: float | None
    worst_operations: int | None
    median_examples: float | None

    @classmethod
    def of(cls, faults: Sequence[Ended]) -> Figures:
        """Over those that were convicted."""
        killed = [one for one in faults if one.killers]
        seconds = [one.seconds for one in killed if one.seconds is not None]
        operations = [one.operations for one in killed if one.operations is not None]
        examples = [one.examples for one in killed if one.examples is not None]
        return cls(
            statistics.median(seconds) if seconds else None,
            max(seconds, default=None),
            statistics.median(operations) if operations else None,
            max(operations, default=None),
            statistics.median(examples) if examples else None,
        )


def _place(one: Ended) -> tuple[str, str]:
    return one.family, one.name


def in_order(invariant: str) -> tuple[str, int, str]:
    """A2 before A10."""
    digits = invariant[1:]
    return invariant[:1], int(digits) if digits.isdigit() else 0, invariant
