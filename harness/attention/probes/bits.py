"""Whether two runs agree to the bit, and what that is worth for a kernel that never repeats itself.

Bits that differ between two versions of a problem mean something only if they do not differ between
two runs of the same version. A kernel that declares determinism=none is run several times more: if
it repeats both results, each different from the other, the versions are to blame; if it does not,
each result has to be right within the rounding budget instead. A kernel that declares more and does
not repeat itself breaks what it declared (K4).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvassay.harness.attention.build import Built
from kvassay.harness.attention.compare import Comparison, judged
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.explain import explain
from kvassay.harness.attention.probes.counting import Row, rows_of
from kvassay.harness.attention.probes.masks import place, story
from kvassay.harness.attention.wrong import Anomaly, Wrong
from kvassay.harness.budget import expect
from kvassay.harness.contract import AttentionResult, Determinism

REPEATS = 4
"""Further runs of a kernel that promises no determinism."""


@dataclass(frozen=True)
class Law:
    """What is broken if the two differ."""

    invariant: str
    anomaly: Anomaly
    expected: str


@dataclass(frozen=True)
class Run:
    """A problem in memory, and a copy of what came back, before another call may write over it."""

    built: Built
    result: AttentionResult

    @classmethod
    def of(cls, kernel: Kernel, built: Built) -> Run:
        """Call the kernel; raises what it raises."""
        result = kernel.attend(built)
        lse = None if result.lse is None else result.lse.detach().cpu().clone()
        return cls(built, AttentionResult(result.output.detach().cpu().clone(), lse))

    def repeats(self, kernel: Kernel) -> bool:
        """Whether the same memory gives the same bits again."""
        claims = kernel.declaration.determinism is not Determinism.NONE
        for _ in range(1 if claims else REPEATS):
            if differ(self.result, Run.of(kernel, self.built).result).any():
                return False
        return True

    def compared(self, kernel: Kernel) -> Comparison:
        """What the budget says of it."""
        expected = expect(self.built.batch, kernel.declaration.rounding)
        return Comparison(self.built, self.result, expected, judged(kernel, self.result, expected))


def differ(one: AttentionResult, other: AttentionResult) -> Tensor:
    """``bool [num_tokens, num_q_heads]``: where two results differ in a bit of output or LSE.

    Zeros of either sign are the same, and so are all NaN.
    """
    apart = _differ(one.output, other.output).any(dim=-1)
    if one.lse is not None and other.lse is not None:
        apart = apart | _differ(one.lse, other.lse)
    return apart


def _differ(one: Tensor, other: Tensor) -> Tensor:
    return ~((one == other) | (one.isnan() & other.isnan()))


def compared(
    kernel: Kernel,
    first: Run,
    second: Built,
    law: Law,
    *,
    rows: Tensor | None = None,
    exact: bool = True,
) -> Wrong | None:
    """Run a second version and compare `rows` (``bool [num_tokens]``, None: all) to the bit.

    Where they need not be `exact`, or the kernel does not repeat itself, the second result has to
    lie within the rounding budget. Raises what the kernel raises.
    """
    other = Run.of(kernel, second)
    apart = _within(differ(first.result, other.result), rows)
    if not apart.any():
        return None
    if exact:
        # The second first: a kernel that alternates between two results is seen to do so.
        if other.repeats(kernel) and first.repeats(kernel):
            return _wrong(law, second, apart, "other bits")
        if kernel.declaration.determinism is not Determinism.NONE:
            return _unrepeated(kernel, second)
    return _by_budget(kernel, first, other, law, rows)


def _within(apart: Tensor, rows: Tensor | None) -> Tensor:
    return apart if rows is None else apart & rows[:, None]


def _unrepeated(kernel: Kernel, built: Built) -> Wrong:
    declared = kernel.declaration.determinism
    expected = f"the same bits in two runs, as determinism={declared} says"
    return Wrong("K4", Anomaly.BITS, expected, f"other bits, contents={built.case.contents}")


def _by_budget(
    kernel: Kernel, first: Run, second: Run, law: Law, rows: Tensor | None
) -> Wrong | None:
    """The second must be right; where the first is wrong already, that is what is said."""
    plain, seen = first.compared(kernel), second.compared(kernel)
    if not plain.right:
        return explain(kernel, first.built.case, plain)
    wrong = _within(seen.judgement.wrong_rows, rows)
    if seen.judgement.problem is None or not wrong.any():
        return None
    return _wrong(law, second.built, wrong, seen.judgement.problem)


def _wrong(law: Law, built: Built, apart: Tensor, words: str) -> Wrong:
    rows: dict[int, Row] = {row.token: row for row in rows_of(built)}
    places = torch.nonzero(apart).tolist()
    lines = story((rows[token], head, words) for token, head in places)
    got = f"{words} in {place(rows[places[0][0]])}"
    return Wrong(law.invariant, law.anomaly, law.expected, got, lines)
