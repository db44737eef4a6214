"""Whether a time got slower: an interval for the ratio of head to base, from paired rounds.

A round is a pair of processes of its own, so that what a process is born with (where its memory
lies, how it hashes) is part of the spread. Its ratio is the median of ratios of samples taken in
turns. The interval is that of Hodges and Lehmann for the centre of the logarithms, by the signed
ranks of Wilcoxon [1]: it assumes that a ratio is as likely to be above its centre as below, and no
more of how noise is distributed.

FAIL needs an interval wholly beyond the limit; its level is divided among all times of a gate
(Bonferroni), so that the chance of one false alarm among them is at most `FALSE_ALARM`. PASS needs
one wholly within, at a level of its own: what is known neither way is INCONCLUSIVE.

[1] Hollander, Wolfe: Nonparametric Statistical Methods, 3.3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

FALSE_ALARM = 0.01
"""Of a whole gate, for times that are exactly at their limits; less for those within."""
MISSED = 0.05
"""Of one time: to be passed although it is at its limit."""


class Decision(StrEnum):
    """What is known."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True)
class Change:
    """Head's time over base's."""

    ratio: float
    """The estimate of Hodges and Lehmann."""
    low: float
    """At least, but for a chance of `FALSE_ALARM` among all times; 0 if too few rounds tell."""
    high: float
    """At most, but for a chance of `MISSED`; infinite if too few rounds tell."""
    rounds: int

    def decide(self, slower: float) -> Decision:
        """Whether it may be so much slower."""
        if self.low > 1 + slower:
            return Decision.FAIL
        return Decision.PASS if self.high < 1 + slower else Decision.INCONCLUSIVE


def change(ratios: Sequence[float], times: int) -> Change:
    """Of one time among `times` that are gated together; ratios by round, all above 0."""
    if not ratios or min(ratios) <= 0 or not all(map(math.isfinite, ratios)):
        raise ValueError(f"expected ratios above 0, at least one, got {list(ratios)[:5]}")
    logs = np.log(ratios)
    first, second = np.triu_indices(len(logs))
    means = np.sort((logs[first] + logs[second]) / 2)
    cut_low = _outside(len(logs), FALSE_ALARM / times)
    cut_high = _outside(len(logs), MISSED)
    return Change(
        ratio=math.exp(float(np.median(means))),
        low=math.exp(means[cut_low]) if cut_low is not None else 0.0,
        high=math.exp(means[len(means) - 1 - cut_high]) if cut_high is not None else math.inf,
        rounds=len(logs),
    )


def rounds_needed(times: int) -> int:
    """The fewest rounds in which anything can fail."""
    return next(n for n in range(1, 100) if _outside(n, FALSE_ALARM / times) is not None)


def _outside(count: int, level: float) -> int | None:
    """How many of the smallest means of pairs lie outside a bound of that level; None for none.

    A mean of two has rank k (from 0 on) with the chance that the signed-rank sum is at most k.
    """
    chances = np.array([1.0])
    for rank in range(1, count + 1):
        with_it = np.concatenate([np.zeros(rank), chances])
        without = np.concatenate([chances, np.zeros(rank)])
        chances = (with_it + without) / 2
    inside = np.searchsorted(np.cumsum(chances), level * (1 + 1e-12), side="right")
    return int(inside) - 1 if inside else None
