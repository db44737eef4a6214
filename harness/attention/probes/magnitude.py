"""Logits in the hundreds of thousands: finite inputs give finite outputs (K12).

Nearly all rows are then ruled by one key, whose value is the output; where the best two logits are
so close that rounding them could change their order, only finiteness is asked for. What is wrong
breaks K12 if the kernel is right on the same problem at an ordinary magnitude.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from random import Random

import torch
from torch import Tensor

from kvassay.harness.attention.build import Built
from kvassay.harness.attention.case import Case, Contents
from kvassay.harness.attention.check import Check, register
from kvassay.harness.attention.compare import compare
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.explain import explain
from kvassay.harness.attention.oracle_kernel import spoiled
from kvassay.harness.attention.probes.counting import F64, Row, rows_of
from kvassay.harness.attention.probes.masks import place, story
from kvassay.harness.attention.probes.shapes import HALF_FIRST, ONE_KV_HEAD, decode, fitted, lattice
from kvassay.harness.attention.wrong import Anomaly, Wrong
from kvassay.harness.contract import AttentionBatch, AttentionResult, Capability, Rounding
from kvassay.reference.attention import Sequence, sequences

CLEAR = 2.0**-6
"""How far the best logit leads, relative to the largest: four roundings to bfloat16."""
STORED = (Rounding.S, Rounding.EAGER)
"""Classes whose scores are stored in the query's type, which in float16 ends at 65,504."""
OVERFLOWS = 88.0
"""Logits of which float32 cannot hold the exponential."""

Bad = tuple[Row, int, str]
"""A row, a head, and what is wrong there."""


# ---------------------------------------------------------------------------------------- judging


def judge(kernel: Kernel, case: Case) -> Wrong | None:
    """Everything finite, and every clear row ruled by its best key."""
    if case.contents is not Contents.HUGE:
        return None
    built = kernel.build(case)
    result = kernel.attend(built)
    rows = [row for row in rows_of(built) if row.visible.any()]
    expected = "finite results of finite inputs"
    bad = list(_not_finite(case, rows, result))
    if not bad and not case.softcap:
        expected = "every row to have the value of the key with by far the largest logit"
        bad = list(_misruled(built, rows, result))
    if not bad:
        return None
    plain = replace(case, contents=Contents.PLAIN)
    seen = compare(kernel, plain)
    return _wrong(bad, expected) if seen.right else explain(kernel, plain, seen)


def _wrong(bad: list[Bad], expected: str) -> Wrong:
    row, head, words = bad[0]
    return Wrong(
        "K12", Anomaly.RANGE, expected, f"{words} in {place(row)}, head {head}", story(bad)
    )


def _not_finite(case: Case, rows: list[Row], result: AttentionResult) -> Iterator[Bad]:
    output = result.output.isfinite().all(dim=-1)
    lse = torch.ones_like(output) if result.lse is None else result.lse.isfinite()
    for row in rows:
        for head in range(case.num_q_heads):
            if not output[row.token, head]:
                yield row, head, "an output that is not finite"
            elif not lse[row.token, head]:
                yield row, head, "an LSE that is not finite"


def _misruled(built: Built, rows: list[Row], result: AttentionResult) -> Iterator[Bad]:
    output = result.output.detach().cpu().to(F64)
    by_token = {row.token: row for row in rows}
    for sequence in sequences(built.batch):
        for index, token in enumerate(range(sequence.rows.start, sequence.rows.stop)):
            if token not in by_token:
                continue
            for head in range(built.case.num_q_heads):
                if not _ruled(sequence, index, head, output[token, head]):
                    yield by_token[token], head, "the value of another key, or of none"


def _ruled(sequence: Sequence, index: int, head: int, output: Tensor) -> bool:
    """Whether the value nearest to an output is that of the best key; a sink's value is 0."""
    logits = sequence.logits[head, index]
    values = sequence.value[:, head // sequence.group]
    if sequence.sinks is not None:
        logits = torch.cat([logits, sequence.sinks[head : head + 1]])
        values = torch.cat([values, torch.zeros_like(values[:1])])
    visible = ~logits.isneginf()
    logits, values = logits[visible], values[visible]
    ranked = logits.sort(descending=True)
    best = ranked.values
    if len(best) > 1 and best[0] - best[1] < CLEAR * logits.abs().max():
        return True
    return int((values - output).norm(dim=-1).argmin()) == int(ranked.indices[0])


# ------------------------------------------------------------------------------------------ cases


def cases(kernel: Kernel, rng: Random) -> Iterable[Case]:
    """Every type, at decode and in chunks; then soft caps and sinks."""
    bases = []
    for dtype in HALF_FIRST:
        if dtype == "float16" and kernel.declaration.rounding in STORED:
            continue
        base = fitted(kernel, dtypes=(dtype,), heads=ONE_KV_HEAD, contents=Contents.HUGE)
        if base is not None:
            bases.append(base)
    for base in bases:
        size = base.block_size
        yield replace(base, seqs=decode(*lattice(size)), seed=rng.randrange(2**31))
        chunks = ((2 * size + 5, 7), (9, 9), (300, 2))
        yield replace(base, seqs=chunks, seed=rng.randrange(2**31))
    for base in bases:
        changes: list[tuple[Capability, dict[str, object]]] = [
            (Capability.SOFTCAP, {"softcap": 30.0}),
            (Capability.SINKS, {"sinks": True}),
            (Capability.WINDOW, {"window_left": 5}),
        ]
        for capability, change in changes:
            if kernel.has(capability):
                seqs = decode(*lattice(base.block_size))
                yield replace(base, seqs=seqs, seed=rng.randrange(2**31), **change)  # type: ignore[arg-type]


def _overflowing(batch: AttentionBatch, result: AttentionResult) -> AttentionResult:
    """As if the largest logit were not subtracted before the exponential is taken."""
    lost = result.lse.abs() > OVERFLOWS
    return AttentionResult(result.output.masked_fill(lost[..., None], torch.nan), result.lse)


register(
    Check(
        "magnitude",
        "finite inputs give finite outputs, and right ones, at any logit magnitude",
        ("K12",),
        cases,
        judge,
        spoiled(_overflowing),
    )
)
