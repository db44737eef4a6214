"""EvictionWatch: a wrong victim is convicted, and nothing that a correct manager may do is."""

from __future__ import annotations

import pytest

from kvassay.harness.contract import Declaration, Order, Stamp, Tie
from kvassay.reference.blocks import Blocks
from kvassay.reference.eviction import EvictionWatch, WrongVictim


class Pool:
    """Cached blocks with tags that are their own numbers, and the watch over them."""

    def __init__(self, order: Order = Order.LRU, tie: Tie = Tie.TAIL_FIRST) -> None:
        self.blocks = Blocks(8)
        stamps = frozenset({Stamp.RELEASE})
        self.watch = EvictionWatch(Declaration(order=order, tie=tie, stamps=stamps), self.blocks)

    def cached(
        self,
        block: int,
        stamp: int,
        *,
        depth: int = 0,
        path: tuple[int, ...] = (),
        idle_since: int = 0,
        busy: bool = False,
    ) -> None:
        """A block of one token, below the blocks of `path`."""
        self.blocks.hand_out(block, now=0)
        if busy:
            self.blocks.hold(block)
        self.blocks.publish(block, now=stamp, depth=depth or len(path))
        self.blocks.idle_since[block] = idle_since
        self.watch.link(block, [*path, block], len(path), 1)

    def open(self, time: int = 10, pinned: tuple[int, ...] = ()) -> None:
        self.watch.open(time, pinned, pressure_before=0)


def test_the_least_recent_must_go_first() -> None:
    pool = Pool()
    pool.cached(0, stamp=1)
    pool.cached(1, stamp=2)
    pool.open()
    assert pool.watch.went(1) is None
    assert pool.watch.stay([0]) == WrongVictim(time=10, gone=1, stayed=0)
    assert pool.watch.compared == 1


def test_the_right_victim_is_not_convicted() -> None:
    pool = Pool()
    pool.cached(0, stamp=1)
    pool.cached(1, stamp=2)
    pool.open()
    assert pool.watch.went(0) is None
    assert pool.watch.stay([1]) is None
    assert pool.watch.compared == 1


def test_what_stayed_may_be_known_before_what_went() -> None:
    pool = Pool()
    pool.cached(0, stamp=1)
    pool.cached(1, stamp=2)
    pool.open()
    assert pool.watch.stay([0]) is None
    assert pool.watch.went(1) == WrongVictim(time=10, gone=1, stayed=0)


def test_a_block_that_was_handed_out_again_did_not_stay() -> None:
    pool = Pool()
    pool.cached(0, stamp=1)
    pool.cached(1, stamp=2)
    pool.open()
    pool.watch.went(1)
    pool.blocks.hand_out(0, now=11)
    assert pool.watch.stay([0]) is None


@pytest.mark.parametrize(("pinned", "busy"), [((0,), False), ((), True)])
def test_what_is_pinned_or_in_use_need_not_go(pinned: tuple[int, ...], busy: bool) -> None:
    for spared in (True, False):
        pool = Pool()
        pool.cached(0, stamp=1, busy=busy and spared)
        pool.cached(1, stamp=2)
        pool.open(pinned=pinned if spared else ())
        pool.watch.went(1)
        assert (pool.watch.stay([0]) is None) is spared


def test_a_parent_is_not_due_before_what_hangs_below_it() -> None:
    for child_stamp, due in ((5, False), (1, True)):
        pool = Pool()
        pool.cached(0, stamp=1)
        pool.cached(1, stamp=child_stamp, path=(0,))
        pool.cached(2, stamp=3)
        pool.open()
        pool.watch.went(2)
        wrong = pool.watch.stay([0])
        assert (wrong == WrongVictim(time=10, gone=2, stayed=0)) is due


def test_a_parent_of_a_block_in_use_is_never_due() -> None:
    for busy in (True, False):
        pool = Pool()
        pool.cached(0, stamp=1)
        pool.cached(1, stamp=1, path=(0,), busy=busy)
        pool.cached(2, stamp=3)
        pool.open()
        pool.watch.went(2)
        assert (pool.watch.stay([0]) is None) is busy


def test_a_block_that_became_idle_after_an_eviction_may_have_been_in_use() -> None:
    """Block 1 may have gone in operation 5, when block 0 was still in use."""
    for pressed, convicted in (((), True), ((5,), False), ((4,), True), ((7,), True)):
        pool = Pool()
        pool.cached(1, stamp=2, idle_since=4)
        for time in pressed:
            pool.open(time)
        pool.cached(0, stamp=1, idle_since=7)
        pool.open()
        pool.watch.went(1)
        assert (pool.watch.stay([0]) is not None) is convicted, pressed


@pytest.mark.parametrize(
    ("tie", "gone", "stayed", "convicted"),
    [
        (Tie.TAIL_FIRST, 0, 1, True),
        (Tie.TAIL_FIRST, 1, 0, False),
        (Tie.HEAD_FIRST, 1, 0, True),
        (Tie.HEAD_FIRST, 0, 1, False),
        (Tie.ANY, 0, 1, False),
        (Tie.ANY, 1, 0, False),
    ],
)
def test_equal_stamps_follow_the_declared_tie(
    tie: Tie, gone: int, stayed: int, convicted: bool
) -> None:
    """Blocks 0 and 1 are head and tail of one chain."""
    pool = Pool(tie=tie)
    pool.cached(0, stamp=3)
    pool.cached(1, stamp=3, path=(0,))
    pool.open()
    pool.watch.went(gone)
    assert (pool.watch.stay([stayed]) is not None) is convicted


@pytest.mark.parametrize(("tie", "convicted"), [(Tie.HEAD_FIRST, True), (Tie.TAIL_FIRST, False)])
def test_head_first_convicts_across_chains(tie: Tie, convicted: bool) -> None:
    pool = Pool(tie=tie)
    pool.cached(0, stamp=3)
    pool.cached(1, stamp=3, depth=1)
    pool.open()
    pool.watch.went(1)
    assert (pool.watch.stay([0]) is not None) is convicted


def test_without_an_order_nothing_is_convicted() -> None:
    for order in (Order.NONE, Order.LRU):
        pool = Pool(order=order)
        pool.cached(0, stamp=1)
        pool.cached(1, stamp=2)
        pool.open()
        pool.watch.went(1)
        assert (pool.watch.stay([0]) is None) is (order is Order.NONE)


def test_one_operation_is_one_moment_and_a_reset_ends_all() -> None:
    pool = Pool()
    pool.cached(0, stamp=1)
    pool.cached(1, stamp=2)
    first = pool.watch.open(10, (), 0)
    assert pool.watch.open(10, (), 0) is first
    assert pool.watch.open(11, (), 10) is not first
    pool.watch.went(1)
    pool.watch.forget()
    assert pool.watch.stay([0]) is None
    assert not pool.watch.moments


@pytest.mark.parametrize("doubtful", [False, True])
def test_what_may_have_been_used_once_more_is_not_surely_used_least(doubtful: bool) -> None:
    """Block 1 was used once; block 0 never, or in a look-up that was refused."""
    pool = Pool(order=Order.LFU)
    pool.cached(0, stamp=1)
    pool.cached(1, stamp=2)
    pool.blocks.stamp([1], now=3)
    if doubtful:
        pool.blocks.may_stamp([0], now=4)
    pool.open()
    pool.watch.went(1)
    assert (pool.watch.stay([0]) is None) is doubtful
