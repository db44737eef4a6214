"""Paged attention in plain PyTorch: the pages of a sequence are gathered, then an explicit softmax.

The logit of a query at position i and a key at position j is, in float32 (float64 for a float64
query),

    x = scale * q_i . k_j                 stored keys and values times their quantisation scales
    x = softcap * tanh(x / softcap)       where there is a soft cap
    x = x + slope * (j - i)               where there is ALiBi
    x = -inf                              where j > i (causal) or j < i - window_left

and with m the largest logit of the row, its sink included,

    total = sum_j exp(x_j - m) + exp(sink - m)
    output = sum_j exp(x_j - m) v_j / total,    lse = m + ln(total)

Probabilities are not rounded to the query's type; the output is, once. Invariants:

* only slots that some query of the sequence sees are read: whatever else lies in the pool or in
  the table, NaN and ids of no block included, has no effect;
* the operands of every matrix product are fresh copies of one sequence with the same strides and
  alignment each time. So bits do not depend on the batch around a sequence, on where its blocks
  lie or on the layout of the caches. They do depend on how many queries and keys a sequence
  brings (the library has other code for other shapes): chunking is not bitwise neutral.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kvassay.harness.contract import AttentionBatch, AttentionResult
from kvassay.impls.attention_inputs import check_batch, looked_at


class TorchAttention:
    """One sequence after the other, on the device that the batch is on."""

    @torch.no_grad()
    def __call__(self, batch: AttentionBatch) -> AttentionResult:
        """Raises `ValueError` for what is no batch, before anything is written."""
        check_batch(batch)
        output, lse = _buffers(batch)
        starts = batch.query_start.tolist()
        for sequence in range(len(starts) - 1):
            rows = slice(starts[sequence], starts[sequence + 1])
            if rows.start < rows.stop:
                output[rows], lse[rows] = _attend(batch, sequence, rows)
        return AttentionResult(output, lse)


def _buffers(batch: AttentionBatch) -> tuple[Tensor, Tensor]:
    """Where output and LSE go: into the batch's buffers, or into new ones."""
    query = batch.query
    num_tokens, num_q_heads, _ = query.shape
    output, lse = batch.output, batch.lse
    if output is None:
        output = query.new_empty(num_tokens, num_q_heads, batch.value_cache.shape[3])
    if lse is None:
        lse = query.new_empty(num_tokens, num_q_heads, dtype=torch.float32)
    return output, lse


def _attend(batch: AttentionBatch, sequence: int, rows: slice) -> tuple[Tensor, Tensor]:
    """Output ``[q, num_q_heads, head_dim_v]`` and LSE ``[q, num_q_heads]`` of one sequence."""
    dtype = torch.promote_types(batch.query.dtype, torch.float32)
    seen = looked_at(batch, sequence)
    query = _dense(batch.query[rows].transpose(0, 1), dtype)
    key = _gathered(batch, sequence, seen, batch.key_cache, batch.k_scale, dtype)
    value = _gathered(batch, sequence, seen, batch.value_cache, batch.v_scale, dtype)
    queries = torch.arange(seen.stop - query.shape[1], seen.stop, device=query.device)
    keys = torch.arange(seen.start, seen.stop, device=query.device)
    logits = _logits(batch, query, key, keys[None, :] - queries[:, None])
    weights, total, lse = _softmax(logits, batch.sinks)
    output = _per_kv_head(weights, value.shape[0]) @ value
    output = output.view(*query.shape[:2], -1) / total.masked_fill(total == 0, 1.0)
    return output.transpose(0, 1), lse[..., 0].T


def _dense(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy in row-major order and with the allocator's alignment, whatever it comes from."""
    return torch.empty(tensor.shape, dtype=dtype, device=tensor.device).copy_(tensor)


def _gathered(
    batch: AttentionBatch,
    sequence: int,
    seen: range,
    cache: Tensor,
    scale: Any,
    dtype: torch.dtype,
) -> Tensor:
    """The rows of a cache at the positions `seen`, scaled: ``[num_kv_heads, n, head size]``."""
    positions = torch.arange(seen.start, seen.stop, device=cache.device)
    blocks = batch.block_table[sequence].long()[positions // cache.shape[1]]
    slots = positions % cache.shape[1]
    rows = _dense(cache[blocks, slots].transpose(0, 1), dtype)
    if scale is None:
        return rows
    factor = torch.as_tensor(scale, dtype=dtype, device=cache.device)
    if factor.dim() == 3:
        factor = factor[blocks, slots].T[..., None]
    elif factor.dim() == 1:
        factor = factor[:, None, None]
    return rows * factor


def _logits(batch: AttentionBatch, query: Tensor, key: Tensor, ahead: Tensor) -> Tensor:
    """``[num_q_heads, q, n]``, where ``ahead [q, n]`` is key position minus query position."""
    scale = query.shape[2] ** -0.5 if batch.scale is None else batch.scale
    logits = scale * (_per_kv_head(query, key.shape[0]) @ key.transpose(1, 2))
    logits = logits.view(*query.shape[:2], key.shape[1])
    if batch.softcap is not None:
        logits = batch.softcap * torch.tanh(logits / batch.softcap)
    if batch.alibi_slopes is not None:
        logits = logits + batch.alibi_slopes.to(logits.dtype)[:, None, None] * ahead
    if batch.causal:
        logits = logits.masked_fill(ahead > 0, -torch.inf)
    if batch.window_left is not None:
        logits = logits.masked_fill(ahead < -batch.window_left, -torch.inf)
    return logits


def _per_kv_head(tensor: Tensor, num_kv_heads: int) -> Tensor:
    """``[num_q_heads, q, x]`` as ``[num_kv_heads, group * q, x]``: a group's heads together."""
    num_q_heads, num_queries, size = tensor.shape
    return tensor.view(num_kv_heads, num_q_heads // num_kv_heads * num_queries, size)


def _softmax(logits: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Unnormalised weights ``[num_q_heads, q, n]``, their total and the LSE ``[.., .., 1]``."""
    largest = logits.new_full((*logits.shape[:2], 1), -torch.inf)
    if sinks is not None:
        largest = largest.maximum(sinks.to(logits.dtype)[:, None, None])
    if logits.shape[2]:
        largest = largest.maximum(logits.amax(dim=2, keepdim=True))
    # A row without key or sink: exp(-inf - 0) is 0, where exp(-inf - -inf) would be NaN.
    largest = largest.masked_fill(largest == -torch.inf, 0.0)
    weights = torch.exp(logits - largest)
    total = weights.sum(dim=2, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sinks.to(logits.dtype)[:, None, None] - largest)
    return weights, total, largest + torch.log(total)
