"""Paged attention in float64, written for reading.

Every sequence is gathered through its block table and attended densely: the logit of a query at
position i and a key at position j is

    x = scale * q_i . k_j                 k_j and v_j multiplied by their quantisation scales
    x = softcap * tanh(x / softcap)       where there is a soft cap
    x = x + slope * (j - i)               where there is ALiBi
    x = -inf                              where j > i (causal) or j < i - window_left

and a row is ``sum_j exp(x_j - lse) v_j`` with ``lse = ln(sum_j exp(x_j) + exp(sink))``. A row that
sees no key is 0, its LSE -inf or the sink. Inputs are only read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvassay.harness.contract import AttentionBatch

F64 = torch.float64


@dataclass(frozen=True)
class Sequence:
    """One sequence of a batch, gathered and scored. Shapes: q rows, n keys."""

    index: int
    rows: slice
    """Its rows in the packed query."""
    query: Tensor
    """``[q, num_q_heads, head_dim]``."""
    key: Tensor
    """``[n, num_kv_heads, head_dim]``, scaled; 0 where no query of the sequence looks."""
    value: Tensor
    """``[n, num_kv_heads, head_dim_v]``, scaled."""
    visible: Tensor
    """``bool [q, n]``: which keys a row sees."""
    logits: Tensor
    """``[num_q_heads, q, n]``: -inf where not visible."""
    sinks: Tensor | None
    """``[num_q_heads]``."""

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.query.shape[1] // self.key.shape[1]


@dataclass(frozen=True)
class Attended:
    """What a batch must come to."""

    output: Tensor
    """``float64 [num_tokens, num_q_heads, head_dim_v]``."""
    lse: Tensor
    """``float64 [num_tokens, num_q_heads]``."""


def attend(batch: AttentionBatch) -> Attended:
    """The exact result; raises `ValueError` for a batch that is none (see `check`)."""
    check(batch)
    num_tokens, num_q_heads, _ = batch.query.shape
    output = torch.empty(num_tokens, num_q_heads, batch.value_cache.shape[-1], dtype=F64)
    lse = torch.empty(num_tokens, num_q_heads, dtype=F64)
    for sequence in sequences(batch):
        output[sequence.rows], lse[sequence.rows] = softmax(sequence)
    return Attended(output, lse)


def softmax(sequence: Sequence) -> tuple[Tensor, Tensor]:
    """Output ``[q, num_q_heads, head_dim_v]`` and LSE ``[q, num_q_heads]`` of one sequence."""
    weights, lse = weights_of(sequence)
    grouped = weights.view(sequence.key.shape[1], sequence.group, *weights.shape[1:])
    return torch.einsum("kgqn,nkd->qkgd", grouped, sequence.value).flatten(1, 2), lse.T


def weights_of(sequence: Sequence) -> tuple[Tensor, Tensor]:
    """Probabilities ``[num_q_heads, q, n]`` and LSE ``[num_q_heads, q]``.

    The probabilities of a row add up to 1 less what its sink takes, or to 0 if it is empty.
    """
    lse = torch.logsumexp(sequence.logits, dim=-1)
    if sequence.sinks is not None:
        lse = torch.logaddexp(lse, sequence.sinks[:, None].expand_as(lse))
    shift = torch.where(lse.isneginf(), 0.0, lse)
    return torch.exp(sequence.logits - shift[..., None]), lse


def sequences(batch: AttentionBatch) -> Iterator[Sequence]:
    """The sequences of a batch that have rows, gathered and scored one after the other."""
    starts = batch.query_start.tolist()
    for index in range(len(starts) - 1):
        if starts[index + 1] > starts[index]:
            yield _gathered(batch, index, slice(starts[index], starts[index + 1]))


def _gathered(batch: AttentionBatch, index: int, rows: slice) -> Sequence:
    length = int(batch.seq_lens[index])
    query = batch.query[rows].cpu().to(F64)
    positions = torch.arange(length - query.shape[0], length)
    visible = visibility(batch, positions, length)
    wanted = visible.any(dim=0)
    blocks, slots = slots_of(batch, index)
    _check_blocks(batch, index, blocks[wanted])
    key = _scaled(batch.key_cache, batch.k_scale, blocks, slots, wanted)
    value = _scaled(batch.value_cache, batch.v_scale, blocks, slots, wanted)
    logits = _logits(batch, query, key, positions).masked_fill(~visible, -torch.inf)
    sinks = None if batch.sinks is None else batch.sinks.cpu().to(F64)
    return Sequence(index, rows, query, key, value, visible, logits, sinks)


def slots_of(batch: AttentionBatch, index: int) -> tuple[Tensor, Tensor]:
    """Block and slot within it of every position of a sequence, two tensors of int64 [n]."""
    block_size = batch.key_cache.shape[1]
    positions = torch.arange(int(batch.seq_lens[index]))
    blocks = batch.block_table[index].cpu().long()[positions // block_size]
    return blocks, positions % block_size


def visibility(batch: AttentionBatch, positions: Tensor, length: int) -> Tensor:
    """Which keys 0..length-1 the queries at `positions` see: ``bool [q, length]``."""
    keys = torch.arange(length)
    behind = positions[:, None] - keys[None, :]
    visible = torch.ones_like(behind, dtype=torch.bool)
    if batch.causal:
        visible &= behind >= 0
    if batch.window_left is not None:
        visible &= behind <= batch.window_left
    return visible


def _scaled(cache: Tensor, scale: Any, blocks: Tensor, slots: Tensor, wanted: Tensor) -> Tensor:
    """Rows of a cache ``[n, num_kv_heads, d]`` times their scale; 0 where no query looks.

    A position that is not wanted may lie in a block that is long gone.
    """
    num_keys, shape = wanted.shape[0], cache.shape[2:]
    blocks, slots = blocks[wanted], slots[wanted]
    rows = torch.zeros(num_keys, *shape, dtype=F64)
    rows[wanted] = cache[blocks.to(cache.device), slots.to(cache.device)].cpu().to(F64)
    if scale is None:
        return rows
    factor = torch.as_tensor(scale, dtype=F64, device="cpu")
    if factor.dim() == 3:
        rows[wanted] *= factor[blocks, slots][..., None]
        return rows
    return rows * (factor[:, None] if factor.dim() else factor)


def _logits(batch: AttentionBatch, query: Tensor, key: Tensor, positions: Tensor) -> Tensor:
    scale = query.shape[2] ** -0.5 if batch.scale is None else float(batch.scale)
    grouped = query.view(query.shape[0], key.shape[1], -1, query.shape[2])
    logits = scale * torch.einsum("qkgd,nkd->kgqn", grouped, key).flatten(0, 1)
    if batch.softcap is not None:
        logits = batch.softcap * torch.tanh(logits / batch.softcap)
    if batch.alibi_slopes is not None:
        ahead = torch.arange(key.shape[0])[None, :] - positions[:, None]
        logits = logits + batch.alibi_slopes.cpu().to(F64)[:, None, None] * ahead
    return logits


def check(batch: AttentionBatch) -> None:
    """Raise `ValueError`, with what was given and what was expected, for an impossible batch."""
    _check_shapes(batch)
    _check_tables(batch)
    _check_options(batch)


def _check_shapes(batch: AttentionBatch) -> None:
    for name, dims in (("query", 3), ("key_cache", 4), ("value_cache", 4), ("block_table", 2)):
        shape = tuple(getattr(batch, name).shape)
        if len(shape) != dims:
            raise ValueError(f"{name}: expected {dims} dimensions, got shape {shape}")
    key, value = tuple(batch.key_cache.shape), tuple(batch.value_cache.shape)
    if key[:3] != value[:3]:
        raise ValueError(f"value_cache: expected {key[:3]} as the keys have, got {value[:3]}")
    num_q_heads, head_dim = batch.query.shape[1:]
    if head_dim != key[3]:
        raise ValueError(f"query: expected head size {key[3]} as the keys have, got {head_dim}")
    if 0 in (num_q_heads, key[2]) or num_q_heads % key[2]:
        raise ValueError(f"query: expected a multiple of {key[2]} KV heads, got {num_q_heads}")


def _check_tables(batch: AttentionBatch) -> None:
    num_seqs, columns = batch.block_table.shape
    for name, length in (("seq_lens", num_seqs), ("query_start", num_seqs + 1)):
        shape = tuple(getattr(batch, name).shape)
        if shape != (length,):
            raise ValueError(f"{name}: expected shape ({length},), got {shape}")
    starts, lengths = batch.query_start.tolist(), batch.seq_lens.tolist()
    num_tokens = batch.query.shape[0]
    if starts[0] != 0 or starts[-1] != num_tokens or starts != sorted(starts):
        raise ValueError(f"query_start: expected to rise from 0 to {num_tokens}, got {starts}")
    block_size = batch.key_cache.shape[1]
    for index, length in enumerate(lengths):
        if not 0 <= length <= columns * block_size:
            raise ValueError(
                f"seq_lens[{index}]: expected 0 to {columns * block_size} (the table's columns "
                f"times the block size), got {length}"
            )


def _check_blocks(batch: AttentionBatch, index: int, blocks: Tensor) -> None:
    """The blocks that a sequence's queries look into have to exist."""
    physical = batch.key_cache.shape[0]
    wrong = blocks[(blocks < 0) | (blocks >= physical)]
    if wrong.numel():
        raise ValueError(
            f"block_table[{index}]: expected blocks 0 to {physical - 1}, got {int(wrong[0])}"
        )


def _check_options(batch: AttentionBatch) -> None:
    if batch.window_left is not None and batch.window_left < 0:
        raise ValueError(f"window_left: expected None or at least 0, got {batch.window_left}")
    if batch.softcap is not None and not batch.softcap > 0:
        raise ValueError(f"softcap: expected None or above 0, got {batch.softcap}")
    blocks, block_size, num_kv_heads = batch.key_cache.shape[:3]
    for name in ("alibi_slopes", "sinks"):
        value = getattr(batch, name)
        if value is not None and tuple(value.shape) != (batch.query.shape[1],):
            raise ValueError(
                f"{name}: expected shape ({batch.query.shape[1]},), got {tuple(value.shape)}"
            )
    allowed = ((), (num_kv_heads,), (blocks, block_size, num_kv_heads))
    for name in ("k_scale", "v_scale"):
        value = getattr(batch, name)
        if value is not None and tuple(torch.as_tensor(value).shape) not in allowed:
            shape = tuple(torch.as_tensor(value).shape)
            raise ValueError(
                f"{name}: expected a scalar or shape {allowed[1]} or {allowed[2]}, got {shape}"
            )
