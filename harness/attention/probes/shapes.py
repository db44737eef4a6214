"""Shapes for probes: the first that a kernel accepts, and how long a row it gets through soon."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any
from weakref import WeakKeyDictionary

from kvassay.harness.attention.case import BadCase, Case
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.wrong import Refused, Wrong
from kvassay.harness.contract import Capability
from kvassay.harness.violation import Crash

DTYPES = ("float32", "bfloat16", "float16")
HALF_FIRST = ("bfloat16", "float32", "float16")
HEAD_DIMS = (64, 128, 256)
BLOCK_SIZES = (16, 32, 64, 128, 1)
HEADS = ((4, 2), (2, 1), (2, 2), (8, 1))
ONE_KV_HEAD = ((2, 1), (8, 1), (4, 2), (2, 2))
"""For probes that a wrong head map must not touch."""
LEAST = (((3, 1),), ((3, 3),))
"""What a kernel is asked with."""
LONG = (2011, 4093, 16381, 65531)
PATIENCE = 2.0
"""Seconds that one call on a long row may take."""
_TRIED = 1024
_FREE = ("contents", "mark", "garbage")
"""Fields that no kernel can refuse by."""


def fitted(
    kernel: Kernel,
    *,
    dtypes: tuple[str, ...] = DTYPES,
    head_dims: tuple[int, ...] = HEAD_DIMS,
    block_sizes: tuple[int, ...] = BLOCK_SIZES,
    heads: tuple[tuple[int, int], ...] = HEADS,
    **fields: Any,
) -> Case | None:
    """The first of these shapes, with these fields, that the kernel accepts; None if it is none.

    A kernel that accepts none of the usual shapes is not asked again.
    """
    free = {name: fields.pop(name) for name in _FREE if name in fields}
    usual = dtypes, head_dims, block_sizes, heads
    plain = (DTYPES, HEAD_DIMS, BLOCK_SIZES, HEADS)
    if (usual != plain or fields) and _found(kernel, *plain, ()) is None:
        return None
    found = _found(kernel, *usual, tuple(sorted(fields.items())))
    return None if found is None else replace(found, **free)


_shapes: WeakKeyDictionary[Kernel, dict[Any, Case | None]] = WeakKeyDictionary()


def _found(kernel: Kernel, *asked: Any) -> Case | None:
    known = _shapes.setdefault(kernel, {})
    if asked not in known:
        known[asked] = _first(kernel, *asked)
    return known[asked]


def _first(
    kernel: Kernel,
    dtypes: tuple[str, ...],
    head_dims: tuple[int, ...],
    block_sizes: tuple[int, ...],
    heads: tuple[tuple[int, int], ...],
    fields: tuple[tuple[str, Any], ...],
) -> Case | None:
    causal = kernel.has(Capability.CAUSAL)
    for dtype, dim, (q, kv), size in product(dtypes, head_dims, heads, block_sizes):
        for seqs in LEAST:
            shape: dict[str, Any] = {
                "dtype": dtype,
                "cache_dtype": dtype,
                "head_dim": dim,
                "head_dim_v": dim,
                "num_q_heads": q,
                "num_kv_heads": kv,
                "block_size": size,
                "causal": causal,
            }
            case = Case(seqs, **{**shape, **dict(fields)})
            if kernel.accepts(case):
                return case
    return None


def buffered(kernel: Kernel, **shape: Any) -> Case | None:
    """The same with buffers, if it takes them: what is not written is then the same each time."""
    return fitted(kernel, buffers=True, **shape) or fitted(kernel, **shape)


def taken(kernel: Kernel, case: Case, **changes: Any) -> bool:
    """Whether the kernel accepts the case with these changes; what is no case it does not."""
    try:
        return kernel.accepts(replace(case, **changes))
    except BadCase:
        return False


def lattice(size: int) -> tuple[int, ...]:
    """Lengths at the edges of blocks of that size."""
    near = {1, size - 1, size, size + 1, 2 * size - 1, 2 * size, 2 * size + 1, 5 * size + 3}
    return tuple(sorted(near - {0}))


def decode(*lengths: int) -> tuple[tuple[int, int], ...]:
    """A sequence with one row for each length."""
    return tuple((length, 1) for length in lengths)


def in_turn(*sources: Iterator[Case]) -> Iterator[Case]:
    """One case of each source after the other, until all are used up."""
    waiting = list(sources)
    while waiting:
        for source in list(waiting):
            case = next(source, None)
            if case is None:
                waiting.remove(source)
            else:
                yield case


def long_lengths(kernel: Kernel, base: Case) -> tuple[int, ...]:
    """Lengths of `LONG` that one decode row of this kernel gets through in `PATIENCE` seconds."""
    cost = _seconds(kernel, base)
    return tuple(length for length in LONG if length * cost <= PATIENCE)


_costs: WeakKeyDictionary[Kernel, float] = WeakKeyDictionary()


def _seconds(kernel: Kernel, base: Case) -> float:
    """Seconds per key of a decode row, the head count of `base` included."""
    if kernel not in _costs:
        built = kernel.build(replace(base, seqs=decode(_TRIED)))
        try:
            start = time.perf_counter()
            kernel.attend(built)
            _costs[kernel] = (time.perf_counter() - start) / _TRIED
        except (Refused, Crash, Wrong):
            _costs[kernel] = 0.0
    return _costs[kernel]
