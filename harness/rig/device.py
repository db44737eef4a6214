"""What computes: a model over a memory that block tables point into.

The order within a step is part of the contract between scheduler and device: transfers first, then
everything is written before anything is read, layer by layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvassay.harness.rig.plan import Transfer


@dataclass(frozen=True)
class Work:
    """One chunk as a device sees it: nothing of it says whose it is, but for the answer."""

    name: str
    """What its scores are to be filed under."""
    tokens: tuple[int, ...]
    start: int
    """Slot of the first token; those before it hold KV, those behind it are not to be read."""
    positions: range
    """What the model is told about where the tokens stand."""
    table: tuple[int, ...]
    """Physical block of logical block 0, 1, ..."""
    samples: bool
    """Whether scores behind the last token are wanted."""

    @property
    def stop(self) -> int:
        """Tokens of its branch that have KV once it is written."""
        return self.start + len(self.tokens)


class Scores(Protocol):
    """What a model makes of the tokens before: a number for each token that could follow."""

    def best(self, count: int) -> list[tuple[float, int]]:
        """Log-probability and token of so many, the most probable first."""
        ...


class Device(Protocol):
    """A model with its memory."""

    def run(self, transfers: Sequence[Transfer], work: Sequence[Work]) -> Mapping[str, Scores]:
        """Do a step; scores of the work that samples, by name."""
        ...
