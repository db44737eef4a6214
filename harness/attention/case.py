"""One attention problem as a recipe: shapes, features, memory, contents and a seed.

A case is a small JSON file. Everything that a kernel gets follows from it (see `build`), so a
failing one can be shrunk, stored and replayed anywhere.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

FORMAT = "kvassay attention case"
VERSION = 1
DTYPES = ("float32", "float16", "bfloat16")
CACHE_DTYPES = (*DTYPES, "float8_e4m3fn", "float8_e5m2", "int8")


class BadCase(ValueError):
    """A file that is no attention case; says where and why."""


class Scaling(StrEnum):
    """Over what a quantisation scale varies."""

    NONE = "none"
    TENSOR = "tensor"
    HEAD = "head"
    TOKEN = "token"


class Contents(StrEnum):
    """What the query, the keys and the values are filled with."""

    PLAIN = "plain"
    """Normal, mean 0 and deviation 1."""
    PEAKY = "peaky"
    """The query four times as large: few keys take all the weight."""
    OFFSET = "offset"
    """Values near 1, so that the output hardly depends on the weights."""
    TINY = "tiny"
    """Uniform within 1e-3: subnormal in 16 bit."""
    HUGE = "huge"
    """Logits in the hundreds of thousands."""
    COUNTED = "counted"
    """Query 0, and each value a unit vector by position modulo head_dim_v: counts keys."""
    PLACED = "placed"
    """The same modulo head_dim_v - 1: both together tell most positions apart."""
    NEEDLE = "needle"
    """The key at `mark` draws nearly all the weight of every query."""
    HEADS = "heads"
    """Each KV head has its own needle, and its own unit vectors as values."""
    HALVES = "halves"
    """Keys before `mark` (below 0: from it on) weigh far more than the others, and have other
    values."""


class CacheLayout(StrEnum):
    """How the two caches lie in memory."""

    NHD = "nhd"
    """``[block, slot, head, dim]``, dense."""
    HND = "hnd"
    """``[block, head, slot, dim]``, dense."""
    PADDED = "padded"
    """Gaps after every row, head and slot."""
    INTERLEAVED = "interleaved"
    """Keys and values of a block one after the other, in one tensor."""
    PACKED = "packed"
    """Keys and values of a slot side by side, in one row."""
    V_IN_K = "v_in_k"
    """Values are the first head_dim_v columns of the keys."""
    FAR = "far"
    """Blocks so far apart that block id times stride passes 2**31 elements."""


class RowLayout(StrEnum):
    """How queries and outputs lie in memory."""

    DENSE = "dense"
    PADDED = "padded"
    """Gaps after every row and head."""
    FUSED = "fused"
    """A slice of a row that also holds keys and values of its token."""


class Placement(StrEnum):
    """Which block ids the tables hold."""

    SHUFFLED = "shuffled"
    IDENTITY = "identity"
    REVERSED = "reversed"
    HIGH = "high"
    """From both sides of 2**15 and 2**16."""


class Garbage(StrEnum):
    """What stands where nothing may be read."""

    FINITE = "finite"
    """Large numbers; spare table columns hold blocks of others."""
    LARGEST = "largest"
    """The largest finite numbers, of either sign; spare table columns hold blocks of others."""
    NAN = "nan"
    """NaN where the type has it; spare table columns hold ids that do not exist."""
    INF = "inf"
    """Infinities; spare table columns hold -1."""
    ZERO = "zero"


@dataclass(frozen=True)
class Case:
    """See the module; raises `BadCase` for what cannot be."""

    seqs: tuple[tuple[int, int], ...]
    """(keys, queries) of each sequence; the queries are its last positions."""
    num_q_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    head_dim_v: int = 64
    block_size: int = 16
    dtype: str = "bfloat16"
    cache_dtype: str = "bfloat16"
    causal: bool = True
    window_left: int | None = None
    softcap: float | None = None
    scale: float | None = None
    alibi: bool = False
    sinks: bool = False
    k_scale: Scaling = Scaling.NONE
    v_scale: Scaling = Scaling.NONE
    contents: Contents = Contents.PLAIN
    mark: int = 0
    """Position that NEEDLE and HALVES speak of, in every sequence that has it; below 0 it counts
    from the end."""
    cache_layout: CacheLayout = CacheLayout.NHD
    row_layout: RowLayout = RowLayout.DENSE
    placement: Placement = Placement.SHUFFLED
    shared_blocks: int = 0
    """Leading blocks that all sequences have in common."""
    evicted: bool = False
    """Blocks left of every row's window are gone: garbage, and their table entries too."""
    garbage: Garbage = Garbage.FINITE
    garbage_seed: int = 0
    """Other garbage of the same kind; everything else stays as it is."""
    buffers: bool = False
    """The kernel writes into buffers of ours, filled with NaN."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, kind in _ENUMS.items():
            object.__setattr__(self, name, kind(getattr(self, name)))
        object.__setattr__(self, "seqs", tuple((int(n), int(q)) for n, q in self.seqs))
        self._check_sizes()
        self._check_memory()

    def _check_sizes(self) -> None:
        for name in ("num_q_heads", "num_kv_heads", "head_dim", "head_dim_v", "block_size"):
            if getattr(self, name) < 1:
                raise BadCase(f"{name}: expected at least 1, got {getattr(self, name)}")
        if any(n < 0 or q < 0 for n, q in self.seqs):
            raise BadCase(f"seqs: expected no negative lengths, got {self.seqs}")
        if self.dtype not in DTYPES or self.cache_dtype not in CACHE_DTYPES:
            raise BadCase(f"dtype, cache_dtype: unknown: {self.dtype}, {self.cache_dtype}")
        if self.window_left is not None and self.window_left < 0:
            raise BadCase(f"window_left: expected None or at least 0, got {self.window_left}")
        if self.softcap is not None and not self.softcap > 0:
            raise BadCase(f"softcap: expected None or above 0, got {self.softcap}")

    def _check_memory(self) -> None:
        same = self.head_dim == self.head_dim_v
        if self.cache_layout is CacheLayout.INTERLEAVED and not same:
            raise BadCase("cache_layout=interleaved: expected head_dim_v equal to head_dim")
        if self.cache_layout is CacheLayout.V_IN_K and self.head_dim_v > self.head_dim:
            raise BadCase("cache_layout=v_in_k: expected head_dim_v up to head_dim")
        if self.evicted and self.window_left is None:
            raise BadCase("evicted: expected a window_left")

    # -------------------------------------------------------------------------------- derived

    @property
    def num_tokens(self) -> int:
        """Rows of the packed query."""
        return sum(queries for _, queries in self.seqs)

    @property
    def num_pairs(self) -> int:
        """Query-key pairs: what a case costs, roughly."""
        return self.num_q_heads * sum(n * q for n, q in self.seqs)

    def blocks_of(self, index: int) -> int:
        """Blocks that a sequence covers."""
        return -(-self.seqs[index][0] // self.block_size)

    def first_seen(self, index: int) -> int:
        """First position of a sequence that any of its rows may see."""
        keys, queries = self.seqs[index]
        if self.window_left is None or queries == 0:
            return 0
        return min(keys, max(0, keys - queries - self.window_left))


_ENUMS: dict[str, type[StrEnum]] = {
    "k_scale": Scaling,
    "v_scale": Scaling,
    "contents": Contents,
    "cache_layout": CacheLayout,
    "row_layout": RowLayout,
    "placement": Placement,
    "garbage": Garbage,
}


# ---------------------------------------------------------------------------------- as a file


@dataclass(frozen=True)
class Trial:
    """A case, and the check that it is for."""

    check: str
    case: Case
    violates: str | None = None
    note: str = ""


def to_json(trial: Trial) -> str:
    """A trial as text; values at their defaults are left out."""
    default = {each.name: each.default for each in fields(Case)}
    shown = {k: v for k, v in asdict(trial.case).items() if k == "seqs" or v != default[k]}
    data = {"format": FORMAT, "version": VERSION, "check": trial.check, "case": shown}
    told = {"violates": trial.violates, "note": trial.note}
    data |= {name: text for name, text in told.items() if text}
    return json.dumps(data, indent=1) + "\n"


def load(path: Path | str) -> Trial:
    """Read a trial; raises `BadCase`."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise BadCase(f"{path}: not to be read as JSON: {error}") from None
    try:
        return _trial(data)
    except (BadCase, TypeError, ValueError, KeyError, AttributeError) as error:
        raise BadCase(f"{path}: {error}") from None


def _trial(data: Any) -> Trial:
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise BadCase(f"expected the format {FORMAT!r}")
    if data["version"] != VERSION:
        raise BadCase(f"expected version {VERSION}, got {data['version']!r}")
    case = Case(**data["case"])
    return Trial(str(data["check"]), case, data.get("violates"), data.get("note", ""))
