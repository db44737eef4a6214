"""Mistakes that show by circumstances: where blocks lie, what else is in the batch, how it is cut.

Most are right in one version of a problem and wrong in another that must come to the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kvassay.harness.attention.twist import (
    ADDRESS,
    CAUSAL,
    LEAK,
    PARTITION,
    SCALE,
    Apply,
    Twist,
    nothing,
    on_batch,
    on_sequences,
    positions_of,
    seeing,
    twist,
)
from kvassay.harness.attention.wrong import Anomaly
from kvassay.harness.contract import AttentionBatch
from kvassay.reference import attention as oracle
from kvassay.reference.attention import Attended, Sequence

ASSUMED_BLOCK = 16
TILE = 16
"""Rows that share a mask."""
SPLIT = 128
"""Keys of the longest sequence beyond which all sequences of a batch are cut."""
CODES = 127

# ------------------------------------------------------------------------------ where blocks lie


def _page_order(batch: AttentionBatch) -> AttentionBatch:
    """The full blocks of every sequence are read from the last to the first."""
    table, size = batch.block_table.clone(), batch.key_cache.shape[1]
    for index, length in enumerate(batch.seq_lens.tolist()):
        full = length // size
        table[index, :full] = table[index, :full].flip(0)
    return replace(batch, block_table=table)


def _several_full(batch: AttentionBatch) -> bool:
    return bool((batch.seq_lens // batch.key_cache.shape[1] > 1).any())


def _contiguous(batch: AttentionBatch) -> AttentionBatch:
    columns = torch.arange(batch.block_table.shape[1], device=batch.block_table.device)
    table = (batch.block_table[:, :1] + columns).clamp(0, len(batch.key_cache) - 1)
    return replace(batch, block_table=table)


def _as_dense(cache: Tensor) -> Tensor:
    """As if nothing lay between the elements of a cache."""
    strides = torch.empty(cache.shape, device="meta").stride()
    return cache.as_strided(cache.shape, strides)


def _dense(batch: AttentionBatch) -> AttentionBatch:
    key, value = _as_dense(batch.key_cache), _as_dense(batch.value_cache)
    return replace(batch, key_cache=key, value_cache=value)


def _not_dense(batch: AttentionBatch) -> bool:
    return not (batch.key_cache.is_contiguous() and batch.value_cache.is_contiguous())


def _blocks_of_16(batch: AttentionBatch) -> AttentionBatch:
    """Columns and slots are counted in 16, blocks are found where they are."""
    size, columns = batch.key_cache.shape[1], batch.block_table.shape[1]
    positions = torch.arange(columns * size)
    found = (positions // ASSUMED_BLOCK).clamp(max=columns - 1)
    slots = batch.block_table.cpu()[:, found] * size + positions % ASSUMED_BLOCK
    return replace(
        batch,
        block_table=slots.clamp(0, len(batch.key_cache) * size - 1).int(),
        key_cache=_by_slot(batch.key_cache),
        value_cache=_by_slot(batch.value_cache),
        k_scale=_by_slot(batch.k_scale),
        v_scale=_by_slot(batch.v_scale),
    )


def _by_slot(cells: Any) -> Any:
    """Blocks of one slot each."""
    several = isinstance(cells, Tensor) and cells.dim() > 2
    return cells.flatten(0, 1)[:, None] if several else cells


def _other_size(batch: AttentionBatch) -> bool:
    return bool(batch.key_cache.shape[1] != ASSUMED_BLOCK)


# ----------------------------------------------------------------------- what else is in the batch


def _first_at_row(batch: AttentionBatch) -> AttentionBatch:
    """Rows belong to the first sequence that starts where theirs does."""
    starts = batch.query_start.tolist()
    owners = [starts.index(start) for start in starts[:-1]]
    return replace(batch, block_table=batch.block_table[owners], seq_lens=batch.seq_lens[owners])


def _without_rows(batch: AttentionBatch) -> bool:
    return bool((batch.query_start.diff() == 0).any())


def _one_query_scale(batch: AttentionBatch) -> AttentionBatch:
    if not batch.query.numel():
        return batch
    largest = batch.query.abs().max().float()
    step = largest.clamp_min(torch.finfo(torch.float32).tiny) / CODES
    coarse = torch.round(batch.query.float() / step) * step
    return replace(batch, query=coarse.to(batch.query.dtype))


def _common_blocks(batch: AttentionBatch) -> int:
    """Leading blocks that all sequences share and fill."""
    if len(batch.seq_lens) < 2:
        return 0
    filled = int(batch.seq_lens.min()) // batch.key_cache.shape[1]
    table = batch.block_table[:, :filled].cpu()
    return int((table == table[:1]).all(dim=0).long().cumprod(dim=0).sum())


def _shared_twice(batch: AttentionBatch, sequence: Sequence) -> Sequence:
    """Keys that all share count once for all, and once more for each."""
    logits = sequence.logits.clone()
    logits[..., : _common_blocks(batch) * batch.key_cache.shape[1]] += math.log(2.0)
    return replace(sequence, logits=logits)


# -------------------------------------------------------------------------- how a sequence is cut


def _of_a_tile(batch: AttentionBatch, sequence: Sequence) -> Tensor:
    """Every row sees what the last row of its tile may see."""
    rows, keys = sequence.visible.shape
    last = ((torch.arange(rows) // TILE + 1) * TILE).clamp(max=rows) - 1
    seen = torch.arange(keys)[None, :] <= positions_of(sequence)[last][:, None]
    if batch.window_left is not None:
        seen &= torch.arange(keys) >= positions_of(sequence)[:, None] - int(batch.window_left)
    return seen


def _rows_together(batch: AttentionBatch) -> bool:
    return batch.causal and bool((batch.query_start.diff() > 1).any())


Scored = Callable[[AttentionBatch, Sequence], tuple[Tensor, Tensor]]


def _scoring(score: Scored) -> Apply:
    """The mistake is in the softmax of a sequence."""

    def apply(batch: AttentionBatch) -> Attended:
        result = nothing(batch)
        for sequence in oracle.sequences(batch):
            result.output[sequence.rows], result.lse[sequence.rows] = score(batch, sequence)
        return result

    return apply


def _parts_in_base_2(batch: AttentionBatch, sequence: Sequence) -> tuple[Tensor, Tensor]:
    """Beside a long sequence all are cut in parts, which are weighed by ``2 ** lse``."""
    parts = max(1, -(-int(batch.seq_lens.max()) // SPLIT))
    keys = sequence.visible.shape[1]
    part = torch.arange(keys) // max(1, -(-keys // parts))
    plain = replace(sequence, sinks=None)
    pieces = [
        oracle.softmax(replace(plain, logits=plain.logits.masked_fill(part != index, -torch.inf)))
        for index in range(parts)
    ]
    lses = torch.stack([lse for _, lse in pieces])
    share = torch.softmax(lses * math.log(2.0), dim=0).nan_to_num(0.0)
    output = (share[..., None] * torch.stack([each for each, _ in pieces])).sum(dim=0)
    whole, lse = oracle.softmax(sequence)
    return (output if parts > 1 else whole), lse


def _long(batch: AttentionBatch) -> bool:
    return bool((batch.seq_lens > SPLIT).any())


def _from_zero(batch: AttentionBatch, sequence: Sequence) -> tuple[Tensor, Tensor]:
    """The running maximum starts at 0; exponentials are of float32."""
    if not sequence.logits.shape[2]:
        return oracle.softmax(sequence)
    largest = sequence.logits.amax(dim=2, keepdim=True).clamp_min(0.0)
    weights = torch.exp((sequence.logits - largest).float()).to(oracle.F64)
    total = weights.sum(dim=2, keepdim=True)
    if sequence.sinks is not None:
        total = total + torch.exp(sequence.sinks[:, None, None] - largest)
    value = sequence.value.repeat_interleave(sequence.group, dim=1)
    output = torch.einsum("hqn,nhd->qhd", weights / total, value)
    return output, (largest + torch.log(total))[..., 0].T


# ----------------------------------------------------------------------------------------- scales


def _per_token(scale: Any) -> bool:
    return isinstance(scale, Tensor) and scale.dim() == 3


def _no_token_scale(batch: AttentionBatch) -> AttentionBatch:
    key, value = (None if _per_token(s) else s for s in (batch.k_scale, batch.v_scale))
    return replace(batch, k_scale=key, v_scale=value)


def _token_scales(batch: AttentionBatch) -> bool:
    return _per_token(batch.k_scale) or _per_token(batch.v_scale)


OF_PLACES: tuple[Twist, ...] = (
    twist(
        "page-order",
        "full blocks are read from the last to the first",
        ADDRESS,
        on_batch(_page_order),
        _several_full,
    ),
    twist(
        "contiguous-blocks",
        "the blocks of a sequence are taken to follow each other from the first on",
        ADDRESS,
        on_batch(_contiguous),
    ),
    twist(
        "dense-caches",
        "the caches are read as if they were dense",
        ADDRESS,
        on_batch(_dense),
        _not_dense,
    ),
    twist(
        "blocks-of-16",
        "blocks are taken to have 16 slots",
        ADDRESS,
        on_batch(_blocks_of_16),
        _other_size,
    ),
    twist(
        "first-at-row",
        "rows after a sequence without rows are taken to be that one's",
        LEAK,
        on_batch(_first_at_row),
        _without_rows,
    ),
    twist(
        "one-query-scale",
        "queries are rounded to 8 bit with one scale for the batch",
        LEAK,
        on_batch(_one_query_scale),
    ),
    twist(
        "shared-twice",
        "keys in blocks that all sequences share count twice",
        PARTITION,
        on_sequences(_shared_twice),
        lambda batch: _common_blocks(batch) > 0,
    ),
    twist(
        "mask-of-a-tile",
        "rows see what the last of their 16 may see",
        CAUSAL,
        seeing(_of_a_tile),
        _rows_together,
    ),
    twist(
        "parts-in-base-2",
        "the parts of a split are merged with weights of base 2",
        PARTITION,
        _scoring(_parts_in_base_2),
        _long,
    ),
    twist(
        "maximum-from-zero",
        "logits far below 0 vanish",
        ("K12", Anomaly.RANGE),
        _scoring(_from_zero),
    ),
    twist(
        "no-token-scale",
        "scales of single tokens are missing",
        SCALE,
        on_batch(_no_token_scale),
        _token_scales,
    ),
)
