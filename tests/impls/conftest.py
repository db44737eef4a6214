"""What the tests of the attention kernels share: small cases with one or two features each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import permutations, product
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kvassay.harness.attention.case import Case

FEATURES: dict[str, dict[str, Any]] = {
    "every head its own": {"num_q_heads": 2, "num_kv_heads": 2},
    "one head for all": {"num_q_heads": 3, "num_kv_heads": 1},
    "odd head size": {"head_dim": 5, "head_dim_v": 5},
    "values larger": {"head_dim_v": 24},
    "block size 1": {"block_size": 1},
    "block size 3": {"block_size": 3},
    "float32": {"dtype": "float32", "cache_dtype": "float32"},
    "float16": {"dtype": "float16", "cache_dtype": "float16"},
    "float32 query": {"dtype": "float32"},
    "e4m3 cache": {"cache_dtype": "float8_e4m3fn", "k_scale": "tensor", "v_scale": "head"},
    "e5m2 cache": {"cache_dtype": "float8_e5m2", "k_scale": "head", "v_scale": "token"},
    "int8 cache": {"cache_dtype": "int8", "k_scale": "token", "v_scale": "tensor"},
    "scales": {"k_scale": "head", "v_scale": "token"},
    "not causal": {"causal": False},
    "window 0": {"window_left": 0, "evicted": True},
    "window 3": {"window_left": 3, "evicted": True},
    "window wide": {"window_left": 1000},
    "scale": {"scale": 0.3},
    "soft cap": {"softcap": 2.0},
    "alibi": {"alibi": True},
    "sinks": {"sinks": True},
    "heads before slots": {"cache_layout": "hnd"},
    "gaps": {"cache_layout": "padded", "row_layout": "padded"},
    "values in keys": {"cache_layout": "v_in_k"},
    "far apart": {"cache_layout": "far"},
    "buffers": {"buffers": True},
}


SHAPE: dict[str, Any] = {
    "seqs": ((9, 3), (4, 0), (0, 1), (2, 5), (13, 1)),
    "head_dim": 16,
    "head_dim_v": 16,
    "block_size": 4,
    "garbage": "nan",
}


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small tensors gain nothing from threads, and lose much where other processes want them."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def pairs_of_features() -> Callable[[Collection[str]], list[Case]]:
    """Cases with several features each: any two meet, and either is met without the other.

    What the features `without` name is left out.
    """

    def cases(without: Collection[str]) -> list[Case]:
        names = [name for name in FEATURES if name not in without]
        left = {
            pair
            for pair in permutations([*product(names, (False, True))], 2)
            if pair[0][0] != pair[1][0] and _case(_present(pair)) is not None
        }
        found, rng = [], Random(0)
        while left:
            chosen = _drawn(min(left), names, rng)
            left -= set(permutations([(name, name in chosen) for name in names], 2))
            found.append(_case(chosen))
        return found

    return cases


Given = Iterable[tuple[str, bool]]
"""Features, and whether the case is to have them."""


def _present(given: Given) -> tuple[str, ...]:
    return tuple(name for name, present in given if present)


def _drawn(given: Given, names: Sequence[str], rng: Random) -> tuple[str, ...]:
    """What is given, and a few of the other features as far as they go with it."""
    chosen = _present(given)
    others = set(names) - {name for name, _ in given}
    for name in rng.sample(sorted(others), len(others) // 3):
        if _case((*chosen, name)) is not None:
            chosen = (*chosen, name)
    return chosen


def _case(names: tuple[str, ...]) -> Case | None:
    """All the features at once; None where that cannot be."""
    from kvassay.harness.attention.case import BadCase, Case

    fields: dict[str, Any] = {}
    for name in names:
        if any(fields.get(key, value) != value for key, value in FEATURES[name].items()):
            return None
        fields |= FEATURES[name]
    try:
        return Case(**{**SHAPE, **fields})
    except BadCase:
        return None
