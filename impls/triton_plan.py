"""How a batch is cut up for the Triton kernel: tiles of rows, splits of keys, padded sizes.

A tile is BLOCK_M rows (tokens times heads of a group) of one sequence. Where tiles times KV heads
are too few to fill a GPU, the keys are split as well, and the parts merged by their LSE. With
`batch_invariant` a split is always `SPLIT_KEYS` keys long, so that what a row computes does not
depend on the batch around it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvassay.harness.contract import AttentionBatch

MULTIPROCESSORS = 132
"""Of the GPU that the splits are meant for (H200); they change speed, not results."""
SPLIT_KEYS = 512
"""Keys of a split in the batch-invariant mode."""
LEAST_KEYS = 256
"""Keys that a split has at least otherwise."""
MOST_SPLITS = 64
LARGEST_BLOCK_M = 128
SMALLEST_DOT = 16
"""Rows, columns and depth of the smallest matrix product."""


@dataclass(frozen=True)
class Plan:
    """Everything about a launch that follows from the shapes."""

    num_tiles: int
    """Upper bound of the tiles in the batch."""
    tile_ends: Tensor
    """``int32 [num_seqs]``: tiles up to and with each sequence."""
    one_tile: bool
    """Whether no sequence has more than one tile, so that tile and sequence are one."""
    block_m: int
    block_n: int
    num_splits: int
    split_size: int
    """Keys per split, a multiple of block_n."""
    num_warps: int
    num_stages: int

    @property
    def path(self) -> str:
        """The execution path, for whoever counts them."""
        kind = "one tile" if self.one_tile else "tiled"
        return f"{kind}, split" if self.num_splits > 1 else kind


def padded(size: int) -> int:
    """The next power of two."""
    return 1 << max(0, size - 1).bit_length()


def head_parts(head_dim: int) -> tuple[int, int]:
    """A head size as two powers of two, the second 0 if one is enough: 80 is 64 and 16.

    What is padded costs as much as what is not: 192 as 128 and 64 wastes nothing, as 256 a quarter.
    """
    whole = max(padded(head_dim), SMALLEST_DOT)
    if whole == head_dim or head_dim < 2 * SMALLEST_DOT:
        return whole, 0
    first = whole // 2
    rest = max(padded(head_dim - first), SMALLEST_DOT)
    return (first, rest) if first + rest < whole else (whole, 0)


def plan(batch: AttentionBatch, *, batch_invariant: bool = False) -> Plan:
    """Cut up a batch. Reads its lengths, once."""
    group = batch.query.shape[1] // batch.key_cache.shape[2]
    rows = (batch.query_start[1:] - batch.query_start[:-1]) * group
    most_rows = int(rows.max()) if rows.numel() else 0
    longest = int(batch.seq_lens.max()) if rows.numel() else 0
    block_m = min(max(SMALLEST_DOT, padded(most_rows)), LARGEST_BLOCK_M)
    block_n = _block_n(batch)
    tiles = (rows + block_m - 1) // block_m
    one_tile = most_rows <= block_m
    num_tiles = rows.numel() if one_tile else int(tiles.sum())
    if batch_invariant:
        split_size = SPLIT_KEYS
    else:
        split_size = _split_size(num_tiles * batch.key_cache.shape[2], longest, block_n)
    return Plan(
        num_tiles=num_tiles,
        tile_ends=torch.cumsum(tiles, 0).to(torch.int32),
        one_tile=one_tile,
        block_m=block_m,
        block_n=block_n,
        num_splits=max(1, -(-longest // split_size)),
        split_size=split_size,
        num_warps=8 if block_m >= LARGEST_BLOCK_M else 4,
        num_stages=3,
    )


def _block_n(batch: AttentionBatch) -> int:
    """Keys per tile: fewer where a row of keys is so wide that tiles would not fit."""
    widest = max(batch.query.shape[2], batch.value_cache.shape[3])
    return 64 if widest * batch.key_cache.element_size() <= 512 else 32


def _split_size(programs: int, longest: int, block_n: int) -> int:
    """Two waves of programs where the keys allow it, no split of fewer than LEAST_KEYS."""
    wanted = 2 * MULTIPROCESSORS
    splits = min(2 * wanted // max(1, programs), longest // LEAST_KEYS, MOST_SPLITS)
    if programs >= wanted or splits <= 1:
        return max(block_n, -(-longest // block_n) * block_n)
    return -(-longest // splits // block_n) * block_n
