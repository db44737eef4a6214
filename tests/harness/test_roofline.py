"""The roofline: counted by brute force, and beside numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvassay.harness.roofline import (
    H200,
    Ceiling,
    Shape,
    bound,
    floor,
    visible_pairs,
    visible_slots,
    work,
)

SEQS = ((7, 1), (5, 5), (12, 3), (4, 0), (0, 0))


def by_hand(shape: Shape) -> list[set[int]]:
    """The keys that each row sees."""
    rows = []
    for keys, count in shape.seqs:
        for position in range(keys - count, keys):
            seen = {key for key in range(keys) if not shape.causal or key <= position}
            if shape.window_left is not None:
                seen = {key for key in seen if key >= position - shape.window_left}
            rows.append(seen)
    return rows


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window_left", [None, 0, 2, 100])
def test_pairs_are_those_that_a_mask_leaves(causal: bool, window_left: int | None) -> None:
    shape = Shape("", SEQS, causal=causal, window_left=window_left)
    assert visible_pairs(shape) == sum(len(seen) for seen in by_hand(shape))


@pytest.mark.parametrize("window_left", [None, 0, 2, 100])
def test_slots_are_those_that_some_row_sees(window_left: int | None) -> None:
    shape = Shape("", ((9, 2),), window_left=window_left)
    assert visible_slots(shape) == len(set.union(*by_hand(shape)))


def test_a_decode_of_llama_is_bound_by_memory() -> None:
    """64 rows over 4,096 keys: 1.07 GB of cache, 224 us at 4.8 TB/s, 4 FLOP per byte."""
    least = work(Shape("", ((4096, 1),) * 64))
    assert least.kv_bytes == 64 * 4096 * 8 * 256 * 2
    assert least.flop == 2 * 64 * 4096 * 32 * 256
    assert floor(least, H200) == pytest.approx(223.9e-6, rel=1e-3)
    assert least.intensity == pytest.approx(4.0, rel=0.01)
    assert bound(least, H200) == "memory"


def test_a_prefill_of_llama_is_bound_by_products() -> None:
    """4,096 rows over themselves: 137.5 GFLOP, 139 us at 989 TFLOP/s."""
    least = work(Shape("", ((4096, 4096),)))
    assert least.flop == pytest.approx(137.5e9, rel=1e-3)
    assert floor(least, H200) == pytest.approx(139.0e-6, rel=1e-3)
    assert bound(least, H200) == "matmul"


def test_splits_write_their_parts_and_read_them() -> None:
    shape = Shape("", ((4096, 1),))
    more = work(shape, num_splits=8).bytes - work(shape).bytes
    assert more == 2 * 8 * 32 * 129 * 4


def test_a_faster_machine_has_a_lower_floor() -> None:
    least = work(Shape("", SEQS))
    slow = Ceiling(bandwidth=1e9, matmul=1e9)
    assert floor(least, replace(slow, bandwidth=2e9, matmul=2e9)) == floor(least, slow) / 2
