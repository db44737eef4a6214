"""What a judge hands back: convictions, and how to show each of them again on another subject."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Effort:
    """How much one fault or control may take."""

    examples: int = 1000
    """Of managers and indexes, for each suite; known scenarios come first."""
    pairs: int = 60
    """Of pairs."""
    cases: int = 200
    """Of kernels, for each check."""
    seconds: float = 30.0
    """Of processor time, for each check of a kernel; cases are what should end it."""
    shrink_seconds: float = 4.0
    """For making a failing case of a kernel smaller."""
    enough: int = 1
    """Of kernels, how many checks have to convict before no more are asked."""
    without: frozenset[str] = frozenset()
    """Checks that are taken out, by name; of managers and indexes ids of invariants, too."""
    blind: bool = False
    """Whether managers and indexes are judged without their own inspection."""


@dataclass(frozen=True)
class Found:
    """One conviction."""

    check: str
    """The suite that convicted, or the check."""
    invariant: str
    told: str
    again: Callable[[Any], frozenset[str]]
    """The invariants that another subject breaks on the same counterexample."""
    examples: int | None = None
    """Examples until then; 0 for a known scenario, None where examples are not drawn."""
    operations: int | None = None
    """Of the shrunk counterexample, commits not counted; None where nothing is shrunk to a list."""
    finder: str = ""
    """The check that found it, under the name by which it can be taken out (see `checks`)."""


@dataclass
class Judged:
    """What came of one trial."""

    found: list[Found] = field(default_factory=list)
    examples: int = 0
    """Tried in all."""

    def nearest(self, accepted: frozenset[str]) -> Found:
        """The shortest counterexample: it is nearest to the cause. Of equals, an accepted one."""

        def rank(one: Found) -> tuple[int, bool]:
            return one.operations or 0, one.invariant not in accepted

        return min(self.found, key=rank)
