"""The radix tree by itself: matching, splitting, pinning, evicting, and who owns which block."""

from __future__ import annotations

from array import array

import pytest

from kvassay.harness.contract import CacheKey, EventKind, Span
from kvassay.impls.block_pool import BlockPool
from kvassay.impls.radix_key import CONTENT, Contents, common, elements_of
from kvassay.impls.radix_state import TreeNode
from kvassay.impls.radix_tree import RadixTree

SPACE = (None, None)
BLOCK = 4


class Planter:
    """A tree of block size 4 into which whole prefixes can be put."""

    def __init__(self, num_blocks: int = 20) -> None:
        self.pool = BlockPool(num_blocks)
        self.tree = RadixTree(self.pool, BLOCK)

    def match(self, *tokens: int) -> tuple[TreeNode, int]:
        return self.tree.descend(self.tree.root(SPACE), array("Q", tokens), len(tokens))

    def plant(self, *tokens: int, keep: bool = False) -> TreeNode:
        """Insert a prefix as a request would that computed all of it, and leave unless `keep`."""
        node, position = self.match(*tokens)
        table = self.pool.take(-(-len(tokens) // BLOCK) - position // BLOCK)
        if position < len(tokens):
            parent = self.tree.cut(node, position)
            node = self.tree.attach(parent, array("Q", tokens[position:]), list(table))
        self.tree.pin(node)
        if not keep:
            self.leave(node, table)
        return node

    def leave(self, node: TreeNode, table: list[int]) -> None:
        self.tree.unpin(node)

    def evict(self, count: int = 1) -> None:
        self.tree.make_room(len(self.pool.free) + count)

    def resident(self, *tokens: int) -> int:
        return self.match(*tokens)[1]


def test_a_match_ends_at_the_first_difference() -> None:
    planter = Planter()
    planter.plant(1, 2, 3, 4, 5, 6)
    for cut in range(7):
        prefix = [1, 2, 3, 4, 5, 6][:cut]
        assert planter.resident(*prefix) == cut
        assert planter.resident(*prefix, 9, 9) == cut


def test_a_long_edge_is_compared_to_the_token() -> None:
    planter = Planter(num_blocks=100)
    tokens = [7] * 300
    planter.plant(*tokens)
    for cut in (0, 1, 127, 128, 298, 299):
        changed = [*tokens[:cut], 8, *tokens[cut + 1 :]]
        assert planter.resident(*changed) == cut


def test_a_split_keeps_the_lower_node_and_all_matches() -> None:
    planter = Planter()
    node = planter.plant(*range(10), keep=True)
    upper = planter.tree.cut(node, 6)
    assert (upper.start, upper.end, node.start, node.end) == (0, 6, 6, 10)
    assert node.parent is upper
    assert (upper.locks, upper.pins, node.locks, node.pins) == (1, 0, 1, 1)
    assert planter.resident(*range(10)) == 10
    # Block 1 holds positions 4..7: it stays with the lower part, which has the later ones.
    assert (len(upper.blocks), len(node.blocks)) == (1, 2)
    assert planter.tree.path_blocks(node) == [*upper.blocks, *node.blocks]


def test_a_cut_where_a_node_ends_splits_nothing() -> None:
    planter = Planter()
    node = planter.plant(*range(8))
    assert planter.tree.cut(node, 8) is node
    assert planter.tree.cut(node, 0).parent is None


def test_a_diverging_branch_owns_the_block_it_starts_in() -> None:
    planter = Planter()
    first = planter.plant(1, 2, 3, 4, 5, 6)
    second = planter.plant(1, 2, 3, 4, 5, 7)
    assert first.parent is second.parent
    assert first.start == second.start == 5
    shared = first.parent
    assert shared is not None
    assert planter.tree.path_blocks(first) == [*shared.blocks, *first.blocks]
    assert planter.tree.path_blocks(second) == [*shared.blocks, *second.blocks]
    assert set(first.blocks).isdisjoint(second.blocks)


def test_a_leaf_that_gets_a_child_lets_its_tail_go() -> None:
    planter = Planter()
    leaf = planter.plant(1, 2, 3)
    assert planter.tree.idle == 1
    planter.plant(1, 2, 3, 4, 5)
    assert leaf.blocks == []
    assert planter.tree.idle == 2
    assert planter.resident(1, 2, 3) == 3


def test_a_pinned_node_keeps_its_tail_until_it_is_unpinned() -> None:
    planter = Planter()
    node = planter.plant(1, 2, 3, keep=True)
    planter.plant(1, 2, 3, 4, 5)
    (tail,) = node.blocks
    assert planter.tree.path_blocks(node) == [tail]
    planter.leave(node, [tail])
    assert node.blocks == []
    assert tail in planter.pool.free


def test_a_pinned_tail_can_branch_off_as_a_leaf() -> None:
    planter = Planter()
    node = planter.plant(1, 2, keep=True)
    other = planter.plant(1, 2, 3)
    (tail,) = node.blocks
    planter.tree.branch_off(node, node, array("Q", [9]))
    assert planter.resident(1, 2, 9) == planter.resident(1, 2, 3) == 3
    assert planter.tree.path_blocks(node) == [tail]
    assert other.parent is node.parent
    assert other.parent is not node
    assert (node.locks, other.locks) == (1, 0)


def test_a_pinned_tail_that_branches_off_below_a_leaf_replaces_its_tail() -> None:
    planter = Planter()
    node = planter.plant(1, 2, keep=True)
    leaf = planter.plant(1, 2, 3)
    (tail,) = node.blocks
    planter.tree.branch_off(node, leaf, array("Q", [9]))
    assert (node.parent, leaf.blocks, leaf.locks) == (leaf, [], 1)
    assert planter.tree.path_blocks(node) == [tail]
    assert planter.resident(1, 2, 3, 9) == 4
    assert planter.tree.counters().cached == 0


def test_eviction_takes_the_end_of_the_oldest_path_first() -> None:
    planter = Planter()
    planter.plant(*range(10))
    planter.plant(20, 21, 22, 23)
    for left in (8, 4, 0):
        planter.evict()
        assert planter.resident(*range(10)) == left
    assert planter.resident(20, 21, 22, 23) == 4


def test_pinning_and_leaving_makes_a_path_recent() -> None:
    planter = Planter()
    planter.plant(1, 1, 1, 1)
    planter.plant(2, 2, 2, 2)
    planter.plant(1, 1, 1, 1)
    planter.evict()
    assert (planter.resident(1, 1, 1, 1), planter.resident(2, 2, 2, 2)) == (4, 0)


def test_a_split_changes_no_recency() -> None:
    planter = Planter()
    node = planter.plant(*range(8))
    planter.plant(9, 9, 9, 9)
    upper = planter.tree.cut(node, 4)
    assert node.newer is upper  # a child comes before its parent
    planter.evict(2)
    assert planter.resident(*range(8)) == 0
    assert planter.resident(9, 9, 9, 9) == 4


def test_a_pinned_path_survives_any_eviction() -> None:
    planter = Planter()
    node = planter.plant(*range(6), keep=True)
    planter.plant(*range(6), 6, 7, 8)
    planter.evict(20)
    assert planter.resident(*range(9)) == 6
    assert planter.tree.path_blocks(node) == node.blocks


def test_tokens_without_a_block_go_with_the_last_branch_that_held_them() -> None:
    planter = Planter()
    planter.plant(1, 2, 3, 4, 5, 6)
    planter.plant(1, 2, 3, 4, 5, 7)
    planter.evict()
    assert planter.resident(1, 2, 3, 4, 5, 6) == 5
    planter.evict()
    assert planter.resident(1, 2, 3, 4, 5, 7) == 4
    planter.evict()
    assert planter.resident(1, 2, 3, 4) == 0
    assert len(planter.pool.free) == 20


def test_a_block_to_keep_is_passed_over() -> None:
    planter = Planter()
    node = planter.plant(1, 1, 1, 1)
    planter.plant(2, 2, 2, 2)
    planter.tree.make_room(20, keep=node.blocks[0])
    assert (planter.resident(1, 1, 1, 1), planter.resident(2, 2, 2, 2)) == (4, 0)


def test_an_empty_space_is_forgotten() -> None:
    planter = Planter()
    planter.plant(1, 2, 3)
    root = planter.tree.root(SPACE)
    assert root.children
    planter.evict()
    assert planter.tree.root(SPACE) is not root


def test_the_first_call_for_events_describes_what_is_resident() -> None:
    planter = Planter()
    planter.plant(1, 2, 3, 4, 5)
    planter.plant(1, 2, 9)
    events = planter.tree.take_events()
    known: set[object] = {None}
    for event in events:
        assert event.kind is EventKind.STORED
        assert event.parent in known
        known.update(event.entries)
    assert sorted(event.tokens for event in events) == [(1, 2), (3, 4, 5), (9,)]
    assert planter.tree.take_events() == []


def test_spans_are_described_relative_to_the_first_element() -> None:
    class Key:
        tokens = (5, 0, 0, 0, 6)
        spans = (Span(1, 3, "cat"),)

    contents = Contents()
    elements = elements_of(Key(), contents)  # type: ignore[arg-type]
    assert [element >= CONTENT for element in elements] == [False, True, True, True, False]
    assert contents.tokens_of(elements) == Key.tokens
    assert contents.spans_of(elements) == (Span(1, 3, "cat"),)
    assert contents.spans_of(elements[2:]) == (Span(-1, 3, "cat"),)
    assert contents.spans_of(elements[:2]) == (Span(1, 3, "cat"),)
    assert contents.spans_of([*elements[:3], 8]) == (Span(1, 2, "cat"),)


def test_contents_out_of_use_are_forgotten() -> None:
    contents = Contents()
    runs = [
        elements_of(CacheKey([0, 0], spans=(Span(0, 2, f"c{number}"),)), contents)
        for number in range(65)
    ]
    assert contents.crowded
    contents.keep(runs[60:])
    assert not contents.crowded
    assert contents.spans_of(runs[60]) == (Span(0, 2, "c60"),)
    again = elements_of(CacheKey([0, 0], spans=(Span(0, 2, "c64"),)), contents)
    other = elements_of(CacheKey([0, 0], spans=(Span(0, 2, "c0"),)), contents)
    assert again == runs[64]
    assert other not in runs


@pytest.mark.parametrize("position", range(1, 8))
def test_every_cut_leaves_the_same_table(position: int) -> None:
    planter = Planter()
    node = planter.plant(*range(8))
    table = list(node.blocks)
    planter.tree.cut(node, position)
    assert planter.tree.path_blocks(node) == table


@pytest.mark.parametrize("length", [1, 2, 3, 8, 9])
def test_common_is_the_first_difference(length: int) -> None:
    left = array("Q", range(length))
    for first in range(length):
        right = left[:]
        right[first] = 99
        assert common(left, right) == common(right, left) == first
    assert (
        common(left, left) == common(left, left[:]) == common(left, array("Q", range(20))) == length
    )
    assert common(left, array("Q")) == 0
