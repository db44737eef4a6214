"""What other rows hold changes no bit of a row (K14).

Every other sequence gets other queries, keys and values, in the same places; the rows of the rest
must come back as before. Then the queries of every other row are changed, within sequences.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random

import torch
from torch import Tensor

from kvassay.harness.attention.build import Built, gone
from kvassay.harness.attention.case import DTYPES, Case
from kvassay.harness.attention.check import Check, register
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.oracle_kernel import spoiled
from kvassay.harness.attention.probes.bits import Law, Run, compared
from kvassay.harness.attention.probes.shapes import buffered, decode
from kvassay.harness.attention.wrong import Anomaly, Wrong
from kvassay.harness.contract import AttentionBatch, AttentionResult

SEQUENCES = Law("K14", Anomaly.LEAK, "the same bits whatever other sequences hold")
QUERIES = Law("K14", Anomaly.LEAK, "the same bits whatever the other queries are")


def judge(kernel: Kernel, case: Case) -> Wrong | None:
    """Even sequences changed, odd ones, then every other query."""
    if case.shared_blocks or case.cache_dtype not in DTYPES:
        return None
    plain = Run.of(kernel, kernel.build(case))
    owners = _owners(case)
    for parity in (0, 1):
        others = owners % 2 != parity
        if others.any() and not others.all():
            changed = _with_other_sequences(kernel.build(case), parity)
            wrong = compared(kernel, plain, changed, SEQUENCES, rows=others)
            if wrong is not None:
                return wrong
    kept = torch.arange(case.num_tokens) % 2 == 0
    if kept.all():
        return None
    changed = _with_other_queries(kernel.build(case), ~kept)
    return compared(kernel, plain, changed, QUERIES, rows=kept)


def _owners(case: Case) -> Tensor:
    """The sequence of each row."""
    counts = torch.tensor([queries for _, queries in case.seqs], dtype=torch.int64)
    return torch.arange(len(case.seqs)).repeat_interleave(counts)


def _with_other_sequences(built: Built, parity: int) -> Built:
    """Sequences of that parity hold other numbers, as large as before."""
    batch, case = built.batch, built.case
    for index in range(parity, len(case.seqs), 2):
        blocks = torch.tensor(built.tables[index][gone(case, index) :], dtype=torch.int64)
        if len(blocks):
            blocks = blocks.to(batch.key_cache.device)
            batch.key_cache[blocks] = -batch.key_cache[blocks].flip(-1)
            batch.value_cache[blocks] = -batch.value_cache[blocks].flip(-1)
    return _with_other_queries(built, _owners(case) % 2 == parity)


def _with_other_queries(built: Built, changed: Tensor) -> Built:
    query = built.batch.query
    changed = changed.to(query.device)
    query[changed] = -2 * query[changed].flip(-1)
    built.arena.remember()
    return built


def cases(kernel: Kernel, rng: Random) -> Iterable[Case]:
    """Decode batches, chunks, and both."""
    base = buffered(kernel)
    if base is None:
        return
    size = base.block_size
    batches = (
        decode(size + 1, 3 * size, 5, 2 * size - 1, 1),
        ((2 * size + 5, 9), (5, 5), (size, 1), (3, 3), (7, 2)),
        ((size + 3, size + 3), (4 * size, 2)),
        decode(300, 7, 600, 20),
    )
    for seqs in batches:
        yield replace(base, seqs=seqs, seed=rng.randrange(2**31))


def _mixing(batch: AttentionBatch, result: AttentionResult) -> AttentionResult:
    """Adds something of all rows to each."""
    common = result.output.mean(dim=0, keepdim=True) / 8
    result.output.add_(common)
    return result


register(
    Check(
        "row-isolation",
        "no bit of a row depends on what other rows of the batch hold",
        ("K14",),
        cases,
        judge,
        spoiled(_mixing),
    )
)
