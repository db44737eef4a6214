"""What paging replaced, as a kernel: every sequence is copied into one piece, then attended to.

PyTorch's own `scaled_dot_product_attention` knows no block table, so K and V of a sequence are
laid side by side first. It knows no soft cap and no sink either; both are refused. It returns no
LSE: that is computed beside it, from the same copies, at the price of a second Q K^T.

Where the caches are of the query's type and nothing but a mask is asked for, attention runs in that
type: scores, softmax and sums are float32 inside, probabilities are rounded before they meet V.
Everything else runs in float32, as scaled keys, a bias or values of another size would be rounded
on the way by one version of the library or another. Invariants:

* a copy starts at the first key that the sequence's first query sees and ends at its last key, so
  neither an evicted block nor a slot past the end is read;
* a copy is fresh and row-major: bits depend on one sequence alone, whatever is around it. They
  depend on its number of queries and keys.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvassay.harness.contract import AttentionBatch, AttentionResult
from kvassay.impls.attention_inputs import check_batch


class DenseAttention:
    """One sequence after the other, on the device that the batch is on."""

    @torch.no_grad()
    def __call__(self, batch: AttentionBatch) -> AttentionResult:
        """Raises `ValueError` for what is no batch, `NotImplementedError` for soft cap and sinks.

        Both before anything is written.
        """
        check_batch(batch)
        for name in ("softcap", "sinks"):
            if getattr(batch, name) is not None:
                raise NotImplementedError(f"{name}: scaled_dot_product_attention has none")
        query, size = batch.query, batch.value_cache.shape[3]
        output, lse = batch.output, batch.lse
        if output is None:
            output = query.new_empty(*query.shape[:2], size)
        if lse is None:
            lse = torch.empty(query.shape[:2], dtype=torch.float32, device=query.device)
        lengths, starts = batch.seq_lens.tolist(), batch.query_start.tolist()
        for index, length in enumerate(lengths):
            start, stop = _fill_empty(batch, length, starts[index], starts[index + 1], output, lse)
            if start < stop:
                rows = slice(start, stop)
                output[rows], lse[rows] = _attend(batch, index, length, query[rows])
        return AttentionResult(output, lse)


def _fill_empty(
    batch: AttentionBatch, length: int, start: int, stop: int, output: Tensor, lse: Tensor
) -> tuple[int, int]:
    """Write the rows that see no key; return the bounds of the others, which follow them.

    Those are all rows where there is no key, and the queries before position 0 of a causal
    sequence that has more queries than keys.
    """
    empty = stop - start if length == 0 else 0
    if batch.causal:
        empty = max(empty, stop - start - length)
    output[start : start + empty] = 0.0
    lse[start : start + empty] = -torch.inf
    return start + empty, stop


def _attend(batch: AttentionBatch, index: int, length: int, query: Tensor) -> tuple[Tensor, Tensor]:
    """Output ``[q, num_q_heads, head_dim_v]`` and LSE ``[q, num_q_heads]`` of rows that see any."""
    num_queries, num_q_heads, head_dim = query.shape
    first = 0
    if batch.window_left is not None:
        first = max(0, length - num_queries - batch.window_left)
    span = (batch.block_table[index], first, length)
    dtype = query.dtype if _plain(batch) else torch.promote_types(query.dtype, torch.float32)
    key = _dense(batch.key_cache, batch.k_scale, span, dtype)
    value = _dense(batch.value_cache, batch.v_scale, span, dtype)
    query = query.to(dtype).transpose(0, 1).clone(memory_format=torch.contiguous_format)
    query = query.view(key.shape[0], num_q_heads // key.shape[0], num_queries, head_dim)
    mask = _mask(batch, num_queries, first, length)
    scale = head_dim**-0.5 if batch.scale is None else float(batch.scale)
    keys, values = (rows[:, None].expand(-1, query.shape[1], -1, -1) for rows in (key, value))
    output = scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)
    return output.flatten(0, 1).transpose(0, 1), _lse(query, key, mask, scale).flatten(0, 1).T


def _plain(batch: AttentionBatch) -> bool:
    """Whether nothing is asked for that needs more than the query's type."""
    types = {batch.query.dtype, batch.key_cache.dtype, batch.value_cache.dtype}
    sizes = {batch.key_cache.shape[3], batch.value_cache.shape[3]}
    extras = (batch.k_scale, batch.v_scale, batch.alibi_slopes)
    return len(types) == len(sizes) == 1 and all(extra is None for extra in extras)


def _dense(cache: Tensor, scale: Any, span: tuple[Tensor, int, int], dtype: torch.dtype) -> Tensor:
    """K or V of one sequence in one piece, scaled: ``[num_kv_heads, n, head size]``."""
    rows = _copied(cache, span, dtype)
    if scale is None:
        return rows
    factor = torch.as_tensor(scale, dtype=dtype, device=cache.device)
    if factor.dim() == 3:
        return rows * _copied(factor[..., None], span, dtype)
    return rows * (factor[:, None, None] if factor.dim() else factor)


def _copied(pages: Tensor, span: tuple[Tensor, int, int], dtype: torch.dtype) -> Tensor:
    """Positions first to stop - 1 of a paged tensor, whole pages and then the last one's part."""
    table, first, stop = span
    block_size = pages.shape[1]
    skipped, last = first // block_size, (stop - 1) // block_size
    whole = pages[table[skipped:last].long()].flatten(0, 1)
    part = pages[int(table[last]), : stop - last * block_size]
    rows = torch.cat([whole.to(dtype), part.to(dtype)])[first - skipped * block_size :]
    return rows.transpose(0, 1).clone(memory_format=torch.contiguous_format)


def _mask(batch: AttentionBatch, num_queries: int, first: int, stop: int) -> Tensor | None:
    """What is added to the logits of keys first to stop - 1, or which keys count; None: all."""
    device = batch.query.device
    query = torch.arange(stop - num_queries, stop, device=device)[:, None]
    key = torch.arange(first, stop, device=device)[None, :]
    counts = torch.ones(num_queries, stop - first, dtype=torch.bool, device=device)
    if batch.causal:
        counts &= key <= query
    if batch.window_left is not None:
        counts &= key + batch.window_left >= query
    if batch.alibi_slopes is None:
        return None if bool(counts.all()) else counts
    dtype = torch.promote_types(batch.query.dtype, torch.float32)
    slopes = batch.alibi_slopes.to(dtype).view(batch.key_cache.shape[2], -1, 1, 1)
    bias: Tensor = slopes * (key - query)
    return bias.masked_fill(~counts, -torch.inf)


def _lse(query: Tensor, key: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """``[num_kv_heads, group, q]``, in float32 at least whatever attention itself ran in."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    logits = scale * (query.flatten(1, 2).to(dtype) @ key.to(dtype).transpose(1, 2))
    logits = logits.view(*query.shape[:3], key.shape[1])
    if mask is not None and mask.dtype == torch.bool:
        logits = logits.masked_fill(~mask, -torch.inf)
    elif mask is not None:
        logits = logits + mask
    return torch.logsumexp(logits, dim=-1)
