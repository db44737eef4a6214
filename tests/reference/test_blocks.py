"""The pool as an outsider sees it: holders, tenancies, publications and what is surely free."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.reference.blocks import Blocks


def pool(num_blocks: int = 4, held: int = 0) -> Blocks:
    blocks = Blocks(num_blocks)
    for block in range(held):
        blocks.hand_out(block, now=1)
        blocks.hold(block)
    return blocks


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=30))
def test_holders_are_what_was_held_and_not_dropped(steps: list[tuple[bool, int]]) -> None:
    blocks, holders, most = Blocks(4), Counter[int](), Counter[int]()
    for now, (takes, block) in enumerate(steps):
        if takes:
            blocks.hold(block)
            holders[block] += 1
            most[block] = max(most[block], holders[block])
        elif holders[block]:
            blocks.drop(block, now)
            holders[block] -= 1
            if not holders[block]:
                assert blocks.idle_since[block] == now
    assert blocks.users == {block: count for block, count in holders.items() if count}
    assert blocks.num_used == len(blocks.users)
    assert blocks.shared == {block for block, count in most.items() if count > 1}


def test_a_hand_out_begins_a_tenancy_and_ends_what_was_said() -> None:
    blocks = pool(held=2)
    blocks.hold(0)
    blocks.publish(0, now=2, depth=0)
    blocks.publish(1, now=2, depth=1)
    blocks.hand_out(0, now=3)
    assert blocks.tenancy == {0: 2, 1: 1}
    assert (blocks.since[0], blocks.since[1]) == (3, 1)
    assert list(blocks.published) == [1]
    assert 0 not in blocks.shared


def test_publishing_again_does_not_renew_a_block() -> None:
    blocks = pool(held=1)
    blocks.publish(0, now=2, depth=3)
    blocks.publish(0, now=5, depth=4)
    access = blocks.published[0]
    assert (access.born, access.stamp, access.depth, access.count) == (2, 2, 3, 0)


def test_stamps_reach_published_blocks_only() -> None:
    blocks = pool(held=2)
    blocks.publish(0, now=2, depth=0)
    blocks.stamp([0, 1], now=7)
    assert (blocks.published[0].stamp, blocks.published[0].count) == (7, 1)
    assert 1 not in blocks.published


def test_surely_free_leaves_out_what_is_used_or_cached_and_idle() -> None:
    blocks = pool(num_blocks=5, held=3)
    assert blocks.surely_free(reusable=True) == 2
    blocks.publish(0, now=2, depth=0)
    blocks.publish(1, now=2, depth=0)
    assert (blocks.num_idle_published(), blocks.surely_free(reusable=True)) == (0, 2)
    blocks.drop(0, now=3)
    blocks.drop(2, now=3)
    assert (blocks.num_idle_published(), blocks.surely_free(reusable=True)) == (1, 3)


def test_what_evict_freed_is_free_until_it_is_handed_out() -> None:
    blocks = pool(num_blocks=2, held=2)
    for block in (0, 1):
        blocks.publish(block, now=2, depth=0)
        blocks.drop(block, now=3)
    assert blocks.surely_free(reusable=True) == 0
    blocks.evicted += 1
    assert blocks.surely_free(reusable=True) == 1
    blocks.hand_out(0, now=4)
    blocks.hold(0)
    assert (blocks.evicted, blocks.surely_free(reusable=True)) == (0, 0)


def test_without_reuse_a_block_counts_once_until_the_reset() -> None:
    blocks = pool(num_blocks=3, held=2)
    for block in (0, 1):
        blocks.drop(block, now=2)
    assert blocks.surely_free(reusable=False) == 1
    assert blocks.surely_free(reusable=True) == 3
    blocks.forget()
    assert blocks.surely_free(reusable=False) == 3


def test_a_reset_forgets_publications_but_not_tenancies() -> None:
    blocks = pool(held=1)
    blocks.publish(0, now=2, depth=0)
    blocks.evicted = 1
    blocks.forget()
    assert not blocks.published
    assert blocks.evicted == 0
    assert blocks.tenancy == {0: 1}
