"""What a step of the rig takes, as a function of what it computes, fitted to steps without reuse.

    seconds = a + b tokens + c pairs + d keys

*tokens*: computed in the step; *pairs*: of a query and a key that it sees, which is what makes a
prompt cost more than its length; *keys*: gathered through block tables. The coefficients are none
below 0, and are fitted to the relative error of the steps of a manager that never hits. The time of
a prompt with a hit is then the sum over the steps that its other tokens need: nothing of a warm run
goes into what is said of it beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from kvassay.harness.rig.plan import StepPlan


@dataclass(frozen=True)
class Load:
    """What one step computes."""

    tokens: int
    pairs: int
    keys: int

    @staticmethod
    def of(spans: Sequence[tuple[int, int]]) -> Load:
        """Of the positions [start, stop) of each sequence."""
        return Load(
            sum(stop - start for start, stop in spans),
            sum((stop * (stop + 1) - start * (start + 1)) // 2 for start, stop in spans),
            sum(stop for _, stop in spans),
        )

    @staticmethod
    def of_plan(plan: StepPlan) -> Load:
        """Of all its chunks."""
        return Load.of([(chunk.start, chunk.stop) for chunk in plan.chunks])

    def row(self) -> tuple[float, ...]:
        """The factors of the coefficients."""
        return 1.0, self.tokens, self.pairs, self.keys


@dataclass(frozen=True)
class Cost:
    """A fitted step."""

    coefficients: tuple[float, ...]
    """Seconds per step, token, pair and key."""
    error: float
    """Relative error of a step, root mean square."""
    steps: int
    """Steps that it was fitted to."""

    def seconds(self, load: Load) -> float:
        """Of one step."""
        return float(np.dot(self.coefficients, load.row()))

    def prompt(self, length: int, hit: int, step_tokens: int) -> float:
        """Seconds until the first token of a prompt that is alone."""
        starts = range(hit, length, step_tokens)
        spans = [(start, min(length, start + step_tokens)) for start in starts]
        return sum(self.seconds(Load.of([span])) for span in spans)


def fit(loads: Sequence[Load], seconds: Sequence[float]) -> Cost:
    """Least squares of the relative errors; `ValueError` for fewer steps than coefficients."""
    rows = np.array([load.row() for load in loads], dtype=float)
    took = np.array(seconds, dtype=float)
    if len(rows) < 4:
        raise ValueError(f"expected at least 4 steps to fit, got {len(rows)}")
    scale = rows.max(axis=0)
    found, _ = nnls(rows / scale / took[:, None], np.ones(len(took)))
    errors = rows / scale @ found / took - 1
    return Cost(tuple(found / scale), float(np.sqrt(np.mean(errors**2))), len(took))
