"""Two tools' samples of the same server, as ratios of quantiles with an interval.

A turn of one tool and the next one of the other are a pair, taken within a second of each other;
pairs are what is resampled, so that what slows the machine for a while is in both samples alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np

from kvassay.suites.benchmarks.agreement_vllm import Sample

WITHIN = 0.05
"""How far from 1 a ratio may be."""
CONFIDENCE = 0.95
RESAMPLED = 4000


@dataclass(frozen=True)
class Quantity:
    """Two numbers, one of each tool; judged if they are the same by definition."""

    name: str
    theirs: Callable[[Sample], float]
    ours: Callable[[Sample], float]
    same: bool = True


QUANTITIES = (
    Quantity("TTFT, both from the sending", lambda s: s.ttft, lambda s: s.ttft),
    Quantity(
        "TTFT, both from the intended start",
        lambda s: s.waited + s.ttft,
        lambda s: s.waited + s.ttft,
    ),
    Quantity(
        "TTFT, each by its own definition", lambda s: s.ttft, lambda s: s.waited + s.ttft, False
    ),
    Quantity("TPOT", lambda s: s.tpot, lambda s: s.tpot),
)


@dataclass(frozen=True)
class Round:
    """What both tools saw of a scene at the same time, in the order of the trace."""

    burst: int
    theirs: Sequence[Sample]
    ours: Sequence[Sample]
    load: float = 0.0
    """Of the machine at the end, over the last minute."""

    def turns(self, of: Callable[[Sample], float], samples: Sequence[Sample]) -> list[float]:
        """The mean of each turn."""
        starts = range(0, len(samples), self.burst)
        return [fmean(map(of, samples[at : at + self.burst])) for at in starts]

    def pairs(self, quantity: Quantity) -> list[tuple[float, float]]:
        """Theirs and ours, by turn."""
        theirs = self.turns(quantity.theirs, self.theirs)
        return list(zip(theirs, self.turns(quantity.ours, self.ours), strict=True))

    def overlaps(self) -> int:
        """How often a turn began before one of the other tool had ended."""
        turns = [
            (min(one.sent for one in turn), max(one.ended for one in turn))
            for samples in (self.theirs, self.ours)
            for at in range(0, len(samples), self.burst)
            for turn in [samples[at : at + self.burst]]
        ]
        return sum(end > begin for (_, end), (begin, _) in pairwise(sorted(turns)))


@dataclass(frozen=True)
class Quantile:
    """The same quantile of all turns of both tools."""

    theirs: float
    """In seconds."""
    ours: float
    low: float
    """Of the interval of their ratio."""
    high: float

    @property
    def ratio(self) -> float:
        """Ours to theirs."""
        return self.ours / self.theirs

    @property
    def verdict(self) -> str:
        """Whether they agree; only an interval that is wholly inside or outside decides."""
        if self.low >= 1 - WITHIN and self.high <= 1 + WITHIN:
            return "agree"
        if self.high < 1 - WITHIN or self.low > 1 + WITHIN:
            return "DISAGREE"
        return "not decided"


@dataclass(frozen=True)
class Compared:
    """One quantity of one scene, over all turns of all rounds."""

    quantity: Quantity
    median: Quantile
    quartile: Quantile
    """The lower one: of what disturbs a machine, it has the least."""
    rounds: tuple[float, ...]
    """The ratio of medians in each round."""
    judged: bool
    """Whether both are to be the same."""


def compare(quantity: Quantity, rounds: Sequence[Round], *, alike: bool = True) -> Compared:
    """Over the rounds of one scene, at least one; `alike` if its chunks mean the same to both."""
    each = [np.array(one.pairs(quantity)) for one in rounds]
    pairs = np.concatenate(each)
    by_round = tuple(_ratio(one, 0.5) for one in each)
    median, quartile = _quantile(pairs, 0.5), _quantile(pairs, 0.25)
    return Compared(quantity, median, quartile, by_round, quantity.same and alike)


def _quantile(pairs: Any, share: float) -> Quantile:
    theirs, ours = np.quantile(pairs, share, axis=0).tolist()
    return Quantile(theirs, ours, *interval(pairs, share))


def _ratio(pairs: Any, share: float) -> float:
    theirs, ours = np.quantile(pairs, share, axis=0)
    return float(ours / theirs)


def interval(pairs: Any, share: float) -> tuple[float, float]:
    """Of the ratio of quantiles, from resampling the pairs [number, 2]; the same for the same."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(pairs), size=(RESAMPLED, len(pairs)))
    theirs, ours = np.quantile(pairs[drawn], share, axis=1).T
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(ours / theirs, [tail, 1 - tail])
    return float(low), float(high)
