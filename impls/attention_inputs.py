"""Checks of an attention batch, shared by the built-in kernels that validate their input.

`check_batch` raises `ValueError` saying what was given and what was expected. It runs before a
kernel writes anything, so that a refused batch leaves the caller's buffers as they were.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from kvassay.harness.contract import AttentionBatch

QUERY_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
FP8_TYPES = (
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
)
CACHE_TYPES = (*QUERY_TYPES, *FP8_TYPES, torch.int8)
INDEX_TYPES = (torch.int32, torch.int64)


def check_batch(batch: AttentionBatch) -> None:
    """Raise `ValueError` for anything that is not a batch as the contract describes it."""
    _check_caches(batch)
    _check_query(batch)
    _check_indices(batch)
    _check_numbers(batch)
    _check_per_head(batch)
    _check_scales(batch)
    _check_buffers(batch)
    for sequence in range(batch.block_table.shape[0]):
        _check_blocks(batch, sequence)


def looked_at(batch: AttentionBatch, sequence: int) -> range:
    """Positions of the keys that some query of a sequence sees; none where it has no query.

    The last query sees the last key; how far left the first one looks is up to the window.
    """
    start, stop = batch.query_start[sequence : sequence + 2].tolist()
    length = int(batch.seq_lens[sequence])
    if start == stop:
        return range(0)
    first_query = length - (stop - start)
    reach = length if batch.window_left is None else batch.window_left
    return range(max(0, first_query - reach), length)


def _tensor(batch: AttentionBatch, name: str, dims: int, types: tuple[torch.dtype, ...]) -> Tensor:
    tensor = getattr(batch, name)
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name}: expected a tensor, got {type(tensor).__name__}")
    if tensor.dim() != dims:
        raise ValueError(f"{name}: expected {dims} dimensions, got shape {tuple(tensor.shape)}")
    if tensor.dtype not in types:
        known = ", ".join(_word(dtype) for dtype in types)
        raise ValueError(f"{name}: expected {known}, got {_word(tensor.dtype)}")
    query = batch.query
    if isinstance(query, Tensor) and tensor.device != query.device:
        raise ValueError(f"{name}: expected it on {query.device} as the query, got {tensor.device}")
    return tensor


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {tuple(tensor.shape)}")


def _check_caches(batch: AttentionBatch) -> None:
    key = _tensor(batch, "key_cache", 4, CACHE_TYPES)
    value = _tensor(batch, "value_cache", 4, CACHE_TYPES)
    for name, cache in (("key_cache", key), ("value_cache", value)):
        if 0 in cache.shape[1:]:
            raise ValueError(
                f"{name}: expected block size, KV heads and head size of at least 1, "
                f"got shape {tuple(cache.shape)}"
            )
    if key.shape[:3] != value.shape[:3]:
        raise ValueError(
            f"value_cache: expected blocks, slots and heads as the keys have, "
            f"{tuple(key.shape[:3])}, got {tuple(value.shape[:3])}"
        )


def _check_query(batch: AttentionBatch) -> None:
    query = _tensor(batch, "query", 3, QUERY_TYPES)
    num_kv_heads, head_dim = batch.key_cache.shape[2:]
    if query.shape[2] != head_dim:
        raise ValueError(
            f"query: expected head size {head_dim} as the keys have, got {query.shape[2]}"
        )
    if query.shape[1] == 0 or query.shape[1] % num_kv_heads:
        raise ValueError(
            f"query: expected a multiple of {num_kv_heads} KV heads, got {query.shape[1]}"
        )


def _check_indices(batch: AttentionBatch) -> None:
    num_seqs, columns = _tensor(batch, "block_table", 2, INDEX_TYPES).shape
    _check_shape("seq_lens", _tensor(batch, "seq_lens", 1, INDEX_TYPES), (num_seqs,))
    _check_shape("query_start", _tensor(batch, "query_start", 1, INDEX_TYPES), (num_seqs + 1,))
    starts, num_tokens = batch.query_start.tolist(), batch.query.shape[0]
    if starts[0] != 0 or starts[-1] != num_tokens or starts != sorted(starts):
        raise ValueError(f"query_start: expected to rise from 0 to {num_tokens}, got {starts}")
    room = columns * batch.key_cache.shape[1]
    for sequence, length in enumerate(batch.seq_lens.tolist()):
        if not 0 <= length <= room:
            raise ValueError(
                f"seq_lens[{sequence}]: expected 0 to {room} (table columns times block size), "
                f"got {length}"
            )


def _check_numbers(batch: AttentionBatch) -> None:
    if not isinstance(batch.causal, bool):
        raise ValueError(f"causal: expected a bool, got {batch.causal!r}")
    window = batch.window_left
    if window is not None and (not _is_whole(window) or window < 0):
        raise ValueError(f"window_left: expected None or an int >= 0, got {window!r}")
    if batch.scale is not None and not _is_finite(batch.scale):
        raise ValueError(f"scale: expected None or a finite number, got {batch.scale!r}")
    if batch.softcap is not None and not (_is_finite(batch.softcap) and batch.softcap > 0):
        raise ValueError(f"softcap: expected None or a number above 0, got {batch.softcap!r}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool) and math.isfinite(value)


def _check_per_head(batch: AttentionBatch) -> None:
    for name in ("alibi_slopes", "sinks"):
        if getattr(batch, name) is not None:
            tensor = _tensor(batch, name, 1, QUERY_TYPES)
            _check_shape(name, tensor, (batch.query.shape[1],))


def _check_scales(batch: AttentionBatch) -> None:
    blocks, block_size, num_kv_heads = batch.key_cache.shape[:3]
    allowed = ((), (num_kv_heads,), (blocks, block_size, num_kv_heads))
    for name in ("k_scale", "v_scale"):
        scale = getattr(batch, name)
        if scale is None or _is_finite(scale):
            continue
        if not isinstance(scale, Tensor):
            raise ValueError(f"{name}: expected None, a finite number or a tensor, got {scale!r}")
        if tuple(scale.shape) not in allowed:
            raise ValueError(
                f"{name}: expected a scalar or shape {allowed[1]} or {allowed[2]}, "
                f"got {tuple(scale.shape)}"
            )
        if scale.dim():
            _tensor(batch, name, scale.dim(), QUERY_TYPES)


def _check_buffers(batch: AttentionBatch) -> None:
    num_tokens, num_q_heads = batch.query.shape[:2]
    if batch.output is not None:
        output = _tensor(batch, "output", 3, (batch.query.dtype,))
        _check_shape("output", output, (num_tokens, num_q_heads, batch.value_cache.shape[3]))
    if batch.lse is not None:
        lse = _tensor(batch, "lse", 2, (torch.float32,))
        _check_shape("lse", lse, (num_tokens, num_q_heads))


def _check_blocks(batch: AttentionBatch, sequence: int) -> None:
    """The blocks that a sequence's queries look into have to exist."""
    positions = looked_at(batch, sequence)
    if not positions:
        return
    physical, block_size = batch.key_cache.shape[:2]
    columns = slice(positions[0] // block_size, positions[-1] // block_size + 1)
    blocks = batch.block_table[sequence, columns]
    wrong = blocks[(blocks < 0) | (blocks >= physical)]
    if wrong.numel():
        raise ValueError(
            f"block_table[{sequence}]: expected blocks 0 to {physical - 1}, got {int(wrong[0])}"
        )
