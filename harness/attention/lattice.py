"""The shape lattice: every length, context and number of rows that lies at some edge.

With block size B and a window of W keys: lengths 0, 1, B-1, B, B+1, 2B-1, 2B, 2B+1, W-1, W, W+1;
contexts 0, 1, B-1, B, B+1; rows 0, 1, 2, B, B+1. Long, short and empty ones share a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from random import Random
from typing import Any

from kvassay.harness.attention.case import BadCase, Case, Contents
from kvassay.harness.attention.lengths import Phase, Seqs
from kvassay.harness.attention.offers import Offers

BATCH = 4
"""Sequences of a case."""
LONGEST_BLOCK = 32
BLOCKS = 4
"""Block sizes that are gone through."""


def lattice(offers: Offers, rng: Random) -> Iterator[Case]:
    """Cases over block sizes and windows, a batch of each in turn."""
    waiting = [_grid(offers, size, keys, rng) for size, keys in _shapes(offers)]
    while waiting:
        for grid in list(waiting):
            case = next(grid, None)
            if case is None:
                waiting.remove(grid)
            else:
                yield case


def _shapes(offers: Offers) -> list[tuple[int, int | None]]:
    """Block sizes, each with a window (in keys) below and above a block and without one."""
    options = [dict(value.fields)["block_size"] for value in offers.values["block_size"]]
    sizes = [size for size in options if size <= LONGEST_BLOCK][:BLOCKS] or options[:1]
    windows = len(offers.values["window"]) > 1
    shapes: list[tuple[int, int | None]] = []
    for size in sizes:
        shapes.append((size, None))
        if windows:
            shapes += [(size, max(1, size // 2)), (size, size + size // 2 + 1)]
    return sorted(shapes, key=lambda shape: shape[1] is not None)


def sequences(offers: Offers, block_size: int, window: int | None) -> list[tuple[int, int]]:
    """(keys, rows) at all edges, as far as the kernel accepts such rows."""
    size = block_size
    lengths = {0, 1, size - 1, size, size + 1, 2 * size - 1, 2 * size, 2 * size + 1}
    if window is not None:
        lengths |= {window - 1, window, window + 1}
    contexts, rows = {0, 1, size - 1, size, size + 1}, {0, 1, 2, size, size + 1}
    found = {(n, 1) for n in lengths} | {(c + q, q) for c, q in product(contexts, rows)}
    phases = {value.name for value in offers.values["phase"]}
    return sorted(each for each in found if _phase(each) in phases)


def _phase(sequence: tuple[int, int]) -> Phase:
    keys, queries = sequence
    if queries == 0:
        return Phase.NO_ROWS
    if queries > keys:
        return Phase.EMPTY
    if queries == 1:
        return Phase.DECODE
    return Phase.PREFILL if queries == keys else Phase.CHUNK


def _grid(offers: Offers, size: int, window: int | None, rng: Random) -> Iterator[Case]:
    waiting = sequences(offers, size, window)
    rng.shuffle(waiting)
    while waiting:
        batch, waiting = waiting[:BATCH], waiting[BATCH:]
        yield from _case(offers, tuple(batch), size, window, rng)


def _case(offers: Offers, seqs: Seqs, size: int, window: int | None, rng: Random) -> Iterator[Case]:
    """A case with these sequences; heads and types change from one to the next."""
    changes: dict[str, Any] = {}
    for name in ("types", "heads"):
        changes.update(rng.choice(offers.values[name]).fields)
    if changes["cache_dtype"] not in ("bfloat16", "float16", "float32"):
        changes.update(offers.base["types"].fields)
    try:
        yield offers.plain(
            seqs=seqs,
            block_size=size,
            window_left=None if window is None else window - 1,
            seed=rng.randrange(1000),
            **changes,
        )
    except BadCase:
        return


# ----------------------------------------------------------------------------------- long rows

LONG_SEQS: tuple[Seqs, ...] = (
    ((1030, 1),),
    ((700, 3),),
    ((2049, 1), (5, 1)),
    ((515, 33),),
    ((4100, 1),),
)
FEATURES: tuple[dict[str, Any], ...] = (
    {},
    {"window": 300, "evicted": True},
    {"sinks": True},
    {"softcap": 2.0},
    {"alibi": True},
    {"window": 129},
)


def long_rows(offers: Offers, rng: Random) -> Iterator[Case]:
    """Rows of hundreds and thousands of keys, with one feature each: splits and whole tiles."""
    for number in range(2 * len(FEATURES)):
        seqs = LONG_SEQS[number % len(LONG_SEQS)]
        feature = FEATURES[number % len(FEATURES)]
        if not _offered(offers, feature):
            continue
        yield from _long(offers, seqs, feature, rng)


def _offered(offers: Offers, feature: dict[str, Any]) -> bool:
    return all(len(offers.values[name]) > 1 for name in feature)


def _long(offers: Offers, seqs: Seqs, feature: dict[str, Any], rng: Random) -> Iterator[Case]:
    phases = {value.name for value in offers.values["phase"]}
    if not all(_phase(each) in phases for each in seqs):
        return
    changes = dict(feature)
    if "window" in changes:
        changes["window_left"] = changes.pop("window")
    if rng.random() < 0.3:
        changes["contents"] = Contents.PEAKY
    yield offers.plain(seqs=seqs, seed=rng.randrange(1000), **changes)
