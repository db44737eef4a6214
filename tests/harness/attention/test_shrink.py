"""Shrinking keeps the failure, makes the case small, and ends."""

from dataclasses import fields, replace

import pytest

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
from kvassay.harness.attention.shrink import MOST_CALLS, PASSES, PLAIN, shrink
from kvassay.harness.deadline import Deadline

LARGE = Case(
    ((5, 1), (130, 40), (0, 0), (77, 1), (33, 33)),
    num_q_heads=14,
    num_kv_heads=2,
    head_dim=192,
    head_dim_v=128,
    block_size=32,
    dtype="float16",
    cache_dtype="float8_e4m3fn",
    window_left=50,
    softcap=20.0,
    scale=0.2,
    alibi=True,
    sinks=True,
    k_scale=Scaling.TOKEN,
    v_scale=Scaling.HEAD,
    contents=Contents.NEEDLE,
    mark=31,
    cache_layout=CacheLayout.PACKED,
    row_layout=RowLayout.FUSED,
    placement=Placement.REVERSED,
    shared_blocks=1,
    evicted=True,
    garbage=Garbage.NAN,
    buffers=True,
    garbage_seed=5,
    seed=77,
)
LEAST = Case(
    ((0, 0),),
    num_q_heads=1,
    num_kv_heads=1,
    head_dim=4,
    head_dim_v=4,
    block_size=1,
    dtype="float32",
    cache_dtype="float32",
    placement=Placement.IDENTITY,
    garbage=Garbage.ZERO,
)


def test_a_failure_of_everything_leaves_nothing() -> None:
    assert shrink(LARGE, lambda case: True, Deadline(10)) == LEAST


def test_what_the_failure_needs_is_kept_and_nothing_else() -> None:
    def fails(case: Case) -> bool:
        long = any(keys >= 17 and queries >= 2 for keys, queries in case.seqs)
        return long and case.softcap is not None and case.num_kv_heads > 1

    small = shrink(LARGE, fails, Deadline(10))
    assert small == replace(LEAST, seqs=((17, 2),), num_q_heads=2, num_kv_heads=2, softcap=2.0)


@pytest.mark.parametrize(
    "needs",
    [
        lambda case: case.evicted,
        lambda case: case.cache_dtype.startswith("float8"),
        lambda case: case.k_scale is Scaling.TOKEN,
        lambda case: case.head_dim != case.head_dim_v,
        lambda case: case.num_q_heads // case.num_kv_heads > 2,
        lambda case: case.dtype == "float16",
        lambda case: sum(queries == 1 for _, queries in case.seqs) >= 2,
        lambda case: case.block_size >= 8 and case.seqs[0][0] % case.block_size == 1,
        lambda case: case.window_left is not None and case.window_left >= 7,
    ],
)
def test_one_need_is_kept(needs: object) -> None:
    assert callable(needs)
    case = replace(LARGE, seqs=((33, 1), *LARGE.seqs))
    small = shrink(case, needs, Deadline(10))
    assert needs(small)
    differing = [f for f in case.__dataclass_fields__ if getattr(small, f) != getattr(LEAST, f)]
    assert len(differing) <= 3
    assert len(small.seqs) <= 2


def test_lengths_keep_their_place_at_block_boundaries_when_blocks_shrink() -> None:
    def fails(case: Case) -> bool:
        return case.block_size > 1 and any(
            keys > case.block_size and keys % case.block_size == 1 for keys, _ in case.seqs
        )

    small = shrink(Case(((65, 1), (40, 3)), block_size=32), fails, Deadline(10))
    assert small.block_size == 2
    assert small.seqs == ((3, 0),) or small.seqs == ((3, 1),)


def test_two_blocks_stay_two_blocks_when_blocks_shrink() -> None:
    def fails(case: Case) -> bool:
        return case.block_size > 1 and case.seqs[0] == (2 * case.block_size - 1, 1)

    small = shrink(Case(((63, 1),), block_size=32), fails, Deadline(10))
    assert (small.block_size, small.seqs) == (2, ((3, 1),))


def test_the_least_case_stays() -> None:
    assert shrink(LEAST, lambda case: case == LEAST, Deadline(10)) == LEAST


def test_a_case_that_alone_fails_stays() -> None:
    assert shrink(LARGE, lambda case: case == LARGE, Deadline(10)) == LARGE


def test_calls_are_bounded_and_no_case_is_tried_twice() -> None:
    tried: list[Case] = []

    def fails(case: Case) -> bool:
        tried.append(case)
        return len(case.seqs) > 1 and case.softcap is not None

    shrink(LARGE, fails, Deadline(10))
    assert len(set(tried)) == len(tried) <= MOST_CALLS
    tried.clear()
    shrink(LARGE, fails, Deadline(10), calls=7)
    assert len(tried) == 7


def test_no_time_no_calls() -> None:
    def fails(case: Case) -> bool:
        raise AssertionError("there was no time for that")

    assert shrink(LARGE, fails, Deadline(0.0)) == LARGE


@pytest.mark.parametrize("candidates", PASSES, ids=lambda each: each.__name__)
def test_every_pass_offers_something_and_only_cases(candidates: object) -> None:
    assert callable(candidates)
    found = list(candidates(LARGE))
    assert found
    assert LARGE not in found
    assert all(isinstance(each, Case) for each in found)


def test_every_field_of_a_case_is_made_plain_by_some_pass() -> None:
    numbers = {"seqs", "num_q_heads", "num_kv_heads", "head_dim", "head_dim_v", "block_size"}
    types = {"dtype", "cache_dtype"}
    assert {each.name for each in fields(Case)} == {*PLAIN, *numbers, *types}


def test_what_makes_no_case_is_not_offered() -> None:
    with pytest.raises(BadCase):
        replace(LARGE, window_left=None)
    assert all(
        each.window_left is not None or not each.evicted
        for candidates in PASSES
        for each in candidates(LARGE)
    )
