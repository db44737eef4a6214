"""The interval is the signed-rank test's, turned round; what is known neither way is neither."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
from scipy import stats

from kvassay.harness.gate.deciding import (
    FALSE_ALARM,
    MISSED,
    Change,
    Decision,
    change,
    rounds_needed,
)


def ratios(seed: int, count: int, centre: float = 1.0, spread: float = 0.05) -> list[float]:
    rng = Random(seed)
    return [centre * math.exp(rng.gauss(0, spread)) for _ in range(count)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("count", [12, 25])
def test_a_bound_is_where_the_test_begins_to_reject(seed: int, count: int) -> None:
    sample, times = ratios(seed, count), 3
    found = change(sample, times)
    logs = np.log(sample)
    for bound, level, way in (
        (found.low, FALSE_ALARM / times, "greater"),
        (found.high, MISSED, "less"),
    ):
        outside = -1e-9 if way == "greater" else 1e-9
        inside = stats.wilcoxon(logs - math.log(bound) + outside, alternative=way, method="exact")
        beyond = stats.wilcoxon(logs - math.log(bound) - outside, alternative=way, method="exact")
        assert inside.pvalue > level >= beyond.pvalue


def test_the_estimate_lies_between_its_bounds() -> None:
    found = change(ratios(1, 20, 1.2), 9)
    assert found.low < found.ratio < found.high
    assert found.ratio == pytest.approx(1.2, abs=0.05)


def test_too_few_rounds_tell_nothing() -> None:
    found = change([2.0] * (rounds_needed(9) - 1), 9)
    assert found.low == 0
    assert found.decide(0.05) is Decision.INCONCLUSIVE
    assert change([2.0] * rounds_needed(9), 9).decide(0.05) is Decision.FAIL
    assert change([1.0], 1).high == math.inf


@pytest.mark.parametrize(
    ("low", "high", "decision"),
    [
        (1.06, 1.2, Decision.FAIL),
        (1.02, 1.2, Decision.INCONCLUSIVE),
        (0.98, 1.04, Decision.PASS),
        (0.5, 0.6, Decision.PASS),
    ],
)
def test_only_a_whole_interval_decides(low: float, high: float, decision: Decision) -> None:
    assert Change((low + high) / 2, low, high, 20).decide(0.05) is decision


def test_false_alarms_are_as_rare_as_stated() -> None:
    """At the limit itself, where they are most frequent, and with noise of heavy tails."""
    rng, alarms, gates, times = Random(3), 0, 400, 4
    for _ in range(gates):
        found = [
            change(
                [1.05 * math.exp(0.02 * rng.gauss(0, 1) / rng.random()) for _ in range(16)], times
            )
            for _ in range(times)
        ]
        alarms += any(one.decide(0.05) is Decision.FAIL for one in found)
    assert alarms <= stats.binom.ppf(0.9999, gates, FALSE_ALARM)


@pytest.mark.parametrize("wrong", [[], [0.0], [1.0, -1.0], [math.inf]])
def test_ratios_are_above_nothing(wrong: list[float]) -> None:
    with pytest.raises(ValueError, match="expected ratios above 0"):
        change(wrong, 1)
