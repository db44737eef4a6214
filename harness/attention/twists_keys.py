"""Mistakes about which keys a row sees, and where they lie."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kvassay.harness.attention.twist import (
    ADDRESS,
    CAUSAL,
    LEAK,
    OUTPUT,
    PARTITION,
    TAIL,
    WINDOW,
    Twist,
    When,
    has,
    hiding,
    nothing,
    on_batch,
    positions_of,
    put,
    seeing,
    twist,
    without,
)
from kvassay.harness.contract import AttentionBatch
from kvassay.reference import attention as oracle
from kvassay.reference.attention import Attended, Sequence

# ------------------------------------------------------------------------------- keys left out


def _keys(sequence: Sequence) -> Tensor:
    """``[n]``: the positions of its keys."""
    return torch.arange(sequence.visible.shape[1])


def _last_key(batch: AttentionBatch, sequence: Sequence) -> Tensor:
    n = sequence.visible.shape[1]
    last = torch.where(sequence.visible, torch.arange(n), -1).amax(1, keepdim=True)
    return torch.eq(torch.arange(n), last)


def _first_key(batch: AttentionBatch, sequence: Sequence) -> Tensor:
    n = sequence.visible.shape[1]
    first = torch.where(sequence.visible, torch.arange(n), n).amin(1, keepdim=True)
    return torch.eq(torch.arange(n), first)


def _last_key_of_last_row(batch: AttentionBatch, sequence: Sequence) -> Tensor:
    hidden = _last_key(batch, sequence)
    hidden[:-1] = False
    return hidden


def _middle_block(batch: AttentionBatch, sequence: Sequence) -> Tensor:
    n, size = sequence.visible.shape[1], _block_size(batch)
    middle = (n // 2) // size
    return (_keys(sequence) // size).eq(middle).expand_as(sequence.visible)


def _last_block(batch: AttentionBatch, sequence: Sequence) -> Tensor:
    """The block that is not full."""
    n, size = sequence.visible.shape[1], _block_size(batch)
    return _keys(sequence).ge(n // size * size).expand_as(sequence.visible)


def _last_part(batch: AttentionBatch, sequence: Sequence) -> Tensor:
    n = sequence.visible.shape[1]
    return (torch.arange(n) >= n - max(1, n // 8)).expand_as(sequence.visible)


# ------------------------------------------------------------------------------- keys too many


def _longer(batch: AttentionBatch) -> AttentionBatch:
    """Every row sees one key more: of the next slot, where the table still covers it."""
    size = batch.key_cache.shape[1]
    room = batch.seq_lens % size != 0
    return replace(batch, seq_lens=batch.seq_lens + room.to(batch.seq_lens.dtype))


def _top_left(batch: AttentionBatch, sequence: Sequence) -> Tensor:
    """Causal from the first key on, whatever the context."""
    q, n = sequence.visible.shape
    return torch.arange(n)[None, :] <= torch.arange(q)[:, None]


def _late_mask(batch: AttentionBatch, sequence: Sequence) -> Tensor:
    """Each row also sees the position after its own, within its sequence."""
    ahead = torch.arange(sequence.visible.shape[1])[None, :] - positions_of(sequence)[:, None]
    return sequence.visible | (ahead == 1)


def _rounded_window(batch: AttentionBatch, sequence: Sequence) -> Tensor:
    """The window begins where the block of its first key does."""
    size, positions = _block_size(batch), positions_of(sequence)[:, None]
    keys = _keys(sequence)[None, :]
    visible = (keys // size).ge((positions - _window(batch)).clamp_min(0) // size)
    return visible & (keys <= positions) if batch.causal else visible


def _whole_last_block(batch: AttentionBatch) -> Attended:
    """Rows that see the last key see the slots after it too, to the end of the block."""
    result, size = nothing(batch), batch.key_cache.shape[1]
    rounded = (batch.seq_lens + size - 1) // size * size
    past = replace(batch, seq_lens=rounded, causal=False, window_left=None, alibi_slopes=None)
    longer = {each.index: each for each in oracle.sequences(past)}
    for sequence in oracle.sequences(batch):
        put(result, sequence, _with_tail(batch, sequence, longer[sequence.index]))
    return result


def _with_tail(batch: AttentionBatch, sequence: Sequence, longer: Sequence) -> Sequence:
    """A sequence with the keys after its end, seen by the rows that see its last key."""
    n = sequence.visible.shape[1]
    tail = longer.logits[:, :, n:]
    if batch.alibi_slopes is not None:
        keys = torch.arange(n, longer.logits.shape[2])
        ahead = keys[None, :] - positions_of(sequence)[:, None]
        tail = tail + batch.alibi_slopes.cpu().to(oracle.F64)[:, None, None] * ahead
    unseen = torch.ones(len(sequence.visible), dtype=torch.bool)
    if n:
        unseen = ~sequence.visible[:, -1]
    logits = torch.cat([sequence.logits, tail.masked_fill(unseen[:, None], -torch.inf)], dim=2)
    return replace(sequence, key=longer.key, value=longer.value, logits=logits)


def _window(batch: AttentionBatch) -> int:
    return int(batch.window_left or 0)


def _block_size(batch: AttentionBatch) -> int:
    return int(batch.key_cache.shape[1])


def _wider(batch: AttentionBatch) -> AttentionBatch:
    return replace(batch, window_left=_window(batch) + 1)


def _narrower(batch: AttentionBatch) -> AttentionBatch:
    return replace(batch, window_left=max(0, _window(batch) - 1))


# -------------------------------------------------------------------------------- other places


def _repeated_block(batch: AttentionBatch) -> AttentionBatch:
    """The block in the middle of every sequence is read from its table column less one."""
    table, size = batch.block_table.clone(), batch.key_cache.shape[1]
    for index, length in enumerate(batch.seq_lens.tolist()):
        middle = (length // 2) // size
        if middle >= 1:
            table[index, middle] = table[index, middle - 1]
    return replace(batch, block_table=table)


def _blocks_in_order(batch: AttentionBatch) -> AttentionBatch:
    table = torch.arange(batch.block_table.shape[1], device=batch.block_table.device)
    return replace(batch, block_table=table.expand_as(batch.block_table).contiguous())


def _first_table(batch: AttentionBatch) -> AttentionBatch:
    return replace(batch, block_table=batch.block_table[:1].expand_as(batch.block_table))


def _next_table(batch: AttentionBatch) -> AttentionBatch:
    return replace(batch, block_table=batch.block_table.roll(-1, dims=0))


def _cut_ids(batch: AttentionBatch) -> AttentionBatch:
    return replace(batch, block_table=batch.block_table % 2**15)


def _row_before(batch: AttentionBatch) -> AttentionBatch:
    return replace(batch, query=batch.query.roll(1, dims=0))


def _swapped(batch: AttentionBatch) -> AttentionBatch:
    return replace(batch, key_cache=batch.value_cache, value_cache=batch.key_cache)


def _same_sizes(batch: AttentionBatch) -> bool:
    return bool(batch.key_cache.shape == batch.value_cache.shape)


def _several(batch: AttentionBatch) -> bool:
    return len(batch.seq_lens) > 1


def _not_full(batch: AttentionBatch) -> bool:
    return bool((batch.seq_lens % batch.key_cache.shape[1]).any())


def _high(batch: AttentionBatch) -> bool:
    return bool(batch.key_cache.shape[0] > 2**15)


def _causal(batch: AttentionBatch) -> bool:
    return batch.causal and bool((batch.query_start.diff() > 1).any())


def _with_context(batch: AttentionBatch) -> bool:
    counts = batch.query_start.cpu().diff()
    return batch.causal and bool(((counts > 0) & (batch.seq_lens.cpu() > counts)).any())


_WINDOW: When = has("window_left")

OF_KEYS: tuple[Twist, ...] = (
    twist(
        "not-causal",
        "there is no causal mask",
        CAUSAL,
        on_batch(lambda b: replace(b, causal=False)),
        _causal,
    ),
    twist(
        "late-mask", "each row sees the position after its own", CAUSAL, seeing(_late_mask), _causal
    ),
    twist("no-window", "there is no window", WINDOW, without("window_left"), _WINDOW),
    twist("wide-window", "the window is one key too wide", WINDOW, on_batch(_wider), _WINDOW),
    twist(
        "narrow-window", "the window is one key too narrow", WINDOW, on_batch(_narrower), _WINDOW
    ),
    twist(
        "rounded-window",
        "the window begins at a block boundary",
        WINDOW,
        seeing(_rounded_window, lambda b: _window(b) + _block_size(b)),
        _WINDOW,
    ),
    twist("last-key", "the last visible key of each row is left out", OUTPUT, hiding(_last_key)),
    twist("first-key", "the first visible key of each row is left out", OUTPUT, hiding(_first_key)),
    twist(
        "one-row",
        "the last row of each sequence leaves out its last key",
        OUTPUT,
        hiding(_last_key_of_last_row),
    ),
    twist(
        "whole-block",
        "the slots after the last key are seen, to the end of the block",
        TAIL,
        _whole_last_block,
        _not_full,
    ),
    twist("extra-key", "each row sees one key too many", CAUSAL, on_batch(_longer), _not_full),
    twist(
        "top-left",
        "the causal mask starts at the first key",
        CAUSAL,
        seeing(_top_left, lambda batch: None),
        _with_context,
    ),
    twist("full-blocks", "only full blocks are read", OUTPUT, hiding(_last_block), _not_full),
    twist("block-dropped", "the block in the middle is left out", OUTPUT, hiding(_middle_block)),
    twist(
        "block-repeated",
        "the block in the middle is read as the one before it",
        ADDRESS,
        on_batch(_repeated_block),
    ),
    twist("last-part", "the last eighth of the keys is left out", PARTITION, hiding(_last_part)),
    twist(
        "no-table", "blocks are read in the order of their ids", ADDRESS, on_batch(_blocks_in_order)
    ),
    twist(
        "first-table",
        "all sequences read the blocks of the first",
        ADDRESS,
        on_batch(_first_table),
        _several,
    ),
    twist(
        "next-table",
        "each sequence reads the blocks of the next",
        ADDRESS,
        on_batch(_next_table),
        _several,
    ),
    twist("short-ids", "block ids are cut to 15 bits", ADDRESS, on_batch(_cut_ids), _high),
    twist("row-before", "each row has the query of the row before it", LEAK, on_batch(_row_before)),
    twist(
        "keys-for-values", "keys and values are exchanged", ADDRESS, on_batch(_swapped), _same_sizes
    ),
)
"""Simple ones first."""
