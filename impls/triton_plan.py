"""How a batch is cut up for the Triton kernel: tiles of rows, splits of keys, padded sizes.

A tile is BLOCK_M rows (tokens times heads of a group) of one sequence. Where tiles times KV heads
are too few to fill a GPU, the keys are split as well, and the parts merged by their LSE. With
`batch_invariant` a split is always `SPLIT_KEYS` keys long, so that what a row computes does not
depend on the batch around it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvassay.harness.contract import AttentionBatch

SMALLEST_DOT = 16
"""Rows, columns and depth of the smallest matrix product."""
PATHS = ("one tile", "one tile, split", "tiled", "tiled, split")
"""Execution paths, by `Plan.path`."""


@dataclass(frozen=True)
class Tuning:
    """What changes the speed of a launch but, beyond the rounding of sums, no result."""

    multiprocessors: int = 132
    """Of the GPU that the splits are to fill (H200)."""
    least_keys: int = 256
    """Keys that a split has at least, unless splits are of fixed size."""
    most_splits: int = 64
    split_keys: int = 512
    """Keys of a split of fixed size: batch-invariant mode."""
    largest_block_m: int = 128
    invariant_block_m: int = 64
    """Rows of a tile in the batch-invariant mode: a product of another shape may sum otherwise."""
    accumulators: int = 128 * 128
    """Numbers of output that a tile may hold: more than that and registers are spilled."""
    block_n: int = 64
    num_stages: int = 3
    """Of the loop over keys, at most; one tile less than that is on its way at any time."""
    shared_memory: int = 227 * 1024
    """Bytes of a block."""


TUNINGS = {
    "sm_80": Tuning(multiprocessors=108, block_n=32, shared_memory=163 * 1024),
    "sm_90": Tuning(),
    "sm_100": Tuning(multiprocessors=148),
    "gfx942": Tuning(multiprocessors=304, num_stages=2, shared_memory=64 * 1024),
}
"""By architecture; what `suites/ahead` compiles for each of them neither spills nor overflows."""
SMALL = Tuning(least_keys=64, split_keys=128, largest_block_m=32, invariant_block_m=32)
"""For the interpreter: the small cases that it can afford are to take every path."""


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


def tuning_here() -> Tuning:
    """The tuning for the current GPU; of one that is not listed, H200's within its memory."""
    gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
    if torch.version.hip:
        known = TUNINGS.get(gpu.gcnArchName.partition(":")[0], TUNINGS["gfx942"])
        return replace(known, multiprocessors=gpu.multi_processor_count)
    known = TUNINGS.get(f"sm_{gpu.major}{gpu.minor}", TUNINGS["sm_90"])
    return replace(
        known,
        multiprocessors=gpu.multi_processor_count,
        shared_memory=getattr(gpu, "shared_memory_per_block_optin", known.shared_memory),
    )


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


def plan(
    batch: AttentionBatch, tuning: Tuning | None = None, *, batch_invariant: bool = False
) -> Plan:
    """Cut up a batch. Reads its lengths, once."""
    tuning = tuning or Tuning()
    kv_heads = batch.key_cache.shape[2]
    rows = (batch.query_start[1:] - batch.query_start[:-1]) * (batch.query.shape[1] // kv_heads)
    most_rows = int(rows.max()) if rows.numel() else 0
    longest = int(batch.seq_lens.max()) if rows.numel() else 0
    dim_v = padded(batch.value_cache.shape[3])
    block_m = min(max(SMALLEST_DOT, padded(most_rows)), tuning.largest_block_m)
    if batch_invariant:
        block_m = tuning.invariant_block_m
    block_m = min(block_m, max(SMALLEST_DOT, tuning.accumulators // dim_v))
    block_n = _block_n(batch, tuning)
    tiles = (rows + block_m - 1) // block_m
    one_tile = most_rows <= block_m
    num_tiles = rows.numel() if one_tile else int(tiles.sum())
    split_size = tuning.split_keys
    if not batch_invariant:
        split_size = _split_size(num_tiles * kv_heads, longest, block_n, tuning)
    return Plan(
        num_tiles=num_tiles,
        tile_ends=torch.cumsum(tiles, 0).to(torch.int32),
        one_tile=one_tile,
        block_m=block_m,
        block_n=block_n,
        num_splits=max(1, -(-longest // split_size)),
        split_size=split_size,
        num_warps=8 if block_m >= 128 or block_m * dim_v > 64 * 128 else 4,
        num_stages=_num_stages(batch, tuning, block_m, block_n),
    )


def _block_n(batch: AttentionBatch, tuning: Tuning) -> int:
    """Keys per tile: fewer where a row of keys is so wide that tiles would not fit.

    Not fewer than 32: the copies of a tile 64 numbers wide would be of less than 16 bytes.
    """
    widest = max(batch.query.shape[2], batch.value_cache.shape[3])
    wide = widest * batch.key_cache.element_size() >= 512
    return min(tuning.block_n, 32) if wide else tuning.block_n


def _num_stages(batch: AttentionBatch, tuning: Tuning, block_m: int, block_n: int) -> int:
    """As many stages as fit beside the tile of queries, at least two.

    Where warp groups multiply (tiles of 64 rows and more), a tile of keys stays in shared memory
    while it is read; smaller tiles are read into registers.
    """
    query, key, value = batch.query, batch.key_cache, batch.value_cache
    dim = sum(head_parts(query.shape[2]))
    tile = block_n * (dim * key.element_size() + padded(value.shape[3]) * value.element_size())
    room = (tuning.shared_memory - block_m * dim * query.element_size()) // tile
    stages = room if block_m >= 64 else room + 1
    return max(2, min(tuning.num_stages, stages))


def _split_size(programs: int, longest: int, block_n: int, tuning: Tuning) -> int:
    """Two waves of programs where the keys allow it, no split of fewer than `least_keys`."""
    wanted = 2 * tuning.multiprocessors
    splits = min(2 * wanted // max(1, programs), longest // tuning.least_keys, tuning.most_splits)
    if programs >= wanted or splits <= 1:
        return max(block_n, -(-longest // block_n) * block_n)
    return -(-longest // splits // block_n) * block_n
