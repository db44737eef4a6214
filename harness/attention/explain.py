"""A wrong result in words: where it is wrong, what it looks like, and which invariant that breaks.

Of all twists, the simplest whose result agrees with the kernel's is the explanation. Without one,
what nobody may depend on is taken out of the case (garbage, addresses): if the kernel is right
then, that is what it depends on. Else the oracle is all that convicts (K1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from kvassay.harness.attention.case import CacheLayout, Case, Garbage, Placement, RowLayout
from kvassay.harness.attention.compare import Comparison, compare
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.keys_seen import keys_seen
from kvassay.harness.attention.likeness import common_factor, f64, likeness
from kvassay.harness.attention.twist import ADDRESS, LSE, OUTPUT, SCALE, TAIL, Law
from kvassay.harness.attention.wrong import Anomaly, Refused, Wrong
from kvassay.harness.violation import Crash

EXPECTED = "the oracle's result within the budget"
MOST_LINES = 4


@dataclass(frozen=True)
class Explanation:
    """What is broken, and in which words."""

    law: Law
    words: str
    """The same for every case that shows the same fault."""
    detail: str = ""


def explain(kernel: Kernel, case: Case, seen: Comparison) -> Wrong:
    """The conviction for a result that the budget rejects."""
    explanation = _explanation(kernel, case, seen)
    story = [f"wrong: {line}" for line in where(case, seen.judgement.wrong_rows)]
    story += [text for text in (explanation.words, explanation.detail) if text]
    story += keys_seen(kernel, case, seen.judgement.wrong_rows)
    invariant, anomaly = explanation.law
    got = str(seen.judgement.problem)
    if explanation.words:
        got = f"{got}; {explanation.words}"
    return Wrong(invariant, anomaly, EXPECTED, got, tuple(story), explanation.words)


def _explanation(kernel: Kernel, case: Case, seen: Comparison) -> Explanation:
    if _only_empty_rows(seen):
        return Explanation(("K3", Anomaly.EMPTY), "")
    twist = likeness(seen)
    if twist is not None:
        return Explanation((twist.invariant, twist.anomaly), f"it looks as if {twist.words}")
    for law, without, plain in _plainer(case):
        if is_right(kernel, plain):
            return Explanation(law, f"it is right {without}")
    return _by_numbers(case, seen)


def _by_numbers(case: Case, seen: Comparison) -> Explanation:
    """What can still be told from the numbers alone."""
    output = f64(seen.result.output)
    if not output[~seen.expected.empty].isfinite().all():
        return Explanation(("K12", Anomaly.RANGE), "")
    factor = common_factor(output, seen)
    if factor is not None:
        law = SCALE if case.v_scale != "none" else OUTPUT
        return Explanation(law, "the output has a factor too many", f"factor: {factor:.4g}")
    return Explanation(LSE, "only the LSE is wrong") if _only_lse(seen) else Explanation(OUTPUT, "")


def _only_lse(seen: Comparison) -> bool:
    found, limits = seen.judgement, seen.judgement.limits
    if found.lse is None or found.lse <= limits.lse:
        return False
    return all(getattr(found, n) <= getattr(limits, n) for n in ("row", "element", "gain"))


def _only_empty_rows(seen: Comparison) -> bool:
    """Whether what is wrong are rows that see no key."""
    wrong = seen.judgement.wrong_rows.any(dim=1)
    return bool(wrong.any()) and bool(seen.expected.empty[wrong].all())


# ------------------------------------------------------------------------- what may not matter


def _plainer(case: Case) -> Iterator[tuple[Law, str, Case]]:
    """Cases that must come to the same, and what a kernel depends on that is right on them."""
    if case.garbage is not Garbage.ZERO:
        plain = replace(case, garbage=Garbage.ZERO)
        yield TAIL, "once there are zeros where nothing may be read", plain
    if case.evicted:
        yield (
            TAIL,
            "once the blocks left of the window are still there",
            replace(case, evicted=False),
        )
    if case.placement is not Placement.IDENTITY:
        plain = replace(case, placement=Placement.IDENTITY)
        yield ADDRESS, "once the blocks lie in order", plain
    if case.cache_layout not in (CacheLayout.NHD, CacheLayout.V_IN_K):
        yield ADDRESS, "with a dense cache", replace(case, cache_layout=CacheLayout.NHD)
    if case.row_layout is not RowLayout.DENSE:
        yield ADDRESS, "with dense rows", replace(case, row_layout=RowLayout.DENSE)


def is_right(kernel: Kernel, case: Case) -> bool:
    """Whether the kernel's result on a case is accepted; False where there is none."""
    try:
        return compare(kernel, case).right
    except (Refused, Crash, Wrong, ValueError):
        return False


# ----------------------------------------------------------------------------------- in words


def where(case: Case, wrong: Tensor) -> list[str]:
    """Which positions and heads of which sequences are wrong: ``bool [tokens, heads]``."""
    lines: list[str] = []
    start, more = 0, 0
    for index, (keys, queries) in enumerate(case.seqs):
        rows = wrong[start : start + queries]
        start += queries
        if not rows.any():
            continue
        if len(lines) == MOST_LINES:
            more += 1
            continue
        first = keys - queries
        places = ranges([first + row for row in rows.any(dim=1).nonzero().flatten().tolist()])
        heads = ranges(rows.any(dim=0).nonzero().flatten().tolist())
        which = "every row" if rows.any(dim=1).all() else f"positions {places}"
        whose = "every head" if rows.any(dim=0).all() else f"heads {heads}"
        lines.append(f"sequence {index} (keys: {keys}, queries: {queries}): {which}, {whose}")
    return [*lines, f"sequences beyond these: {more}"] if more else lines


def ranges(numbers: list[int]) -> str:
    """``0 to 3, 7`` for rising numbers."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in parts)
