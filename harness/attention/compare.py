"""One case on one kernel beside the oracle."""

from __future__ import annotations

from dataclasses import dataclass

from kvassay.harness.attention.build import Built
from kvassay.harness.attention.case import Case
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.budget import Expected, Judgement, expect, judge
from kvassay.harness.contract import AttentionResult, Capability


@dataclass(frozen=True)
class Comparison:
    """What came back, what was to come, and what the budget says of it."""

    built: Built
    result: AttentionResult
    expected: Expected
    judgement: Judgement

    @property
    def right(self) -> bool:
        """Whether the result is accepted."""
        return self.judgement.problem is None


def compare(kernel: Kernel, case: Case) -> Comparison:
    """Call the kernel and judge it; raises `Refused`, `Crash` or `Wrong` as the kernel does."""
    built = kernel.build(case)
    result = kernel.attend(built)
    expected = expect(built.batch, kernel.declaration.rounding)
    return Comparison(built, result, expected, judged(kernel, result, expected))


def judged(kernel: Kernel, result: AttentionResult, expected: Expected) -> Judgement:
    """The budget's word, by what the kernel declares."""
    declared = kernel.declaration
    return judge(result, expected, empty_row=declared.empty_row, lse=declared.has(Capability.LSE))
