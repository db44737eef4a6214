"""Rows that see no key: of sequences without keys, and before the first key (K3).

They come back as declared: 0 with an LSE of -inf, which is the identity of a merge (its weight is
exp(-inf) = 0, and 0 times it is 0), or NaN, or not written at all. The rows beside them see what
they must, which is read as in `tomography`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from random import Random

from torch import Tensor

from kvassay.harness.attention.build import Built
from kvassay.harness.attention.case import Case, Contents
from kvassay.harness.attention.check import Check, register
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.oracle_kernel import spoiled
from kvassay.harness.attention.probes import tomography
from kvassay.harness.attention.probes.counting import F64, Row, readable, readings, rows_of
from kvassay.harness.attention.probes.masks import place, story
from kvassay.harness.attention.probes.shapes import buffered
from kvassay.harness.attention.wrong import Anomaly, Wrong
from kvassay.harness.contract import AttentionBatch, AttentionResult, Capability, EmptyRow

EXPECTED = {
    EmptyRow.ZERO: "0 and an LSE of -inf",
    EmptyRow.NAN: "NaN",
    EmptyRow.UNTOUCHED: "what was there before",
}


# ---------------------------------------------------------------------------------------- judging


def judge(kernel: Kernel, case: Case) -> Wrong | None:
    """The empty rows, then those beside them."""
    built = kernel.build(case)
    result = kernel.attend(built)
    wrong = list(_wrong_rows(kernel.declaration.empty_row, built, result))
    if wrong:
        return _explained(kernel, case, wrong)
    if not readable(case):
        return None
    others = [r for r in readings(built, result) if not (r.output_right and r.lse_right)]
    return _beside(kernel, case, others[0].row) if others else None


Bad = tuple[Row, int, Tensor]
"""A row, a head, and the output there."""


def _wrong_rows(declared: EmptyRow, built: Built, result: AttentionResult) -> Iterator[Bad]:
    output = result.output.detach().cpu().to(F64)
    lse = None if result.lse is None else result.lse.detach().cpu().to(F64)
    for row in rows_of(built):
        if row.visible.any():
            continue
        for head in range(built.case.num_q_heads):
            told = None if lse is None else lse[row.token, head]
            if not _as_declared(declared, built.case, output[row.token, head], told):
                yield row, head, output[row.token, head]


def _as_declared(declared: EmptyRow, case: Case, output: Tensor, lse: Tensor | None) -> bool:
    """A sink takes all the weight of a row without keys: its output is 0, its LSE the sink's."""
    nothing, undefined = bool((output == 0).all()), bool(output.isnan().all())
    if declared is EmptyRow.UNTOUCHED and not case.buffers:
        return True
    if case.sinks:
        return nothing or (undefined and declared is not EmptyRow.ZERO)
    if declared is EmptyRow.UNTOUCHED:
        return undefined and (lse is None or bool(lse.isnan()))
    if declared is EmptyRow.NAN:
        return undefined and (lse is None or bool(lse.isneginf() or lse.isnan()))
    return nothing and (lse is None or bool(lse.isneginf()))


def _explained(kernel: Kernel, case: Case, wrong: list[Bad]) -> Wrong:
    """One that has seen a key of its sequence is the causal mask's."""
    row, head, output = wrong[0]
    declared = kernel.declaration.empty_row
    lines = story(
        (bad, h, f"{_short(out)} instead of {EXPECTED[declared]}") for bad, h, out in wrong
    )
    if readable(case) and all(_sees(out, bad.length) for bad, _, out in wrong):
        expected = f"{place(row)} to see no key"
        return Wrong("K5", Anomaly.CAUSAL, expected, f"it sees some, in head {head}", lines)
    expected = f"{EXPECTED[declared]} in {place(row)}, which sees no key"
    return Wrong("K3", Anomaly.EMPTY, expected, f"{_short(output)} in head {head}", lines)


def _short(output: Tensor) -> str:
    """An output in words."""
    first = [f"{value:.4g}" for value in output[:3].tolist()]
    return "0, but another LSE" if bool((output == 0).all()) else f"[{', '.join(first)}, ...]"


def _sees(output: Tensor, length: int) -> bool:
    """Whether an output is the mean of unit vectors, as of some of a sequence's keys."""
    for count in range(1, length + 1):
        scaled = output * count
        whole = scaled.round()
        if bool(((scaled - whole).abs() < 0.25).all() and whole.sum() == count):
            return True
    return False


def _beside(kernel: Kernel, case: Case, row: Row) -> Wrong | None:
    """Rows with keys are wrong: because of the empty ones, unless they are wrong without them."""
    seqs = tuple((n, min(n, q) if case.causal else q) for n, q in case.seqs if n)
    alone = tomography.judge(kernel, replace(case, seqs=seqs))
    if alone is not None:
        return alone
    expected = f"{place(row)} not to depend on empty rows beside it"
    return Wrong("K3", Anomaly.EMPTY, expected, "it is right only without them")


# ------------------------------------------------------------------------------------------ cases


def cases(kernel: Kernel, rng: Random) -> Iterable[Case]:
    """Sequences without keys, and with more rows than keys; alone and beside others; sinks."""
    base = buffered(kernel, contents=Contents.COUNTED)
    if base is None:
        return
    size = base.block_size
    batches: list[tuple[tuple[int, int], ...]] = [
        ((size + 1, 1), (0, 1), (3, 1)),
        ((0, 2), (7, 3), (0, 0), (size, size)),
        ((0, 1), (0, 2)),
    ]
    if kernel.has(Capability.CAUSAL):
        batches.insert(1, ((3, 5), (size + 1, 2), (1, 4), (2, 1)))
    for seqs in batches:
        yield replace(base, seqs=seqs, seed=rng.randrange(2**31))
    if kernel.has(Capability.WINDOW):
        yield replace(base, seqs=batches[1], window_left=1, seed=rng.randrange(2**31))
    if kernel.has(Capability.SINKS):
        yield replace(base, seqs=batches[0], sinks=True, seed=rng.randrange(2**31))
        yield replace(base, seqs=batches[1], sinks=True, seed=rng.randrange(2**31))


def _ones(batch: AttentionBatch, result: AttentionResult) -> AttentionResult:
    """Puts 1 into empty rows."""
    result.output[result.lse.isneginf()] = 1.0
    return result


register(
    Check(
        "empty-rows",
        "rows that see no key are as declared, and rows beside them are as they were",
        ("K3",),
        cases,
        judge,
        spoiled(_ones),
    )
)
