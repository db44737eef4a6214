"""How queries and caches lie in memory: dense, with gaps, side by side, far apart."""

from __future__ import annotations

import mmap
import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from kvassay.harness.attention.case import CacheLayout, Case, Placement, RowLayout
from kvassay.harness.attention.memory import Arena

GAP = 8
"""Elements of a gap, a multiple of 16 bytes in every type of 16 bits or more."""
FAR_ELEMENTS = 2**31
NO_RESERVE = 0x4000 if sys.platform == "linux" else 0
"""MAP_NORESERVE: memory that is never touched need not exist."""


@dataclass
class Caches:
    """Key and value cache, and which blocks are looked after."""

    key: Tensor
    value: Tensor
    all_used: bool = True

    def used_blocks(self, tables: list[list[int]]) -> Tensor:
        """The blocks to fill with garbage: all, or those near the tables' in a large pool."""
        if self.all_used:
            return torch.arange(self.key.shape[0])
        used = {b for table in tables for b in table}
        near = {b % 2**15 for b in used} | {b % 2**16 for b in used} | used | {0, 1}
        return torch.tensor(sorted(near))


def caches(case: Case, arena: Arena, num_blocks: int) -> Caches:
    """The two caches, ``[num_blocks, block_size, num_kv_heads, dim]`` each."""
    dtype = getattr(torch, case.cache_dtype)
    key, value = _LAYOUTS[case.cache_layout](case, arena, num_blocks, dtype)
    return Caches(key, value, all_used=case.placement is not Placement.HIGH)


def _nhd(case: Case, arena: Arena, n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    lead = (n, case.block_size, case.num_kv_heads)
    return (
        arena.tensor("key_cache", (*lead, case.head_dim), dtype),
        arena.tensor("value_cache", (*lead, case.head_dim_v), dtype),
    )


def _hnd(case: Case, arena: Arena, n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    lead = (n, case.num_kv_heads, case.block_size)
    key = arena.tensor("key_cache", (*lead, case.head_dim), dtype)
    value = arena.tensor("value_cache", (*lead, case.head_dim_v), dtype)
    return key.transpose(1, 2), value.transpose(1, 2)


def _padded(case: Case, arena: Arena, n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Gaps in every dimension, and a first element that is aligned to nothing."""
    lead = (n, case.block_size + 1, case.num_kv_heads + 1)
    key = arena.tensor("key_cache", (*lead, case.head_dim + GAP + 1), dtype)
    value = arena.tensor("value_cache", (*lead, case.head_dim_v + GAP + 1), dtype)
    heads, size = case.num_kv_heads, case.block_size
    return (
        key[:, :size, :heads, 1 : case.head_dim + 1],
        value[:, :size, :heads, 1 : case.head_dim_v + 1],
    )


def _interleaved(case: Case, arena: Arena, n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    shape = (n, 2, case.block_size, case.num_kv_heads, case.head_dim)
    both = arena.tensor("key_cache", shape, dtype)
    return both[:, 0], both[:, 1]


def _packed(case: Case, arena: Arena, n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    width = case.head_dim + case.head_dim_v
    both = arena.tensor("key_cache", (n, case.block_size, case.num_kv_heads, width), dtype)
    return both[..., : case.head_dim], both[..., case.head_dim :]


def _v_in_k(case: Case, arena: Arena, n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    lead = (n, case.block_size, case.num_kv_heads)
    key = arena.tensor("key_cache", (*lead, case.head_dim), dtype)
    return key, key[..., : case.head_dim_v]


def _far(case: Case, arena: Arena, n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Blocks so far apart that half of them start past 2**31 elements."""
    lead = (n, case.block_size, case.num_kv_heads)
    key = _sparse((*lead, case.head_dim), dtype, arena.device)
    return key, _sparse((*lead, case.head_dim_v), dtype, arena.device)


def _sparse(shape: tuple[int, int, int, int], dtype: torch.dtype, device: str) -> Tensor:
    """Memory of which, on a CPU, only the pages in use are ever committed."""
    blocks, size, heads, dim = shape
    inner = size * heads * dim
    stride = max(inner, -(-FAR_ELEMENTS // max(1, blocks // 2)))
    count = (blocks - 1) * stride + inner
    if device == "cpu":
        num_bytes = count * torch.empty((), dtype=dtype).element_size()
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
        flat = torch.frombuffer(mmap.mmap(-1, num_bytes, flags), dtype=torch.uint8).view(dtype)
    else:
        flat = torch.empty(count, dtype=dtype, device=device)
    return flat.as_strided(shape, (stride, heads * dim, dim, 1))


_LAYOUTS = {
    CacheLayout.NHD: _nhd,
    CacheLayout.HND: _hnd,
    CacheLayout.PADDED: _padded,
    CacheLayout.INTERLEAVED: _interleaved,
    CacheLayout.PACKED: _packed,
    CacheLayout.V_IN_K: _v_in_k,
    CacheLayout.FAR: _far,
}


def rows(case: Case, arena: Arena, query: Tensor) -> Tensor:
    """The query in memory."""
    dtype = getattr(torch, case.dtype)
    tokens, heads, dim = query.shape
    if case.row_layout is RowLayout.DENSE:
        laid = arena.tensor("query", (tokens, heads, dim), dtype)
    elif case.row_layout is RowLayout.PADDED:
        laid = arena.tensor("query", (tokens, heads + 1, dim + GAP), dtype)[:, :heads, :dim]
    else:
        width = (heads + 2 * case.num_kv_heads) * dim
        fused = arena.tensor("query", (tokens, width), dtype)
        laid = fused.view(tokens, heads + 2 * case.num_kv_heads, dim)[:, :heads]
    laid.copy_(query)
    return laid
