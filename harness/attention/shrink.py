"""Delta debugging on a case: fewer and shorter sequences, fewer heads, everything plain.

A candidate counts if the caller's predicate still holds for it. Every candidate is less than the
case it comes from by a measure that cannot fall for ever, so the search ends by itself; time and
number of calls bound it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from kvassay.harness.attention.case import (
    BadCase,
    CacheLayout,
    Case,
    Contents,
    Garbage,
    Placement,
    RowLayout,
    Scaling,
)
from kvassay.harness.deadline import Deadline

Fails = Callable[[Case], bool]
MOST_CALLS = 600
PLAIN: dict[str, tuple[Any, ...]] = {
    "shared_blocks": (0,),
    "evicted": (False,),
    "buffers": (False,),
    "cache_layout": (CacheLayout.NHD,),
    "row_layout": (RowLayout.DENSE,),
    "placement": (Placement.IDENTITY, Placement.SHUFFLED),
    "garbage": (Garbage.ZERO, Garbage.FINITE),
    "softcap": (None, 2.0),
    "alibi": (False,),
    "sinks": (False,),
    "scale": (None,),
    "k_scale": (Scaling.NONE, Scaling.TENSOR, Scaling.HEAD),
    "v_scale": (Scaling.NONE, Scaling.TENSOR, Scaling.HEAD),
    "window_left": (None, 0, 1),
    "contents": (Contents.PLAIN,),
    "causal": (True,),
    "mark": (0,),
    "garbage_seed": (0,),
    "seed": (0,),
}
"""The plainest values of each field, the plainest first."""
TYPES = (("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "float16"))
HEAD_DIMS = (64, 32, 16, 8, 4)
BLOCK_SIZES = (16, 8, 4, 2, 1)


def shrink(case: Case, fails: Fails, deadline: Deadline, calls: int = MOST_CALLS) -> Case:
    """The least case found for which `fails` still holds; `case` itself if nothing less does."""
    return _Search(fails, deadline, calls).least(case)


class _Search:
    """What has been tried, and what is left of time and calls."""

    def __init__(self, fails: Fails, deadline: Deadline, calls: int) -> None:
        self._fails = fails
        self._deadline = deadline
        self._left = calls
        self._tried: set[Case] = set()

    def least(self, case: Case) -> Case:
        """Pass after pass, until none finds anything."""
        before = None
        while case != before and not self._over:
            before = case
            case = self._all_plain(case)
            for candidates in PASSES:
                case = self._exhaust(case, candidates)
        return case

    @property
    def _over(self) -> bool:
        return self._left <= 0 or self._deadline.passed

    def _exhaust(self, case: Case, candidates: Callable[[Case], Iterator[Case]]) -> Case:
        """Take the first candidate that holds, and begin again with it."""
        found: Case | None = case
        while found is not None:
            case = found
            found = next((each for each in candidates(case) if self._holds(each)), None)
        return case

    def _all_plain(self, case: Case) -> Case:
        """All that is special at once, or half of it: most has no part in the failure."""
        names = [name for name, values in PLAIN.items() if getattr(case, name) != values[0]]
        for part in (names, names[: len(names) // 2], names[len(names) // 2 :]):
            plain = _changed(case, **{name: PLAIN[name][0] for name in part})
            if plain is not None and self._holds(plain):
                return plain
        return case

    def _holds(self, case: Case) -> bool:
        if self._over or case in self._tried:
            return False
        self._tried.add(case)
        self._left -= 1
        return self._fails(case)


def _changed(case: Case, **changes: Any) -> Case | None:
    """The case with other fields, where that makes one."""
    try:
        return replace(case, **changes)
    except BadCase:
        return None


def _cases(case: Case, options: Iterator[dict[str, Any]]) -> Iterator[Case]:
    for changes in options:
        changed = _changed(case, **changes)
        if changed is not None and changed != case:
            yield changed


# -------------------------------------------------------------------------------------- passes


def fewer_sequences(case: Case) -> Iterator[Case]:
    """One alone, either half, one less."""
    seqs, half = case.seqs, len(case.seqs) // 2
    if len(seqs) < 2:
        return
    options = [(each,) for each in seqs] + [seqs[:half], seqs[half:]]
    options += [seqs[:at] + seqs[at + 1 :] for at in range(len(seqs))]
    yield from _cases(case, ({"seqs": each} for each in dict.fromkeys(options)))


def shorter_sequences(case: Case) -> Iterator[Case]:
    """Fewer rows, then fewer keys, of one sequence at a time."""
    for at, (keys, queries) in enumerate(case.seqs):
        options = [(keys - queries + left, left) for left in _less(queries, case.block_size)]
        options += [(keys, left) for left in _less(queries, case.block_size)]
        options += [(left, queries) for left in _less(keys, case.block_size) if left >= queries]
        options += [(left, min(left, queries)) for left in _less(keys, case.block_size)]
        yield from _cases(
            case,
            ({"seqs": (*case.seqs[:at], each, *case.seqs[at + 1 :])} for each in options),
        )


def _less(number: int, block_size: int) -> Iterator[int]:
    """Smaller numbers: next to nothing, half, to a block boundary, one block less, one less."""
    edge = number // block_size * block_size
    options = (1, 2, number // 2, edge + 1, edge, edge - 1, number - block_size, number - 1)
    yield from (each for each in dict.fromkeys(options) if 0 <= each < number)


def fewer_heads(case: Case) -> Iterator[Case]:
    """The same ratio with fewer KV heads, then smaller ratios."""
    kv_heads, ratio = case.num_kv_heads, case.num_q_heads // case.num_kv_heads
    options = [(1, 1), (2, 2), (2, 1), (4, 2), (6, 3)]
    options += [(ratio * left, left) for left in range(1, kv_heads)]
    fewer = [each for each in options if _measure(each) < _measure((case.num_q_heads, kv_heads))]
    fewer.sort(key=_measure)
    yield from _cases(case, ({"num_q_heads": q, "num_kv_heads": kv} for q, kv in fewer))


def _measure(heads: tuple[int, int]) -> tuple[int, int]:
    return heads[0] + heads[1], heads[0]


def smaller_sizes(case: Case) -> Iterator[Case]:
    """Head sizes: equal and a power of two, then less."""
    dim, dim_v = case.head_dim, case.head_dim_v
    options = [(each, each) for each in HEAD_DIMS]
    options += [(dim_v, dim_v), (dim, dim)] if dim != dim_v else []
    smaller = [each for each in options if sum(each) < dim + dim_v]
    yield from _cases(case, ({"head_dim": d, "head_dim_v": v} for d, v in smaller))


def smaller_blocks(case: Case) -> Iterator[Case]:
    """Smaller blocks, with lengths that stand as they did to the boundaries, or the same ones."""
    smaller = [size for size in BLOCK_SIZES if size < case.block_size]
    for size in reversed(smaller):
        seqs = tuple(_rescaled(each, case.block_size, size) for each in case.seqs)
        yield from _cases(case, iter([{"block_size": size, "seqs": seqs}]))
    yield from _cases(case, ({"block_size": size} for size in smaller))


def _rescaled(sequence: tuple[int, int], old: int, new: int) -> tuple[int, int]:
    keys, queries = sequence
    blocks, rest = divmod(keys, old)
    if rest == old - 1:
        rest = new - 1
    shorter = min(keys, blocks * new + min(rest, new))
    return shorter, min(queries, shorter)


def plainer_fields(case: Case) -> Iterator[Case]:
    """One field at a time, to each value that is plainer than its own."""
    for name, values in PLAIN.items():
        current = getattr(case, name)
        rank = values.index(current) if current in values else len(values)
        yield from _cases(case, ({name: value} for value in values[:rank]))


def plainer_types(case: Case) -> Iterator[Case]:
    """One type for all, the most precise first."""
    current = (case.dtype, case.cache_dtype)
    rank = TYPES.index(current) if current in TYPES else len(TYPES)
    yield from _cases(case, ({"dtype": d, "cache_dtype": c} for d, c in TYPES[:rank]))


def smaller_numbers(case: Case) -> Iterator[Case]:
    """A narrower window, an earlier mark."""
    if case.window_left is not None and case.window_left > 1:
        options = [n for n in _less(case.window_left, case.block_size) if n > 1]
        yield from _cases(case, ({"window_left": n} for n in options))
    if case.mark > 0:
        yield from _cases(case, ({"mark": n} for n in _less(case.mark, case.block_size)))


PASSES: tuple[Callable[[Case], Iterator[Case]], ...] = (
    fewer_sequences,
    plainer_fields,
    shorter_sequences,
    fewer_heads,
    smaller_sizes,
    plainer_types,
    smaller_blocks,
    smaller_numbers,
)
"""In the order of what they save."""
