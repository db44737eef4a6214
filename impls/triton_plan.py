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
    """Keys of a tile."""
    byte_block_n: int = 128
    """The same of a cache of 8 bits in tiles of few rows, unless each token has its scale."""
    wide: int = 256
    """Head size from which on a tile has no more than 32 keys."""
    num_stages: int = 3
    """Of the loop over keys, at most; one tile less than that is on its way at any time."""
    most_warps: int = 8
    warp: int = 32
    """Threads."""
    shared_memory: int = 227 * 1024
    """Bytes of a block."""
    query_stays: bool = True
    """Whether queries lie in shared memory beside keys and values."""
    warp_groups: bool = True
    """Whether four warps multiply tiles of 64 rows and more together, out of shared memory."""

    def groups(self, block_m: int) -> bool:
        """Whether a tile of so many rows is multiplied by groups of warps."""
        return self.warp_groups and block_m >= 64


TUNINGS = {
    "sm_80": Tuning(
        multiprocessors=108, byte_block_n=64, wide=128, shared_memory=163 * 1024, warp_groups=False
    ),
    "sm_90": Tuning(),
    "sm_100": Tuning(multiprocessors=148),
    "gfx942": Tuning(
        multiprocessors=304,
        byte_block_n=64,
        num_stages=2,
        most_warps=4,
        warp=64,
        shared_memory=64 * 1024,
        query_stays=False,
        warp_groups=False,
    ),
}
"""By architecture; what `suites/ahead` compiles for each of them neither spills nor overflows."""
SMALL = Tuning(
    byte_block_n=64, least_keys=64, split_keys=128, largest_block_m=32, invariant_block_m=32
)
"""For the interpreter: the small cases that it can afford are to take every path."""


@dataclass(frozen=True)
class Tile:
    """Sizes of a tile, and what computes it."""

    block_m: int
    """Rows: query heads of tokens."""
    block_n: int
    """Keys."""
    dim: int
    dim_rest: int
    """The head size of keys as two padded parts, see `head_parts`."""
    dim_v: int
    """The head size of values, padded."""
    num_warps: int
    num_stages: int
    to_registers: bool
    """Whether keys and values are read into registers before they are multiplied."""


@dataclass(frozen=True)
class Plan:
    """Everything about a launch that follows from the shapes."""

    num_tiles: int
    """Upper bound of the tiles in the batch."""
    tile_ends: Tensor
    """``int32 [num_seqs]``: tiles up to and with each sequence."""
    one_tile: bool
    """Whether no sequence has more than one tile, so that tile and sequence are one."""
    tile: Tile
    num_splits: int
    split_size: int
    """Keys per split, a multiple of the tile's."""

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


def head_parts(head_dim: int, least: int = SMALLEST_DOT) -> tuple[int, int]:
    """A head size as two powers of two, the second 0 if one is enough: 80 is 64 and 16.

    What is padded costs as much as what is not: 192 as 128 and 64 wastes nothing, as 256 a quarter.
    The second has at least `least` numbers.
    """
    whole = max(padded(head_dim), SMALLEST_DOT)
    if whole == head_dim or head_dim < 2 * SMALLEST_DOT:
        return whole, 0
    first = whole // 2
    rest = max(padded(head_dim - first), least)
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
    block_m = min(max(SMALLEST_DOT, padded(most_rows)), tuning.largest_block_m)
    tile = _tile(batch, tuning, tuning.invariant_block_m if batch_invariant else block_m)
    block_m = tile.block_m
    tiles = (rows + block_m - 1) // block_m
    one_tile = most_rows <= block_m
    num_tiles = rows.numel() if one_tile else int(tiles.sum())
    split_size = tuning.split_keys
    if not batch_invariant:
        split_size = _split_size(num_tiles * kv_heads, longest, tile.block_n, tuning)
    return Plan(
        num_tiles=num_tiles,
        tile_ends=torch.cumsum(tiles, 0).to(torch.int32),
        one_tile=one_tile,
        tile=tile,
        num_splits=max(1, -(-longest // split_size)),
        split_size=split_size,
    )


def _tile(batch: AttentionBatch, tuning: Tuning, block_m: int) -> Tile:
    """A tile of so many rows, or of fewer: registers must hold its output and enough stages fit."""
    dim_v = max(SMALLEST_DOT, padded(batch.value_cache.shape[3]))
    block_m = min(block_m, max(SMALLEST_DOT, tuning.accumulators // dim_v))
    while True:
        tile = _tile_of(batch, tuning, block_m, dim_v)
        if tile.num_stages >= tuning.num_stages or block_m == SMALLEST_DOT:
            return tile
        block_m //= 2


def _tile_of(batch: AttentionBatch, tuning: Tuning, block_m: int, dim_v: int) -> Tile:
    """A tile of so many rows: as many stages as fit, at least two.

    Groups of warps read a tile of keys while it lies in shared memory; otherwise it has gone to
    registers when the next copy begins.
    """
    head_dim, size = batch.query.shape[2], batch.key_cache.element_size()
    block_n = _block_n(batch, tuning, block_m)
    num_warps = 8 if block_m >= 128 or block_m * dim_v > 64 * 128 or dim_v > 256 else 4
    num_warps = min(num_warps, tuning.most_warps)
    # Each thread copies 16 bytes of the second part of the keys.
    dim, dim_rest = head_parts(head_dim, 16 * num_warps * tuning.warp // (block_n * size))
    key_bytes = block_n * (dim + dim_rest) * size
    tile_bytes = key_bytes + block_n * dim_v * batch.value_cache.element_size()
    query_bytes = block_m * (dim + dim_rest) * batch.query.element_size()
    room = (tuning.shared_memory - query_bytes * tuning.query_stays) // tile_bytes
    stages = room if tuning.groups(block_m) else room + 1
    return Tile(
        block_m=block_m,
        block_n=block_n,
        dim=dim,
        dim_rest=dim_rest,
        dim_v=dim_v,
        num_warps=num_warps,
        num_stages=max(2, min(tuning.num_stages, stages)),
        to_registers=not tuning.groups(block_m),
    )


def _block_n(batch: AttentionBatch, tuning: Tuning, block_m: int) -> int:
    """Keys per tile: fewer where heads are so wide that registers or shared memory would not do."""
    sizes = batch.query.shape[2], batch.value_cache.shape[3]
    size = batch.key_cache.element_size()
    per_token = any(getattr(scale, "ndim", 0) == 3 for scale in (batch.k_scale, batch.v_scale))
    if size == 1 and max(sizes) <= 128 and block_m < 64 and not per_token:
        return tuning.byte_block_n
    if max(sizes) < tuning.wide:
        return tuning.block_n
    return 32 if 32 * sum(sizes) * size <= tuning.shared_memory else SMALLEST_DOT


def _split_size(programs: int, longest: int, block_n: int, tuning: Tuning) -> int:
    """Two waves of programs where the keys allow it, no split of fewer than `least_keys`."""
    wanted = 2 * tuning.multiprocessors
    splits = min(2 * wanted // max(1, programs), longest // tuning.least_keys, tuning.most_splits)
    if programs >= wanted or splits <= 1:
        return max(block_n, -(-longest // block_n) * block_n)
    return -(-longest // splits // block_n) * block_n
