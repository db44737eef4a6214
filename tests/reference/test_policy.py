"""Replacement policies: ranks, ties, and the leaf rule against a tree walked by brute force."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.harness.contract import Order, Tie
from kvassay.reference.policy import Access, goes_before, leaf_ranks, rank

OLD = Access(born=1, stamp=9, count=5, priority=1)
NEW = Access(born=2, stamp=3, count=7, priority=0)


@pytest.mark.parametrize(
    ("order", "first"),
    [
        (Order.LRU, NEW),
        (Order.LFU, OLD),
        (Order.FIFO, OLD),
        (Order.FILO, NEW),
        (Order.PRIORITY, NEW),
    ],
)
def test_the_lowest_rank_goes_first(order: Order, first: Access) -> None:
    assert min((OLD, NEW), key=lambda access: rank(order, access)) is first
    assert rank(order, OLD) != rank(order, NEW)


@pytest.mark.parametrize("order", [Order.LFU, Order.PRIORITY])
def test_equal_counts_and_priorities_are_settled_by_the_last_access(order: Order) -> None:
    assert rank(order, Access(stamp=1)) < rank(order, Access(stamp=2))


def test_no_order_ranks_nothing() -> None:
    assert rank(Order.LRU, OLD) == (9,)
    with pytest.raises(ValueError, match="ranks nothing"):
        rank(Order.NONE, OLD)


@pytest.mark.parametrize(
    ("tie", "deeper_first", "shallower_first"),
    [(Tie.TAIL_FIRST, True, False), (Tie.HEAD_FIRST, False, True), (Tie.ANY, False, False)],
)
def test_depth_settles_ties_as_declared(
    tie: Tie, deeper_first: bool, shallower_first: bool
) -> None:
    head, tail = ((7,), 0), ((7,), 1)
    assert goes_before(tie, tail, head) is deeper_first
    assert goes_before(tie, head, tail) is shallower_first
    assert not goes_before(tie, head, head)


@pytest.mark.parametrize("tie", list(Tie))
def test_ranks_come_before_depth(tie: Tie) -> None:
    for low_depth, high_depth in ((0, 5), (5, 0)):
        assert goes_before(tie, ((1,), low_depth), ((2,), high_depth))
        assert not goes_before(tie, ((2,), high_depth), ((1,), low_depth))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_leaf_ranks_are_the_highest_of_the_whole_subtree(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 8))
    parents = {block: data.draw(st.integers(-1, block - 1)) for block in range(size)}
    ranks = {block: data.draw(st.none() | st.tuples(st.integers(0, 3))) for block in range(size)}
    children: dict[int, list[int]] = {}
    for block, parent in parents.items():
        children.setdefault(parent, []).append(block)

    def subtree(block: int) -> list[int]:
        return [block, *(below for child in children.get(block, ()) for below in subtree(child))]

    expected = {}
    for block in range(size):
        below = [ranks[each] for each in subtree(block)]
        known = [value for value in below if value is not None]
        expected[block] = max(known) if len(known) == len(below) else None
    assert leaf_ranks(ranks, children, list(reversed(range(size)))) == expected


def test_a_child_that_is_not_cached_does_not_count() -> None:
    assert leaf_ranks({0: (1,)}, {0: [9]}, [0]) == {0: (1,)}
    assert leaf_ranks({0: (1,), 9: (4,)}, {0: [9]}, [9, 0]) == {0: (4,), 9: (4,)}
