"""From a case to tensors: contents in their slots, garbage everywhere else.

Blocks are placed as the case says; what no query may look at (slots past the end, blocks of
nobody, blocks that left the window) is filled with garbage, and so are spare table columns.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from kvassay.harness.attention.case import Case, Garbage, Placement, Scaling
from kvassay.harness.attention.contents import Filling, fill
from kvassay.harness.attention.layout import Caches, caches, rows
from kvassay.harness.attention.memory import BAND, Allocate, Arena, on
from kvassay.harness.contract import AttentionBatch

SPARE_BLOCKS = 3
"""Blocks of nobody."""
SPARE_COLUMNS = 2
HIGH_POOL = 2**16 + 64
WILD_ID = 2**30
CODES = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "int8": 127.0}
"""Largest values of the quantised types."""
SPREAD = {"float8_e4m3fn": 64.0, "float8_e5m2": 64.0, "int8": 32.0}
"""What a standard deviation of 1 is stored as."""


@dataclass
class Built:
    """A case in memory."""

    case: Case
    batch: AttentionBatch
    arena: Arena
    tables: list[list[int]]
    """Physical block of logical block 0, 1, ... of each sequence, those that are gone included."""
    filling: Filling
    """The numbers that it was filled with, before they were stored."""

    def replaced(self, **changes: object) -> Built:
        """The same memory, with other things asked of it."""
        return replace(self, batch=replace(self.batch, **changes))  # type: ignore[arg-type]


def dtype_of(name: str) -> torch.dtype:
    """A torch type by its name."""
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def build(
    case: Case,
    device: str = "cpu",
    allocate: Allocate | None = None,
    band: int = BAND,
    filling: Filling | None = None,
) -> Built:
    """Lay out a case; everything follows from its fields and seed, but a `filling` that is given.

    What a field does not speak of stays to the bit when the field changes: each part draws from a
    generator of its own.
    """
    arena = Arena(allocate or on(device), device, band)
    if filling is None:
        filling = fill(case, Generator().manual_seed(case.seed))
    filling = _shared(case, filling)
    tables, num_blocks = _placed(case, _generator(case, "placement"))
    spaces = caches(case, arena, num_blocks)
    scales = _scales(case, arena, tables, num_blocks, _generator(case, "scales"))
    garbage = _generator(case, f"garbage {case.garbage_seed}")
    _write(case, spaces, tables, filling, garbage)
    batch = AttentionBatch(
        query=rows(case, arena, filling.query),
        key_cache=spaces.key,
        value_cache=spaces.value,
        block_table=_table(case, arena, tables, num_blocks, garbage),
        seq_lens=_ints(arena, "seq_lens", [keys for keys, _ in case.seqs]),
        query_start=_ints(arena, "query_start", _starts(case)),
        scale=case.scale,
        causal=case.causal,
        window_left=case.window_left,
        softcap=case.softcap,
        alibi_slopes=_slopes(case, arena),
        sinks=_sinks(case, arena, _generator(case, "sinks")),
        k_scale=_poisoned(case, scales[0], tables, garbage),
        v_scale=_poisoned(case, scales[1], tables, garbage),
    )
    arena.remember()
    return _with_buffers(Built(case, batch, arena, tables, filling))


def _generator(case: Case, part: str) -> Generator:
    return Generator().manual_seed(zlib.crc32(f"{case.seed} {part}".encode()))


# ------------------------------------------------------------------------------------- tables


def _placed(case: Case, generator: Generator) -> tuple[list[list[int]], int]:
    """Block tables, and how many blocks there are."""
    counts = [case.blocks_of(index) for index in range(len(case.seqs))]
    shared = [min(count, case.shared_blocks) for count in counts]
    num_common = max(shared, default=0)
    needed = num_common + sum(counts) - sum(shared)
    num_blocks = HIGH_POOL if case.placement is Placement.HIGH else needed + SPARE_BLOCKS
    ids = _ids(case, needed, num_blocks, generator)
    common, rest = ids[:num_common], ids[num_common:]
    tables = []
    for count, leading in zip(counts, shared, strict=True):
        own = count - leading
        tables.append(common[:leading] + rest[:own])
        rest = rest[own:]
    return tables, num_blocks


def _ids(case: Case, needed: int, num_blocks: int, generator: Generator) -> list[int]:
    if case.placement is Placement.IDENTITY:
        return list(range(needed))
    if case.placement is Placement.REVERSED:
        return list(range(num_blocks - 1, num_blocks - 1 - needed, -1))
    if case.placement is Placement.HIGH:
        edges = [b for i in range(24) for edge in (2**15, 2**16) for b in (edge - 1 - i, edge + i)]
        spare = [b for b in range(num_blocks) if b not in set(edges)]
        return (edges + spare)[:needed]
    order: list[int] = torch.randperm(num_blocks, generator=generator).tolist()
    return order[:needed]


def gone(case: Case, index: int) -> int:
    """Leading blocks of a sequence that are gone, where the case evicts."""
    return case.first_seen(index) // case.block_size if case.evicted else 0


def _table(
    case: Case, arena: Arena, tables: list[list[int]], num_blocks: int, generator: Generator
) -> Tensor:
    columns = max([len(table) for table in tables], default=0) + SPARE_COLUMNS
    table = arena.tensor("block_table", (len(case.seqs), columns), torch.int32)
    if case.garbage in (Garbage.FINITE, Garbage.LARGEST):
        table.copy_(torch.randint(num_blocks, table.shape, generator=generator))
    else:
        table.fill_({Garbage.NAN: WILD_ID, Garbage.INF: -1, Garbage.ZERO: 0}[case.garbage])
    for index, blocks in enumerate(tables):
        kept = gone(case, index)
        table[index, kept : len(blocks)] = torch.tensor(blocks[kept:], dtype=torch.int32)
    return table


def _starts(case: Case) -> list[int]:
    starts = [0]
    for _, queries in case.seqs:
        starts.append(starts[-1] + queries)
    return starts


def _ints(arena: Arena, name: str, values: list[int]) -> Tensor:
    tensor = arena.tensor(name, (len(values),), torch.int32)
    tensor.copy_(torch.tensor(values, dtype=torch.int32))
    return tensor


# ----------------------------------------------------------------------------------- contents


def _shared(case: Case, filling: Filling) -> Filling:
    """Sequences that share blocks have the same keys and values there: those of the longest."""
    slots = case.shared_blocks * case.block_size
    longest = max(range(len(case.seqs)), key=lambda index: case.seqs[index][0], default=0)
    for each in (filling.keys, filling.values):
        for numbers in each:
            common = min(slots, len(numbers))
            numbers[:common] = each[longest][:common]
    return filling


def _write(
    case: Case,
    spaces: Caches,
    tables: list[list[int]],
    filling: Filling,
    generator: Generator,
) -> None:
    blocks = spaces.used_blocks(tables)
    if not spaces.all_used:
        spaces.key.zero_()
        spaces.value.zero_()
    _garbage(case, spaces.key, blocks, generator)
    if case.cache_layout != "v_in_k":
        _garbage(case, spaces.value, blocks, generator)
    for index, table in enumerate(tables):
        first = gone(case, index) * case.block_size
        for cache, contents in ((spaces.value, filling.values), (spaces.key, filling.keys)):
            _put(case, cache, table, contents[index], first)


def _put(case: Case, cache: Tensor, table: list[int], contents: Tensor, first: int) -> None:
    """Positions from `first` on into their slots."""
    positions = torch.arange(first, len(contents))
    if not len(positions):
        return
    blocks = torch.tensor(table)[positions // case.block_size]
    stored = encode(contents[first:], cache.dtype).to(cache.device)
    cache[blocks.to(cache.device), (positions % case.block_size).to(cache.device)] = stored


def encode(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """As stored: quantised types hold numbers times `SPREAD`, cut off at their largest."""
    name = str(dtype).removeprefix("torch.")
    if name not in CODES:
        return numbers.to(dtype)
    scaled = (numbers * SPREAD[name]).clamp(-CODES[name], CODES[name])
    return scaled.round().to(dtype) if name == "int8" else scaled.to(dtype)


def _garbage(case: Case, cache: Tensor, blocks: Tensor, generator: Generator) -> None:
    """Fill the blocks that are looked after."""
    shape = (len(blocks), *cache.shape[1:])
    name = case.cache_dtype
    if case.garbage is Garbage.ZERO:
        noise = torch.zeros(shape)
    elif name in CODES:
        noise = torch.empty(shape).uniform_(-CODES[name], CODES[name], generator=generator)
    else:
        noise = 1000 * torch.randn(shape, generator=generator)
    if case.garbage is Garbage.LARGEST:
        noise = torch.full(shape, _largest(cache.dtype)).copysign(noise)
    if name in ("float8_e5m2", *_FLOATS) and case.garbage is Garbage.INF:
        noise = torch.full(shape, torch.inf).copysign(noise)
    elif name != "int8" and case.garbage in (Garbage.NAN, Garbage.INF):
        noise.fill_(torch.nan)
    cache[blocks.to(cache.device)] = noise.to(cache.dtype).to(cache.device)


def _largest(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max)


_FLOATS = ("float32", "float16", "bfloat16")

# ----------------------------------------------------------------------------- scales and such


def _scales(
    case: Case, arena: Arena, tables: list[list[int]], num_blocks: int, generator: Generator
) -> tuple[Tensor | float | None, Tensor | float | None]:
    key = _scale(case, arena, "k_scale", case.k_scale, tables, num_blocks, generator)
    value = _scale(case, arena, "v_scale", case.v_scale, tables, num_blocks, generator)
    return key, value


def _scale(
    case: Case,
    arena: Arena,
    name: str,
    over: Scaling,
    tables: list[list[int]],
    num_blocks: int,
    generator: Generator,
) -> Tensor | float | None:
    """Scales between 0.5 and 2 of what undoes the spread of the stored numbers."""
    unit = 1 / SPREAD.get(case.cache_dtype, 1.0)
    if over is Scaling.NONE:
        return None
    if over is Scaling.TENSOR:
        return float(unit * 2 ** torch.empty(()).uniform_(-1, 1, generator=generator))
    heads = case.num_kv_heads
    if over is Scaling.HEAD:
        scale = arena.tensor(name, (heads,), torch.float32)
        return scale.copy_(unit * 2 ** torch.empty(heads).uniform_(-1, 1, generator=generator))
    scale = arena.tensor(name, (num_blocks, case.block_size, heads), torch.float32)
    for (length, _), table in zip(case.seqs, tables, strict=True):
        own = unit * 2 ** torch.empty(length, heads).uniform_(-1, 1, generator=generator)
        _put(case, scale, table, own, 0)
    return scale


def _poisoned(
    case: Case, scale: Tensor | float | None, tables: list[list[int]], generator: Generator
) -> Tensor | float | None:
    """Scales of tokens that nobody may look at are garbage too."""
    if not isinstance(scale, Tensor) or scale.dim() != 3:
        return scale
    level = float(torch.empty(()).uniform_(1e3, 1e4, generator=generator))
    noise = {
        Garbage.FINITE: level,
        Garbage.LARGEST: 1.0,
        Garbage.NAN: torch.nan,
        Garbage.INF: torch.inf,
    }
    live = torch.zeros(scale.shape[:2], dtype=torch.bool)
    for index, table in enumerate(tables):
        positions = torch.arange(gone(case, index) * case.block_size, case.seqs[index][0])
        if len(positions):
            blocks = torch.tensor(table)[positions // case.block_size]
            live[blocks, positions % case.block_size] = True
    scale[~live.to(scale.device)] = noise.get(case.garbage, 0.0)
    return scale


def _slopes(case: Case, arena: Arena) -> Tensor | None:
    """Slopes ``2 ** (-8 (h + 1) / num_q_heads)`` (Press et al. 2022)."""
    if not case.alibi:
        return None
    slopes = arena.tensor("alibi_slopes", (case.num_q_heads,), torch.float32)
    heads = torch.arange(1, case.num_q_heads + 1)
    slopes.copy_(2.0 ** (-8.0 * heads / case.num_q_heads))
    return slopes


def _sinks(case: Case, arena: Arena, generator: Generator) -> Tensor | None:
    """Logits large enough to take a good part of a row's weight."""
    if not case.sinks:
        return None
    sinks = arena.tensor("sinks", (case.num_q_heads,), torch.float32)
    longest = max([keys for keys, _ in case.seqs], default=0)
    level = float(torch.log(torch.tensor(1.0 + longest)))
    sinks.copy_(level + torch.randn(case.num_q_heads, generator=generator))
    return sinks


def _with_buffers(built: Built) -> Built:
    case, arena = built.case, built.arena
    if not case.buffers:
        return built
    shape = (case.num_tokens, case.num_q_heads, case.head_dim_v)
    padded = (shape[0], shape[1], shape[2] + (8 if case.row_layout != "dense" else 0))
    whole = arena.output("output", padded, dtype_of(case.dtype))
    output = arena.writable(whole, whole[..., : shape[2]])
    lse = arena.output("lse", shape[:2], torch.float32)
    return built.replaced(output=output, lse=lse)
