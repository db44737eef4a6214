"""Samples that were taken side by side, as ratios.

Contenders take turns: a round has one sample of each, and who begins changes from round to round,
so that what slows the machine for a while slows all of them. A ratio is formed within a round; what
is published is the median of those ratios, with the quartiles as its spread.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True)
class Ratio:
    """How many times longer something took than another, over the rounds."""

    median: float
    low: float
    high: float
    rounds: int

    def __str__(self) -> str:
        return f"{self.median:.1f} ({self.low:.1f}-{self.high:.1f})"


def ratio(slower: Sequence[float], faster: Sequence[float]) -> Ratio:
    """Ratios of samples of the same rounds: median and quartiles.

    Raises `ValueError` unless both have the same number of samples, at least one.
    """
    if len(slower) != len(faster) or not slower:
        counts = f"{len(slower)} and {len(faster)}"
        raise ValueError(f"expected as many samples of both, at least one, got {counts}")
    ratios = [one / other for one, other in zip(slower, faster, strict=True)]
    if len(ratios) == 1:
        return Ratio(ratios[0], ratios[0], ratios[0], 1)
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Ratio(middle, low, high, len(ratios))


def turns(items: Sequence[Item], number: int) -> list[Item]:
    """The items in the order of round `number`."""
    first = number % len(items)
    return [*items[first:], *items[:first]]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Without the garbage collector, whose turns would fall on whoever is measured then."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Watch:
    """Seconds since it was last asked."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap or the start."""
        before, self._last = self._last, perf_counter()
        return self._last - before
