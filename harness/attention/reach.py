"""What a case exercises, and what must have been met before an invariant is called kept.

All of it follows from the case alone: which rows there are, where they end, what is switched on.
What a kernel never computed must not count, so only cases that were judged are added up. Execution
paths inside a kernel are its own knowledge: it may count them (`unreached_paths`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum

from kvassay.harness.attention.build import gone
from kvassay.harness.attention.case import (
    CacheLayout,
    Case,
    Contents,
    Garbage,
    Placement,
    RowLayout,
    Scaling,
)
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.contract import Capability, Declaration

LONG = 1000
"""Keys from which on a row counts as long."""


class Reach(StrEnum):
    """Kinds of rows, shapes, features and memory."""

    DECODE = "decode row"
    CHUNK = "prefill chunk with context"
    PREFILL = "whole prefill"
    MIXED = "mixed batch"
    BATCH = "several sequences"
    EMPTY_ROW = "row that sees no key"
    NO_ROWS = "sequence without rows"
    LONG_ROW = "row of 1,000 keys or more"
    SEVERAL_BLOCKS = "row over several blocks"
    NOT_CAUSAL = "several rows without causal mask"
    BEFORE_BLOCK_END = "length one below a block boundary"
    AT_BLOCK_END = "length at a block boundary"
    AFTER_BLOCK_END = "length one past a block boundary"

    WINDOW_DECODE = "decode row longer than the window"
    WINDOW_PREFILL = "prefill row longer than the window"
    WINDOW_IN_BLOCK = "window edge inside a block"
    WINDOW_BELOW_BLOCK = "window smaller than a block"
    WINDOW_WIDE = "window at least as long as the sequence"
    EVICTED = "blocks gone left of the window"

    MHA = "one query head per KV head"
    GQA = "several query heads per KV head"
    MQA = "one KV head for all"
    HEADS_APART = "number of KV heads different from the ratio"

    SOFTCAP_DECODE = "soft cap at decode"
    SOFTCAP_PREFILL = "soft cap at prefill"
    ALIBI_DECODE = "ALiBi at decode"
    ALIBI_PREFILL = "ALiBi at prefill"
    SINKS_DECODE = "sinks at decode"
    SINKS_PREFILL = "sinks at prefill"
    SCALE_DECODE = "given logit scale at decode"
    SCALE_PREFILL = "given logit scale at prefill"
    K_SCALE_DECODE = "key scale at decode"
    K_SCALE_PREFILL = "key scale at prefill"
    V_SCALE_DECODE = "value scale at decode"
    V_SCALE_PREFILL = "value scale at prefill"

    QUERY_FLOAT32 = "float32 query"
    QUERY_FLOAT16 = "float16 query"
    QUERY_BFLOAT16 = "bfloat16 query"
    CACHE_FLOAT32 = "float32 cache"
    CACHE_FLOAT16 = "float16 cache"
    CACHE_BFLOAT16 = "bfloat16 cache"
    CACHE_E4M3 = "float8_e4m3fn cache"
    CACHE_E5M2 = "float8_e5m2 cache"
    CACHE_INT8 = "int8 cache"

    ODD_HEAD_DIM = "head size that is no power of two"
    TWO_HEAD_DIMS = "values narrower than keys"
    ODD_BLOCK = "block size that is no power of two"

    LAYOUT_NHD = "NHD cache"
    LAYOUT_HND = "HND cache"
    LAYOUT_PADDED = "cache with gaps"
    LAYOUT_INTERLEAVED = "interleaved cache"
    LAYOUT_PACKED = "packed cache"
    LAYOUT_V_IN_K = "values inside the keys"
    LAYOUT_FAR = "strides past 2**31"
    ROWS_PADDED = "rows with gaps"
    ROWS_FUSED = "rows sliced from wider ones"
    PERMUTED = "blocks out of order"
    HIGH_IDS = "block ids past 2**15 and 2**16"
    SHARED = "shared blocks"
    BUFFERS = "buffers given"

    TAIL = "garbage in the last block"
    WILD_TAIL = "NaN, Inf or wild ids where nothing may be read"
    PEAKY = "few keys with all the weight"
    HUGE = "huge logits"


_PHASED = ("SOFTCAP", "ALIBI", "SINKS", "SCALE", "K_SCALE", "V_SCALE")
_CAPABILITIES: Mapping[str, Capability] = {
    "WINDOW": Capability.WINDOW,
    "EVICTED": Capability.WINDOW,
    "SOFTCAP": Capability.SOFTCAP,
    "ALIBI": Capability.ALIBI,
    "SINKS": Capability.SINKS,
    "K_SCALE": Capability.SCALES,
    "V_SCALE": Capability.SCALES,
    "BUFFERS": Capability.OUTPUT,
}
"""By how a name begins: what a kernel must offer to meet it."""
MODIFIED = frozenset(
    Reach[f"{name}_{phase}"] for name in _PHASED for phase in ("DECODE", "PREFILL")
)
"""Modifiers and scales: met only where forgetting one would be seen."""


def reached(case: Case) -> set[Reach]:
    """All that a case exercises."""
    return {
        *_rows(case),
        *_lengths(case),
        *_window(case),
        *_heads(case),
        *_features(case),
        *_types(case),
        *_memory(case),
    }


def _kinds(case: Case) -> set[Reach]:
    kinds = set()
    for keys, queries in case.seqs:
        if queries == 1 and keys >= 1:
            kinds.add(Reach.DECODE)
        elif 1 < queries < keys:
            kinds.add(Reach.CHUNK)
        elif 1 < queries == keys:
            kinds.add(Reach.PREFILL)
    return kinds


def _rows(case: Case) -> Iterator[Reach]:
    kinds = _kinds(case)
    yield from kinds
    if len(kinds) > 1:
        yield Reach.MIXED
    if sum(queries > 0 for _, queries in case.seqs) > 1:
        yield Reach.BATCH
    if any(q > 0 and (n == 0 or (case.causal and q > n)) for n, q in case.seqs):
        yield Reach.EMPTY_ROW
    if any(queries == 0 for _, queries in case.seqs):
        yield Reach.NO_ROWS
    if not case.causal and kinds & {Reach.CHUNK, Reach.PREFILL}:
        yield Reach.NOT_CAUSAL


def _lengths(case: Case) -> Iterator[Reach]:
    size = case.block_size
    for keys in {keys for keys, queries in case.seqs if queries and keys}:
        if keys >= LONG:
            yield Reach.LONG_ROW
        if keys > size:
            yield Reach.SEVERAL_BLOCKS
        if (keys + 1) % size == 0:
            yield Reach.BEFORE_BLOCK_END
        if keys % size == 0:
            yield Reach.AT_BLOCK_END
        elif case.garbage is not Garbage.ZERO:
            yield Reach.TAIL
        if keys > size and (keys - 1) % size == 0:
            yield Reach.AFTER_BLOCK_END


def _window(case: Case) -> Iterator[Reach]:
    if case.window_left is None:
        return
    size = case.block_size
    if case.window_left + 1 < size:
        yield Reach.WINDOW_BELOW_BLOCK
    for keys, queries in case.seqs:
        edges = [n - 1 - case.window_left for n in range(keys - queries + 1, keys + 1)]
        cut = [edge for edge in edges if edge > 0]
        if cut:
            yield Reach.WINDOW_DECODE if queries == 1 else Reach.WINDOW_PREFILL
        if any(edge % size for edge in cut):
            yield Reach.WINDOW_IN_BLOCK
        if edges and keys and not cut:
            yield Reach.WINDOW_WIDE
    if any(gone(case, index) for index in range(len(case.seqs))):
        yield Reach.EVICTED


def _heads(case: Case) -> Iterator[Reach]:
    ratio = case.num_q_heads // case.num_kv_heads
    if case.num_kv_heads == 1:
        yield Reach.MQA
        return
    yield Reach.GQA if ratio > 1 else Reach.MHA
    if ratio not in (1, case.num_kv_heads):
        yield Reach.HEADS_APART


def _features(case: Case) -> Iterator[Reach]:
    on = {
        "SOFTCAP": case.softcap is not None,
        "ALIBI": case.alibi,
        "SINKS": case.sinks,
        "SCALE": case.scale is not None,
        "K_SCALE": case.k_scale is not Scaling.NONE,
        "V_SCALE": case.v_scale is not Scaling.NONE,
    }
    kinds = _kinds(case)
    for name in _PHASED:
        if on[name] and Reach.DECODE in kinds:
            yield Reach[f"{name}_DECODE"]
        if on[name] and kinds & {Reach.CHUNK, Reach.PREFILL}:
            yield Reach[f"{name}_PREFILL"]


def _types(case: Case) -> Iterator[Reach]:
    yield Reach[f"QUERY_{case.dtype.upper()}"]
    name = case.cache_dtype.removeprefix("float8_").removesuffix("fn").upper()
    yield Reach[f"CACHE_{name}"]
    if case.head_dim & (case.head_dim - 1):
        yield Reach.ODD_HEAD_DIM
    if case.head_dim_v != case.head_dim:
        yield Reach.TWO_HEAD_DIMS
    if case.block_size & (case.block_size - 1):
        yield Reach.ODD_BLOCK


def _memory(case: Case) -> Iterator[Reach]:
    yield Reach[f"LAYOUT_{case.cache_layout.upper()}"]
    if case.row_layout is not RowLayout.DENSE:
        yield Reach[f"ROWS_{case.row_layout.upper()}"]
    if case.cache_layout is CacheLayout.FAR:
        yield Reach.HIGH_IDS
    if case.placement is not Placement.IDENTITY:
        yield Reach.PERMUTED
    if case.placement is Placement.HIGH:
        yield Reach.HIGH_IDS
    if case.shared_blocks and sum(keys > 0 for keys, _ in case.seqs) > 1:
        yield Reach.SHARED
    if case.buffers:
        yield Reach.BUFFERS
    if case.garbage in (Garbage.NAN, Garbage.INF):
        yield Reach.WILD_TAIL
    if case.contents in (Contents.PEAKY, Contents.NEEDLE):
        yield Reach.PEAKY
    if case.contents is Contents.HUGE:
        yield Reach.HUGE


# ------------------------------------------------------------------------- what is needed of it

Groups = tuple[tuple[Reach, ...], ...]
"""All groups must have been met; of each group, one member."""

_PREFILLS = (Reach.CHUNK, Reach.PREFILL)
_EDGES: Groups = ((Reach.BEFORE_BLOCK_END,), (Reach.AT_BLOCK_END,), (Reach.AFTER_BLOCK_END,))


def _both(*names: str) -> Groups:
    """A feature at decode and at prefill."""
    return tuple((Reach[f"{name}_{phase}"],) for name in names for phase in ("DECODE", "PREFILL"))


NEEDED: dict[str, Groups] = {
    "K1": ((Reach.DECODE, *_PREFILLS), (Reach.SEVERAL_BLOCKS,), *_EDGES),
    "K2": ((Reach.TAIL,),),
    "K3": ((Reach.EMPTY_ROW,),),
    "K4": ((Reach.SEVERAL_BLOCKS,),),
    "K5": (_PREFILLS,),
    "K6": (*_both("WINDOW"), (Reach.WINDOW_IN_BLOCK,), (Reach.WINDOW_WIDE,)),
    "K7": ((Reach.GQA, Reach.MQA, Reach.MHA),),
    "K8": ((Reach.PERMUTED,), (Reach.SEVERAL_BLOCKS,)),
    "K9": _both("SOFTCAP", "ALIBI", "SINKS", "SCALE"),
    "K10": _both("K_SCALE", "V_SCALE"),
    "K11": ((Reach.ODD_HEAD_DIM,), (Reach.ODD_BLOCK,)),
    "K12": ((Reach.HUGE,),),
    "K13": ((Reach.BUFFERS,),),
    "K14": ((Reach.BATCH,),),
}
"""What a verdict on an invariant rests on."""


def counted(met: Counter[Reach], *, telling: bool) -> Counter[Reach]:
    """What a check may count of what it met; modifiers only if it would see them forgotten."""
    return met if telling else Counter({r: n for r, n in met.items() if r not in MODIFIED})


def missing(
    invariant: str,
    met: Counter[Reach],
    declaration: Declaration,
    offered: Callable[[Reach], bool],
) -> list[str]:
    """What would have to be met for a verdict on an invariant, and was not.

    Not asked for: features that are not claimed, and what a kernel refuses: `offered` says whether
    it computes anything in which a state is met.
    """
    lacking = []
    for group in NEEDED.get(invariant, ()):
        if not any(met[each] for each in group):
            open_to_it = [each for each in group if claimed(each, declaration) and offered(each)]
            if open_to_it:
                lacking.append(" or ".join(each.value for each in open_to_it))
    return lacking


def claimed(reach: Reach, declaration: Declaration) -> bool:
    """Whether what a state needs is among what is declared."""
    claim = next((c for name, c in _CAPABILITIES.items() if reach.name.startswith(name)), None)
    return claim is None or declaration.has(claim)


def unreached_paths(kernel: Kernel) -> list[str]:
    """Execution paths that the kernel counts and has never taken."""
    return sorted(name for name, times in kernel.paths.items() if not times)
