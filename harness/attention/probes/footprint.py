"""A kernel writes its own output and nothing else, and all of it (K13).

Whatever a kernel is called on, its inputs and everything around its buffers is compared byte by
byte afterwards (`memory`). This check brings the ways in which queries, caches and buffers may lie,
and looks for rows of the buffers that nobody wrote: they still hold the NaN that were there before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import torch

from kvassay.harness.attention.build import Built
from kvassay.harness.attention.case import CacheLayout, Case, RowLayout, Scaling
from kvassay.harness.attention.check import Check, register
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.oracle_kernel import spoiled
from kvassay.harness.attention.probes.counting import rows_of
from kvassay.harness.attention.probes.masks import place, story
from kvassay.harness.attention.probes.shapes import fitted, taken
from kvassay.harness.attention.wrong import Anomaly, Wrong
from kvassay.harness.contract import AttentionBatch, AttentionResult, Capability


def judge(kernel: Kernel, case: Case) -> Wrong | None:
    """Call it, which compares the memory; then look at what the buffers hold."""
    built = kernel.build(case)
    result = kernel.attend(built)
    return _unwritten(built, result) if case.buffers else None


def _unwritten(built: Built, result: AttentionResult) -> Wrong | None:
    """Rows of the buffers that see a key and hold a NaN; contents are finite."""
    left = result.output.isnan().any(dim=-1)
    if result.lse is not None:
        left = left | result.lse.isnan()
    rows = [row for row in rows_of(built) if row.visible.any() and left[row.token].any()]
    if not rows:
        return None
    lines = [
        (row, head, "NaN is left")
        for row in rows
        for head in torch.nonzero(left[row.token])[:, 0].tolist()
    ]
    expected = "every row of the buffers written"
    got = f"NaN left in {place(rows[0])}"
    return Wrong("K13", Anomaly.FOOTPRINT, expected, got, story(lines))


def cases(kernel: Kernel, rng: Random) -> Iterable[Case]:
    """All layouts of rows and caches, with buffers where they are offered."""
    base = fitted(kernel)
    if base is None:
        return
    size = base.block_size
    seqs = ((2 * size + 1, 1), (size + 2, 5), (3, 3), (4, 0))
    for change in _changes(kernel):
        if taken(kernel, base, **change):
            yield replace(base, seqs=seqs, seed=rng.randrange(2**31), **change)
            decode = tuple((keys, min(rows, 1)) for keys, rows in seqs)
            yield replace(base, seqs=decode, seed=rng.randrange(2**31), **change)


def _changes(kernel: Kernel) -> Iterator[dict[str, Any]]:
    offers = (True, False) if kernel.has(Capability.OUTPUT) else (False,)
    for buffers in offers:
        for layout in RowLayout:
            yield {"buffers": buffers, "row_layout": layout}
    yield from ({"cache_layout": layout} for layout in CacheLayout if layout not in _UNSEEN)
    if kernel.has(Capability.ALIBI, Capability.SINKS):
        yield {"alibi": True, "sinks": True}
    if kernel.has(Capability.SCALES):
        for over in (Scaling.HEAD, Scaling.TOKEN):
            yield {"cache_dtype": "float8_e4m3fn", "k_scale": over, "v_scale": over}


_UNSEEN = (CacheLayout.NHD, CacheLayout.FAR)
"""What the others have already, and memory that is too large to be compared."""


def _scales_its_query(batch: AttentionBatch, result: AttentionResult) -> AttentionResult:
    """Leaves the query behind as no caller gave it."""
    batch.query.add_(1.0)
    return result


register(
    Check(
        "footprint",
        "nothing but the output is written, and all of it",
        ("K13",),
        cases,
        judge,
        spoiled(_scales_its_query),
    )
)
