"""A machine from what was seen of it: the cost model's five constants, fitted to measured steps.

Matmul rate, bandwidth, seconds per step, sequence and entry, such that the logarithms of predicted
and measured seconds differ least: a step of a millisecond counts as much as one of a hundred. Large
differences count by their size, small ones by its square, lest a single case turn all the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

from kvassay.harness.roofline import Ceiling
from kvassay.harness.virtual.cost import Cost, Machine, StepWork
from kvassay.harness.virtual.model import Model

STARTS = (
    (1e11, 1e10, 1e-3, 1e-4, 1e-3),
    (1e12, 1e11, 1e-3, 1e-4, 1e-3),
    (1e14, 1e12, 1e-3, 1e-5, 1e-4),
)
"""FLOP/s, bytes/s, s, s, s: where the search begins; the best end counts."""
SMALL = 0.1
"""Differences of logarithms up to which squares count."""


@dataclass(frozen=True)
class Observed:
    """One step, as it was measured."""

    work: StepWork
    seconds: float


def fit(observed: Sequence[Observed], model: Model, name: str, source: str) -> Machine:
    """The machine that explains `observed` best; `ValueError` for fewer than five steps."""
    from scipy.optimize import least_squares  # type: ignore[import-untyped]

    if len(observed) < len(STARTS[0]):
        raise ValueError(f"expected at least {len(STARTS[0])} steps, got {len(observed)}")

    def misses(parameters: Sequence[float]) -> list[float]:
        cost = Cost(model, _machine([exp(value) for value in parameters], name, source))
        return [log(cost.seconds(one.work) / one.seconds) for one in observed]

    ends = [
        least_squares(misses, [log(value) for value in start], loss="soft_l1", f_scale=SMALL)
        for start in STARTS
    ]
    best = min(ends, key=lambda end: float(end.cost))
    return _machine([exp(value) for value in best.x], name, source)


def _machine(values: Sequence[float], name: str, source: str) -> Machine:
    matmul, bandwidth, step, chunk, entry = (float(value) for value in values)
    return Machine(name, Ceiling(bandwidth, matmul), 0, 1.0, 1.0, step, chunk, entry, source)


def largest_miss(observed: Sequence[Observed], cost: Cost) -> float:
    """The largest ratio, either way, of predicted and measured seconds, less 1."""
    ratios = [cost.seconds(one.work) / one.seconds for one in observed]
    return max(max(ratio, 1 / ratio) for ratio in ratios) - 1
