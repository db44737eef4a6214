"""Batches of a shape on a device: random numbers, random block tables, several sets in turn.

Random tables, as identity flatters whoever prefetches; random numbers, as multiplying zeros takes
less power; and as many sets as are needed to be well beyond the L2 cache.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from kvassay.harness.contract import AttentionBatch
from kvassay.harness.roofline import Shape, work

L2_BYTES = 60 * 2**20
BEYOND = 4
"""Times the L2 cache that all sets together are at least."""
MOST_SETS = 8


def num_sets(shape: Shape, device: str) -> int:
    """How many caches are used in turn; 1 where there is no L2 to mind."""
    if device != "cuda":
        return 1
    return min(MOST_SETS, 1 + BEYOND * L2_BYTES // work(shape).kv_bytes)


def batches(shape: Shape, device: str, dtype: torch.dtype, seed: int = 0) -> list[AttentionBatch]:
    """As many batches as `num_sets` says."""
    first = _batch(shape, device, dtype, seed)
    others = range(1, num_sets(shape, device))
    return [first, *(_batch(shape, device, dtype, seed + number) for number in others)]


def _batch(shape: Shape, device: str, dtype: torch.dtype, seed: int) -> AttentionBatch:
    rng = torch.Generator(device).manual_seed(seed)
    lengths = [keys for keys, _ in shape.seqs]
    blocks = [-(-keys // shape.block_size) for keys in lengths]
    table = _table(blocks, rng, device)
    cache = (sum(blocks), shape.block_size, shape.num_kv_heads)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=rng, device=device, dtype=dtype)

    return AttentionBatch(
        query=normal(shape.num_tokens, shape.num_q_heads, shape.head_dim),
        key_cache=normal(*cache, shape.head_dim),
        value_cache=normal(*cache, shape.head_dim_v),
        block_table=table,
        seq_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
        query_start=torch.tensor(
            [0, *accumulate(rows for _, rows in shape.seqs)], dtype=torch.int32, device=device
        ),
        causal=shape.causal,
        window_left=shape.window_left,
    )


def _table(blocks: list[int], rng: torch.Generator, device: str) -> Tensor:
    """``int32 [num_seqs, most blocks]`` of ids in random order; 0 where a sequence has no more."""
    ids = torch.randperm(sum(blocks), generator=rng, device=device).to(torch.int32)
    table = torch.zeros(len(blocks), max(blocks), dtype=torch.int32, device=device)
    for row, (own, stop) in enumerate(zip(blocks, accumulate(blocks), strict=True)):
        table[row, :own] = ids[stop - own : stop]
    return table


def dense(batch: AttentionBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys, values ``[num_seqs, heads, rows or keys, dim]`` in contiguous memory.

    Raises `ValueError` where sequences are not all equally long.
    """
    lengths = batch.seq_lens.tolist()
    rows = (batch.query_start[1:] - batch.query_start[:-1]).tolist()
    if len({*lengths}) > 1 or len({*rows}) > 1:
        raise ValueError("sequences of different lengths do not make a dense batch")
    blocks = batch.block_table.long()

    def gathered(cache: Tensor) -> Tensor:
        flat = cache[blocks].flatten(1, 2)[:, : lengths[0]]
        return flat.transpose(1, 2).contiguous()

    query = batch.query.unflatten(0, (len(rows), rows[0])).transpose(1, 2).contiguous()
    return query, gathered(batch.key_cache), gathered(batch.value_cache)


def with_buffers(batch: AttentionBatch) -> AttentionBatch:
    """The batch with memory for its output and LSE, so that no call allocates any."""
    shape = (*batch.query.shape[:2], batch.value_cache.shape[3])
    return replace(
        batch,
        output=batch.query.new_empty(shape),
        lse=batch.query.new_empty(shape[:2], dtype=torch.float32),
    )
