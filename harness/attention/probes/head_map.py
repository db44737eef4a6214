"""Query head h reads KV head h // ratio: which one it did read is told by the output (K7).

Each KV head has its own needle, at the position of its number, and value j of head h is the unit
vector ``j + h * KV heads``: the output names the head whose keys and the head whose values were
read. Head counts that are no multiple cannot be computed and have to be refused (`heads-refused`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from random import Random

import torch
from torch import Tensor

from kvassay.harness.attention.case import Case, Contents
from kvassay.harness.attention.check import Check, register
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.oracle_kernel import OracleKernel, twisted
from kvassay.harness.attention.probes import needle
from kvassay.harness.attention.probes.counting import F64, Row, rows_of
from kvassay.harness.attention.probes.elsewhere import fatal
from kvassay.harness.attention.probes.masks import place, story
from kvassay.harness.attention.probes.shapes import fitted, taken
from kvassay.harness.attention.wrong import Anomaly, Refused, Wrong
from kvassay.harness.contract import AttentionBatch, AttentionResult, Capability
from kvassay.harness.violation import Crash

HEADS = (
    (4, 2),
    (6, 2),
    (8, 2),
    (3, 3),
    (12, 4),
    (14, 2),
    (8, 8),
    (5, 1),
    (7, 1),
    (16, 1),
    (32, 8),
)
"""Ratios 1, 2, 3, 4, 7 and all to one, with other numbers of KV heads."""
UNEVEN = ((3, 2), (5, 2), (7, 4), (2, 4), (1, 2))


# ------------------------------------------------------------------------------------- the map


def judge(kernel: Kernel, case: Case) -> Wrong | None:
    """Which KV head every query head has read; nothing of other contents.

    A kernel that misses the position of a needle, whatever the head, has another fault.
    """
    heads, ratio = case.num_kv_heads, case.num_q_heads // case.num_kv_heads
    if case.contents is not Contents.HEADS or heads**2 > case.head_dim_v or case.sinks:
        return None
    built = kernel.build(case)
    output = kernel.attend(built).output.detach().cpu().to(F64)
    wrong: list[tuple[Row, int, tuple[int, int] | None]] = []
    for row in rows_of(built):
        for head in range(case.num_q_heads):
            own = head // ratio
            if own >= row.length or not row.visible[own]:
                continue
            read = _read(output[row.token, head], heads)
            if read != (own, own):
                wrong.append((row, head, read))
    if not wrong:
        return None
    alone = needle.judge(kernel, replace(case, contents=Contents.NEEDLE, mark=wrong[0][1] // ratio))
    return alone if alone is not None and alone.invariant != "K7" else _wrong(case, wrong)


def _read(output: Tensor, heads: int) -> tuple[int, int] | None:
    """The KV heads whose keys and whose values made an output; None if it is no such vector."""
    large = torch.nonzero(~(output.abs() < 0.5))[:, 0].tolist()
    if len(large) != 1 or large[0] >= heads**2 or not output[large[0]] > 0:
        return None
    return large[0] % heads, large[0] // heads


def _wrong(case: Case, wrong: list[tuple[Row, int, tuple[int, int] | None]]) -> Wrong:
    """It is the map only if every output is that of some head."""
    ratio = case.num_q_heads // case.num_kv_heads
    row, head, read = wrong[0]
    known = all(each is not None for _, _, each in wrong)
    return Wrong(
        "K7" if known else "K1",
        Anomaly.HEAD if known else Anomaly.OUTPUT,
        f"query head {head} of {case.num_q_heads} to read KV head {head // ratio} of "
        f"{case.num_kv_heads} in {place(row)}",
        _words(read),
        story((each, h, _words(what)) for each, h, what in wrong),
    )


def _words(read: tuple[int, int] | None) -> str:
    if read is None:
        return "what no KV head makes of the needles"
    key, value = read
    if key == value:
        return f"KV head {key}"
    return f"the keys of KV head {key} and the values of KV head {value}"


def cases(kernel: Kernel, rng: Random) -> Iterable[Case]:
    """All ratios that are accepted, at decode and in a chunk."""
    base = fitted(kernel, contents=Contents.HEADS)
    if base is None:
        return
    for seqs in (((9, 1), (40, 1)), ((12, 3), (70, 5))):
        for q, kv in HEADS:
            if taken(kernel, base, num_q_heads=q, num_kv_heads=kv):
                yield replace(
                    base, seqs=seqs, num_q_heads=q, num_kv_heads=kv, seed=rng.randrange(2**31)
                )


register(
    Check(
        "head-map",
        "query head h reads the keys and values of KV head h // ratio",
        ("K7",),
        cases,
        judge,
        twisted("next-head-k"),
    )
)


# -------------------------------------------------------------------------------- no such map


def judge_uneven(kernel: Kernel, case: Case) -> Wrong | None:
    """Refused; any error is one, but for kernels that say they validate their input."""
    if case.num_q_heads % case.num_kv_heads == 0:
        return None
    heads = f"{case.num_q_heads} query heads and {case.num_kv_heads} KV heads"
    even = replace(case, num_q_heads=2, num_kv_heads=1)
    death = fatal(kernel, case, beside=even)
    if death is not None:
        return Wrong("K7", Anomaly.UNREFUSED, f"{heads} refused", death)
    try:
        kernel.attend(kernel.build(case))
    except Refused:
        return None
    except Crash as crash:
        if crash.hangs or kernel.has(Capability.VALIDATES_INPUT):
            raise
        return None
    return Wrong("K7", Anomaly.UNREFUSED, f"{heads} refused", "a result")


def uneven_cases(kernel: Kernel, rng: Random) -> Iterator[Case]:
    """Head counts that are no multiple of the KV heads."""
    base = fitted(kernel)
    if base is None:
        return
    for q, kv in UNEVEN:
        for seqs in (((9, 1), (20, 1)), ((9, 3),)):
            yield replace(
                base, seqs=seqs, num_q_heads=q, num_kv_heads=kv, seed=rng.randrange(2**31)
            )


class _Credulous(OracleKernel):
    """Answers with zeros what cannot be computed."""

    def __call__(self, batch: AttentionBatch) -> AttentionResult:
        if batch.query.shape[1] % batch.key_cache.shape[2] == 0:
            return super().__call__(batch)
        shape = (*batch.query.shape[:2], batch.value_cache.shape[3])
        return AttentionResult(batch.query.new_zeros(shape), torch.zeros(shape[:2]))


register(
    Check(
        "heads-refused",
        "head counts that are no multiple of the KV heads are refused",
        ("K7",),
        uneven_cases,
        judge_uneven,
        _Credulous,
        only_if_refused=True,
    )
)
