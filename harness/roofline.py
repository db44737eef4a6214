"""What a paged-attention call must at least move and compute, and how long that takes.

    bytes = KV of every slot that some row sees, once per KV head
          + queries and outputs + 4 bytes per block-table entry
          + what splits write and read again (float32 parts and their LSE)
    FLOP  = 2 * visible (row, key) pairs * query heads * (head_dim + head_dim_v)
    floor = max(bytes / bandwidth, FLOP / matmul rate)

A measurement below its floor did not do the work from memory (its caches were still in L2) or is
wrong, and is not to be published.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True)
class Shape:
    """The sizes of a batch; lengths in tokens, sizes in bytes per number."""

    name: str
    seqs: tuple[tuple[int, int], ...]
    """Keys and query rows of each sequence."""
    num_q_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    head_dim_v: int = 128
    block_size: int = 16
    window_left: int | None = None
    causal: bool = True
    query_bytes: int = 2
    cache_bytes: int = 2

    @property
    def num_tokens(self) -> int:
        """Query rows of the batch."""
        return sum(rows for _, rows in self.seqs)


@dataclass(frozen=True)
class Work:
    """The least that a call has to do."""

    kv_bytes: int
    other_bytes: int
    """Queries, outputs, block tables, parts of splits."""
    flop: int

    @property
    def bytes(self) -> int:
        """Everything moved."""
        return self.kv_bytes + self.other_bytes

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flop / self.bytes


@dataclass(frozen=True)
class Ceiling:
    """What the machine does at best, as specified or, better, as measured in the same run."""

    bandwidth: float
    """Bytes per second, read and written together."""
    matmul: float
    """FLOP per second of matrix products in the query's type."""


H200 = Ceiling(bandwidth=4.8e12, matmul=989e12)
"""As specified, bfloat16."""


def visible_pairs(shape: Shape) -> int:
    """(row, key) pairs that one head scores."""
    return sum(_visible(keys, rows, shape) for keys, rows in shape.seqs)


def _visible(keys: int, rows: int, shape: Shape) -> int:
    if shape.window_left is None:
        hidden = rows * (rows - 1) // 2 if shape.causal else 0
        return rows * keys - hidden
    total = 0
    for position in range(keys - rows, keys):
        stop = position + 1 if shape.causal else keys
        total += stop - max(0, position - shape.window_left)
    return total


def visible_slots(shape: Shape) -> int:
    """Slots that some row sees."""
    if shape.window_left is None:
        return sum(keys for keys, rows in shape.seqs if rows)
    left = shape.window_left
    return sum(min(keys, rows + left) for keys, rows in shape.seqs if rows)


def work(shape: Shape, *, num_splits: int = 1) -> Work:
    """The least work of a batch; `num_splits` parts are written and read where it is not 1."""
    slot = shape.num_kv_heads * (shape.head_dim + shape.head_dim_v) * shape.cache_bytes
    row = shape.num_q_heads * (shape.head_dim + shape.head_dim_v) * shape.query_bytes
    table = 4 * sum(ceil(keys / shape.block_size) for keys, _ in shape.seqs)
    part = 4 * shape.num_q_heads * (shape.head_dim_v + 1)
    parts = 2 * num_splits * shape.num_tokens * part if num_splits > 1 else 0
    flop = 2 * visible_pairs(shape) * shape.num_q_heads * (shape.head_dim + shape.head_dim_v)
    return Work(
        kv_bytes=visible_slots(shape) * slot,
        other_bytes=shape.num_tokens * row + table + parts,
        flop=flop,
    )


def floor(work: Work, ceiling: Ceiling) -> float:
    """Seconds that the work takes at best."""
    return max(work.bytes / ceiling.bandwidth, work.flop / ceiling.matmul)


def bound(work: Work, ceiling: Ceiling) -> str:
    """What limits it: ``memory`` or ``matmul``."""
    memory = work.bytes / ceiling.bandwidth >= work.flop / ceiling.matmul
    return "memory" if memory else "matmul"
