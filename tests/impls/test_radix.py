"""The built-in `radix`: each rule of RadixAttention's manager by example, then all at random."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from kvassay.harness import registry
from kvassay.harness.contract import (
    CacheEvent,
    CacheKey,
    CacheManager,
    Counters,
    EventKind,
    Outcome,
    OutOfBlocks,
    Span,
)
from kvassay.impls.radix import RadixManager
from kvassay.impls.radix_key import CONTENT, Contents, Space, elements_of, space_of
from kvassay.impls.radix_state import TreeNode


def manager(num_blocks: int = 12, block_size: int = 4) -> RadixManager:
    return RadixManager(num_blocks=num_blocks, block_size=block_size)


def start(radix: RadixManager, request: str, tokens: Sequence[int], **key: Any) -> int:
    """Admit a prompt and commit all of it."""
    hit = radix.admit(request, CacheKey(tokens, **key))
    radix.commit(request, len(tokens))
    return hit


def serve(radix: RadixManager, tokens: Sequence[int], **key: Any) -> int:
    """A whole life: admitted, committed, released."""
    hit = start(radix, "once", tokens, **key)
    radix.release("once")
    return hit


def decode(radix: RadixManager, request: str, length: int, *tokens: int) -> None:
    """Append and commit one token after another to a request of `length` tokens."""
    for count, token in enumerate(tokens, length + 1):
        radix.append(request, [token])
        radix.commit(request, count)


# ------------------------------------------------------------------------------------------- hits


def test_is_registered_with_the_methods_it_declares() -> None:
    (registration,) = registry.find("radix")
    assert registration.kind is CacheManager
    assert isinstance(registration.build(num_blocks=4, block_size=2), RadixManager)


def test_a_hit_ends_at_any_token_but_leaves_one_to_compute() -> None:
    radix = manager()
    serve(radix, range(10))
    for cut in range(1, 11):
        assert radix.peek(CacheKey([*range(cut), 99])) == cut
        assert radix.peek(CacheKey(range(cut))) == cut - 1
    assert radix.peek(CacheKey([99, *range(9)])) == 0


def test_only_what_is_committed_can_be_hit() -> None:
    radix = manager()
    radix.admit("r", CacheKey(range(10)))
    assert radix.peek(CacheKey(range(10))) == 0
    radix.commit("r", 6)
    assert radix.peek(CacheKey(range(10))) == 6
    radix.release("r", Outcome.ABORTED)
    assert radix.peek(CacheKey(range(10))) == 6


def test_a_hit_shares_full_blocks_and_copies_the_partial_one() -> None:
    radix = manager()
    start(radix, "a", range(10))
    assert radix.admit("b", CacheKey([*range(6), 99])) == 6
    a, b = radix.block_table("a"), radix.block_table("b")
    assert b[0] == a[0]
    assert b[1] not in a
    assert radix.take_copies() == [(a[1], b[1])]


def test_generated_tokens_are_published_too() -> None:
    radix = manager()
    start(radix, "chat", [1, 2, 3])
    decode(radix, "chat", 3, *range(10, 20))
    radix.release("chat")
    assert serve(radix, [1, 2, 3, *range(10, 20), 7]) == 13
    assert radix.take_copies() != []


def test_decoding_in_the_last_block_copies_nothing() -> None:
    radix = manager()
    start(radix, "r", [1])
    decode(radix, "r", 1, *range(30))
    assert radix.take_copies() == []
    assert len(radix.block_table("r")) == 8


def test_components_of_the_key_cannot_be_confused() -> None:
    radix = manager()
    picture = (Span(1, 2, "cat"),)
    keys: list[dict[str, Any]] = [
        {},
        {"salt": "x"},
        {"adapter": "x"},
        {"salt": "x", "adapter": "x"},
        {"salt": ""},
        {"spans": picture},
        {"spans": (Span(1, 2, "dog"),)},
    ]
    for key in keys:
        assert serve(radix, [1, 0, 0, 2], **key) == (1 if "spans" in key else 0)
    for key in keys:
        assert radix.peek(CacheKey([1, 0, 0, 2], **key)) == 3
    assert radix.peek(CacheKey([1, 0, 0, 2], spans=(Span(2, 2, "cat"),))) == 2  # [1, 0] is text


# -------------------------------------------------------------------------------------- duplicates


def test_a_prefix_computed_twice_is_kept_once() -> None:
    radix = manager()
    radix.admit("a", CacheKey(range(9)))
    radix.admit("b", CacheKey(range(9)))
    radix.commit("a", 9)
    own = radix.block_table("b")
    radix.commit("b", 9)
    # Two full blocks are remapped to the first copy; the partial third one stays its own.
    assert radix.block_table("b") == [*radix.block_table("a")[:2], own[2]]
    assert radix.counters() == Counters(free=8, cached=0, used=4)
    radix.release("b")
    radix.release("a")
    assert radix.counters() == Counters(free=9, cached=3, used=0)


def test_a_partial_duplicate_is_published_where_it_diverges() -> None:
    radix = manager()
    for request in "ab":
        radix.admit(request, CacheKey([1, 2]))
    for request in "ab":
        radix.commit(request, 2)
    decode(radix, "a", 2, 3)
    decode(radix, "b", 2, 4)
    assert radix.peek(CacheKey([1, 2, 3, 9])) == 3
    assert radix.peek(CacheKey([1, 2, 4, 9])) == 3
    assert radix.take_copies() == []


def test_a_longer_branch_replaces_the_partial_block_it_copied() -> None:
    radix = manager()
    serve(radix, [1, 2])
    serve(radix, [1, 2, 3])
    assert radix.counters().cached == 1
    assert radix.peek(CacheKey([1, 2, 3, 4])) == 3


# ------------------------------------------------------------------------- pieces and speculation


def test_begin_pins_the_hit_and_reserve_copies_the_partial_block() -> None:
    radix = manager(num_blocks=4)
    serve(radix, range(8))
    assert radix.begin("r", CacheKey([*range(6), 50, 51, 52])) == 6
    shown = radix.block_table("r")
    assert len(shown) == 2
    assert radix.evict(9) == 0
    assert radix.reserve("r", 1) == 7
    first, copy = radix.block_table("r")
    assert (first, radix.take_copies()) == (shown[0], [(shown[1], copy)])
    assert radix.reserve("r", 2) == 9
    radix.commit("r", 9)
    radix.append("r", [1])
    assert radix.peek(CacheKey(range(9))) == 8


def test_append_waits_until_the_prompt_is_reserved() -> None:
    radix = manager()
    radix.begin("r", CacheKey(range(6)))
    radix.reserve("r", 5)
    with pytest.raises(ValueError, match="slots for 5 of the 6 tokens"):
        radix.append("r", [1])
    radix.reserve("r", 1)
    radix.append("r", [1])


def test_a_prompt_can_be_reserved_and_committed_in_pieces() -> None:
    radix = manager()
    radix.begin("r", CacheKey(range(10)))
    for slots in (3, 6, 9, 10):
        assert radix.reserve("r", slots - len_of(radix, "r")) == slots
        radix.commit("r", slots)
        assert radix.peek(CacheKey([*range(slots), 99])) == slots
    assert radix.take_copies() == []


def len_of(radix: RadixManager, request: str) -> int:
    return radix._live[request].slots


def test_drafts_are_published_only_when_accepted() -> None:
    radix = manager()
    start(radix, "r", [1, 2, 3])
    radix.append("r", [4, 5, 6, 7], drafts=3)
    radix.commit("r", 7)
    assert radix.peek(CacheKey([1, 2, 3, 4, 5, 6, 7, 8])) == 4
    radix.accept("r", 1)
    assert radix.peek(CacheKey([1, 2, 3, 4, 5, 6, 7, 8])) == 5
    assert len(radix.block_table("r")) == 2
    decode(radix, "r", 5, 9)
    assert radix.peek(CacheKey([1, 2, 3, 4, 5, 9, 7])) == 6
    assert radix.take_copies() == []


def test_rejected_drafts_give_their_blocks_back() -> None:
    radix = manager()
    start(radix, "r", [1, 2, 3, 4])
    radix.append("r", [5] * 8, drafts=8)
    radix.accept("r", 0)
    assert len(radix.block_table("r")) == 1
    assert radix.counters() == Counters(free=11, cached=0, used=1)


# ------------------------------------------------------------------------------ fork and truncate


def test_forks_share_and_copy_on_write() -> None:
    radix = manager()
    start(radix, "p", range(6))
    radix.fork("p", ["a", "b"])
    table = radix.block_table("p")
    assert radix.refcounts() == dict.fromkeys(table, 3)
    for request, token in (("a", 50), ("b", 51), ("p", 52)):
        decode(radix, request, 6, token)
    copies = radix.take_copies()
    assert [source for source, _ in copies] == [table[1], table[1]]
    assert radix.block_table("p") == table
    for token in (50, 51, 52):
        assert radix.peek(CacheKey([*range(6), token, 9])) == 7


def test_a_truncated_request_never_overwrites_what_it_published() -> None:
    radix = manager()
    start(radix, "r", range(8))
    table = radix.block_table("r")
    radix.truncate("r", 5)
    decode(radix, "r", 5, 99)
    (copy,) = radix.take_copies()
    assert copy == (table[1], radix.block_table("r")[1])
    assert radix.peek(CacheKey([*range(8), 1])) == 8
    assert radix.peek(CacheKey([*range(5), 99, 1])) == 6


def test_a_published_block_is_withdrawn_when_none_is_left_for_a_copy() -> None:
    radix = manager(num_blocks=2)
    start(radix, "r", range(8))
    table = radix.block_table("r")
    radix.truncate("r", 5)
    radix.append("r", [99])
    assert (radix.block_table("r"), radix.take_copies()) == (table, [])
    assert radix.peek(CacheKey([*range(8), 1])) == 5


# --------------------------------------------------------------------------- eviction and capacity


def test_eviction_is_least_recently_released_first_and_from_the_tail() -> None:
    radix = manager()
    serve(radix, [1] * 8)
    serve(radix, [2] * 8)
    serve(radix, [1] * 8)
    radix.peek(CacheKey([2] * 8))
    assert radix.evict(1) == 1
    assert radix.peek(CacheKey([2] * 8)) == 4
    assert radix.evict(2) == 2
    assert radix.peek(CacheKey([2] * 8)) == 0
    assert radix.peek(CacheKey([1] * 8)) == 4


def test_evict_frees_no_more_than_is_idle_and_nothing_live() -> None:
    radix = manager()
    start(radix, "live", range(6))
    serve(radix, [50] * 9)
    assert radix.evict(10) == 3
    assert radix.counters() == Counters(free=10, cached=0, used=2)
    assert radix.peek(CacheKey(range(9))) == 6


def test_whatever_fits_beside_the_live_tables_is_admitted() -> None:
    radix = manager(num_blocks=4)
    start(radix, "live", [1] * 4)
    serve(radix, [2] * 12)
    assert radix.can_admit(CacheKey([3] * 12))
    assert not radix.can_admit(CacheKey([3] * 13))
    assert radix.admit("r", CacheKey([3] * 12)) == 0


def test_a_hit_shrinks_to_full_blocks_if_the_source_of_its_copy_is_the_last_block() -> None:
    radix = manager(num_blocks=2)
    serve(radix, range(8))
    key = CacheKey([*range(6), 99])
    assert radix.peek(key) == 4
    assert radix.admit("r", key) == 4
    assert radix.take_copies() == []


def test_the_source_of_a_copy_is_not_evicted_for_it() -> None:
    radix = manager(num_blocks=3)
    serve(radix, range(4))
    serve(radix, [50] * 8)
    assert radix.admit("r", CacheKey([0, 1, 99])) == 2
    ((source, destination),) = radix.take_copies()
    assert source != destination
    assert radix.peek(CacheKey(range(4))) == 3


def test_the_source_of_a_copy_stays_when_its_leaf_is_evicted_in_one_go() -> None:
    radix = manager(num_blocks=5)
    serve(radix, range(12))
    serve(radix, [50] * 8)
    assert radix.admit("r", CacheKey([0, 1, *[99] * 14])) == 2
    ((source, destination),) = radix.take_copies()
    assert source not in radix.block_table("r")
    assert destination in radix.block_table("r")
    radix.release("r")
    assert radix.peek(CacheKey(range(4))) == 3


def test_what_a_writer_went_on_to_commit_is_not_shared_past_the_hit() -> None:
    radix = manager()
    serve(radix, [1, 2])
    start(radix, "w", [1, 2, 3])
    decode(radix, "w", 3, *range(10, 16))
    assert radix.begin("r", CacheKey([1, 2, 8, 9])) == 2
    assert len(radix.block_table("r")) == 1


def test_a_branch_below_a_writer_ends_its_writing() -> None:
    radix = manager()
    start(radix, "a", [1, 2])
    for token in (3, 9):
        radix.append("a", [token])
    start(radix, "b", [1, 2, 3])
    radix.commit("a", 4)
    decode(radix, "b", 3, 7)
    for token in (7, 9):
        assert radix.peek(CacheKey([1, 2, 3, token, 0])) == 4


def test_a_refusal_changes_nothing_not_even_the_order() -> None:
    radix = manager(num_blocks=4)
    serve(radix, [1] * 4)
    serve(radix, [2] * 4)
    start(radix, "live", [3] * 8)
    before = snapshot(radix)
    with pytest.raises(OutOfBlocks, match=r"^OOM: 3 blocks needed, 2 free or evictable"):
        radix.admit("r", CacheKey([4] * 9))
    with pytest.raises(OutOfBlocks):
        radix.admit("r", CacheKey([1] * 13))
    with pytest.raises(OutOfBlocks):
        radix.append("live", [4] * 9)
    assert not radix.can_admit(CacheKey([1] * 13))
    assert snapshot(radix) == before


def test_reset_forgets_everything_once_nobody_is_live() -> None:
    radix = manager()
    start(radix, "r", range(6))
    with pytest.raises(ValueError, match="expected no live request"):
        radix.reset()
    radix.release("r")
    radix.drain()
    radix.reset()
    assert radix.counters() == Counters(free=12, cached=0, used=0)
    assert radix.peek(CacheKey(range(6))) == 0


# ------------------------------------------------------------------------------------------ events


def test_events_follow_what_can_be_found() -> None:
    radix = manager()
    assert radix.take_events() == []
    start(radix, "r", [1, 2], salt="s")
    decode(radix, "r", 2, 3)
    first, second = radix.take_events()
    assert (first.tokens, first.parent, first.salt) == ((1, 2), None, "s")
    assert (second.tokens, second.parent) == ((3,), first.entries[-1])
    radix.release("r")
    radix.evict(1)
    (removed,) = radix.take_events()
    assert removed == CacheEvent(
        EventKind.REMOVED, entries=(*second.entries, *reversed(first.entries))
    )
    radix.reset()
    assert radix.take_events() == [CacheEvent(EventKind.CLEARED)]


# ------------------------------------------------------------------------------------------ misuse

MISUSES: dict[str, Callable[[RadixManager], Any]] = {
    "duplicate": lambda m: m.admit("r", CacheKey([1])),
    "id": lambda m: m.begin(3, CacheKey([1])),  # type: ignore[arg-type]
    "key": lambda m: m.admit("new", [1]),  # type: ignore[arg-type]
    "empty": lambda m: m.peek(CacheKey([])),
    "negative": lambda m: m.can_admit(CacheKey([1, -1])),
    "huge": lambda m: m.admit("new", CacheKey([1, 1 << 63])),
    "huger": lambda m: m.admit("new", CacheKey([1, 1 << 64])),
    "float": lambda m: m.append("s", [1.0]),  # type: ignore[list-item]
    "salt": lambda m: m.admit("new", CacheKey([1], salt=3)),  # type: ignore[arg-type]
    "spans": lambda m: m.admit("new", CacheKey([1], spans=None)),  # type: ignore[arg-type]
    "overlap": lambda m: m.peek(CacheKey([1] * 4, spans=(Span(0, 2, "a"), Span(1, 2, "b")))),
    "unsorted": lambda m: m.peek(CacheKey([1] * 4, spans=(Span(2, 2, "a"), Span(0, 1, "b")))),
    "long span": lambda m: m.peek(CacheKey([1] * 4, spans=(Span(3, 2, "a"),))),
    "empty span": lambda m: m.peek(CacheKey([1] * 4, spans=(Span(3, 0, "a"),))),
    "content": lambda m: m.peek(CacheKey([1], spans=(Span(0, 1, 7),))),  # type: ignore[arg-type]
    "append nothing": lambda m: m.append("s", []),
    "drafts": lambda m: m.append("s", [1], drafts=2),
    "append on drafts": lambda m: m.append("r", [1]),
    "fork on drafts": lambda m: m.fork("r", ["a"]),
    "accept too many": lambda m: m.accept("r", 3),
    "accept none": lambda m: m.accept("s", 0),
    "uncommitted": lambda m: m.fork("u", ["a"]),
    "twins": lambda m: m.fork("s", ["a", "a"]),
    "existing": lambda m: m.fork("s", ["r"]),
    "no children": lambda m: m.fork("s", []),
    "commit twice": lambda m: m.commit("s", 6),
    "commit past": lambda m: m.commit("u", 7),
    "commit bool": lambda m: m.commit("u", True),
    "reserve past": lambda m: m.reserve("s", 1),
    "reserve none": lambda m: m.reserve("s", 0),
    "truncate to 0": lambda m: m.truncate("s", 0),
    "truncate past": lambda m: m.truncate("s", 7),
    "outcome": lambda m: m.release("s", "lost"),  # type: ignore[arg-type]
    "evict": lambda m: m.evict(0),
    "reset": lambda m: m.reset(),
    "pool": lambda m: RadixManager(num_blocks=0, block_size=1),
    "block": lambda m: RadixManager(num_blocks=1, block_size=0),
}


@pytest.mark.parametrize("name", MISUSES)
def test_misuse_is_named_and_changes_nothing(name: str) -> None:
    radix = manager()
    serve(radix, [50] * 5)
    start(radix, "s", range(6))
    start(radix, "r", range(3))
    radix.append("r", [7, 8], drafts=2)
    radix.admit("u", CacheKey([9] * 6))
    before = snapshot(radix)
    with pytest.raises(ValueError, match=r"expected|is not a valid"):
        MISUSES[name](radix)
    assert snapshot(radix) == before


@pytest.mark.parametrize("method", ["commit", "reserve", "truncate", "accept"])
def test_an_unknown_request_is_named(method: str) -> None:
    with pytest.raises(KeyError, match="'s' is not live"):
        getattr(manager(), method)("s", 1)


def test_tokens_may_be_a_compact_array() -> None:
    radix = manager()
    serve(radix, array("l", range(6)))
    assert radix.peek(CacheKey(range(7))) == 6


# ----------------------------------------------------------------------------------- all at random


def nodes_of(radix: RadixManager) -> Iterator[TreeNode]:
    waiting = list(radix._tree._roots.values())
    while waiting:
        node = waiting.pop()
        yield node
        waiting += node.children.values()


def unlocked(radix: RadixManager) -> list[TreeNode]:
    """The list of unlocked nodes, the least recent first."""
    found, node = [], radix._tree._list.newer
    while node is not None and node is not radix._tree._list:
        found.append(node)
        node = node.newer
    return found


def snapshot(radix: RadixManager) -> object:
    """Everything that a refused or mistaken operation must leave as it was."""
    pool = radix._pool
    return (
        (list(pool.free), list(pool.users), radix._tree.idle),
        {(id(n), n.start, *extent(n, radix.block_size), n.pins, n.locks) for n in nodes_of(radix)},
        [id(node) for node in unlocked(radix)],
        {
            name: (list(s.table), list(s.elements), s.slots, s.committed, s.drafts, id(s.node))
            for name, s in radix._live.items()
        },
        list(radix._tables.copies),
    )


def extent(node: TreeNode, size: int) -> tuple[int, tuple[int, ...]]:
    """End and blocks of a node, with what its writer has committed and nobody has looked at."""
    writer = node.writer
    if writer is None or writer.publishable <= node.end:
        return node.end, tuple(node.blocks)
    stop = writer.publishable
    return stop, tuple(writer.table[node.start // size : -(-stop // size)])


class Device:
    """A manager under random operations, the memory it points into, and a mirror of its events.

    A slot's content names the KV that belongs there: the space and all elements up to it.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.size = self.random.choice([1, 2, 3, 4, 5])
        self.radix = manager(self.random.randint(2, 12), self.size)
        self.radix.take_events()
        self.slots: dict[tuple[int, int], object] = {}
        self.spaces: dict[str, Space] = {}
        self.mirror: dict[object, tuple[object, int]] = {}
        self.count = 0

    def step(self) -> None:
        operations = [self.enter] * 4 + [self.write] * 7 + [self.grow] * 5 + [self.shrink] * 2
        operations += [self.leave] * 3 + [self.fork, self.clear]
        self.random.choice(operations)()
        self.copy()
        self.check_blocks()
        self.check_tree()
        self.check_content()
        if self.random.random() < 0.3:  # to ask for events is to look at everything
            self.check_mirror()

    def key(self) -> CacheKey:
        length = self.random.randint(1, 4 * self.size + 2)
        tokens = [int(self.random.random() < 0.2) for _ in range(length)]
        spans = (Span(length - 1, 1, self.random.choice("xy")),) if length % 5 == 0 else ()
        salt = self.random.choice([None, None, None, "a"])
        return CacheKey(tokens, salt=salt, spans=spans)

    def someone(self) -> str | None:
        return self.random.choice(list(self.spaces)) if self.spaces else None

    @contextmanager
    def may_refuse(self, need: int) -> Iterator[None]:
        """Refused only if `need` does not fit beside the live tables, and then without effect."""
        before = snapshot(self.radix)
        counters = self.radix.counters()
        try:
            yield
        except OutOfBlocks:
            assert need > counters.free + counters.cached
            assert snapshot(self.radix) == before

    def enter(self) -> None:
        key, name = self.key(), f"r{self.count}"
        self.count += 1
        if len(self.spaces) > 5:
            return
        before = snapshot(self.radix)
        hit, fits = self.radix.peek(key), self.radix.can_admit(key)
        assert snapshot(self.radix) == before
        if self.random.random() < 0.4:
            assert hit <= self.radix.begin(name, key) < len(key.tokens)
            self.spaces[name] = space_of(key)
            return
        with self.may_refuse(-(-len(key.tokens) // self.size)):
            assert self.radix.admit(name, key) == hit
            assert fits
            self.spaces[name] = space_of(key)

    def grow(self) -> None:
        name = self.someone()
        if name is None:
            return
        state = self.radix._live[name]
        left = len(state.elements) - state.slots
        count = self.random.randint(1, left or 3)
        need = -(-(state.slots + count) // self.size) - len(state.table)
        if state.slots % self.size and self.radix.refcounts()[state.table[-1]] > 1:
            need += 1
        with self.may_refuse(need):
            if left:
                self.radix.reserve(name, count)
            elif not state.drafts:
                drafts = self.random.choice([0, 0, count])
                self.radix.append(name, [self.random.randint(0, 1)] * count, drafts=drafts)

    def write(self) -> None:
        name = self.someone()
        if name is None:
            return
        state = self.radix._live[name]
        if state.committed < state.slots:
            stop = self.random.randint(state.committed + 1, state.slots)
            for position in range(state.committed, stop):
                slot = state.table[position // self.size], position % self.size
                self.slots[slot] = self.tag(self.spaces[name], state.elements, position)
            self.radix.commit(name, stop)

    def shrink(self) -> None:
        name = self.someone()
        if name is None:
            return
        state = self.radix._live[name]
        if state.drafts:
            self.radix.accept(name, self.random.randint(0, state.drafts))
        elif state.slots:
            self.radix.truncate(name, self.random.randint(1, state.slots))

    def fork(self) -> None:
        name = self.someone()
        if name is None or len(self.spaces) > 5:
            return
        state = self.radix._live[name]
        if state.committed == len(state.elements) and not state.drafts:
            self.count += 1
            self.radix.fork(name, [f"f{self.count}"])
            self.spaces[f"f{self.count}"] = self.spaces[name]

    def leave(self) -> None:
        name = self.someone()
        if name is not None:
            self.radix.release(name, self.random.choice(list(Outcome)))
            del self.spaces[name]

    def clear(self) -> None:
        if not self.spaces:
            self.radix.reset()
            self.slots.clear()
            assert self.radix.counters().free == self.radix.num_blocks
            return
        before = self.radix.counters()
        assert self.radix.evict(2) == min(2, before.cached)

    def copy(self) -> None:
        copies = self.radix.take_copies()
        sources = [self.slots.get((s, o)) for s, _ in copies for o in range(self.size)]
        targets = [(d, o) for _, d in copies for o in range(self.size)]
        self.slots.update(zip(targets, sources, strict=True))

    def tag(self, space: Space, elements: Sequence[int], position: int) -> object:
        return space, tuple(elements[: position + 1])

    def check_blocks(self) -> None:
        """The pool's books agree with the tables and with the tree."""
        pool = self.radix._pool
        held = [block for node in nodes_of(self.radix) for block in node.blocks]
        tables = [block for s in self.radix._live.values() for block in s.table]
        assert len(set(held)) == len(held)
        assert self.radix.refcounts() == {b: tables.count(b) for b in tables}
        private = [b for s in self.radix._live.values() for b in self.radix._tables.private(s)]
        assert set(private).isdisjoint(held)
        assert {b: users for b, users in enumerate(pool.users) if users} == {
            **dict.fromkeys(held, 1),
            **{b: private.count(b) for b in private},
        }
        assert self.radix._tree.idle == len(set(held) - set(tables))
        assert sorted(pool.free) == sorted(set(range(len(pool.users))) - {*held, *tables})
        for node in nodes_of(self.radix):
            assert all(bool(node.locks) == (block in tables) for block in node.blocks)

    def check_tree(self) -> None:
        """Shape, locks, tails and the order of the list."""
        places = {id(node): place for place, node in enumerate(unlocked(self.radix))}
        pins = [id(s.node) for s in self.radix._live.values()]
        for node in nodes_of(self.radix):
            assert node.pins == pins.count(id(node))
            assert node.locks == node.pins + sum(c.locks for c in node.children.values())
            assert (id(node) in places) == (node.parent is not None and not node.locks)
            if node.parent is None:
                assert node.children or node.locks
                continue
            assert node.parent.children[node.elements[0]] is node
            assert node.start == node.parent.end < node.end == node.start + len(node.elements)
            tail = node.end % self.size > 0 and (not node.children or node.pins > 0)
            full = node.end // self.size - node.start // self.size
            assert len(node.blocks) == full + tail
            assert len(node.entries) == len(node.elements)
            if id(node) in places and id(node.parent) in places:
                assert places[id(node)] < places[id(node.parent)]

    def check_content(self) -> None:
        """Every committed token of a request, and every resident one, is where it should be."""
        for name, state in self.radix._live.items():
            assert len(state.table) == len(set(state.table)) == -(-state.slots // self.size)
            pinned = -(-state.node.end // self.size)
            assert state.table[:pinned] == self.radix._tree.path_blocks(state.node)
            self.expect(self.spaces[name], state.elements[: state.committed], state.table)
        for node in nodes_of(self.radix):
            if not node.children:
                self.expect(node.space, self.path(node), self.radix._tree.path_blocks(node))

    def expect(self, space: Space, elements: Sequence[int], table: Sequence[int]) -> None:
        for position in range(len(elements)):
            slot = table[position // self.size], position % self.size
            assert self.slots.get(slot) == self.tag(space, elements, position)

    def path(self, node: TreeNode) -> list[int]:
        return (self.path(node.parent) if node.parent else []) + list(node.elements)

    def check_mirror(self) -> None:
        """The events so far describe exactly the entries in the tree."""
        for event in self.radix.take_events():
            if event.kind is EventKind.CLEARED:
                self.mirror.clear()
            for entry in event.entries:
                if event.kind is EventKind.REMOVED:
                    del self.mirror[entry]
                    assert all(parent != entry for parent, _ in self.mirror.values())
            parent = event.parent
            for entry, token in zip(event.entries, event.tokens, strict=False):
                assert parent is None or parent in self.mirror
                self.mirror[entry] = parent, token
                parent = entry
        tree: dict[object, tuple[object, int]] = {}
        for node in nodes_of(self.radix):
            parent = node.parent.entries[-1] if node.parent and node.parent.entries else None
            for entry, item in zip(node.entries, node.elements, strict=True):
                tree[entry] = parent, *self.radix._tree.contents.tokens_of([item])
                parent = entry
        assert self.mirror == tree


@pytest.mark.parametrize("seed", range(40))
def test_random_operations_keep_every_invariant(seed: int) -> None:
    device = Device(seed)
    for _ in range(150):
        device.step()
    while device.spaces:
        device.leave()
    radix = device.radix
    radix.admit("all", CacheKey([9] * (radix.num_blocks * radix.block_size)))
    assert radix.counters() == Counters(free=0, cached=0, used=radix.num_blocks)


def test_spans_become_elements_that_no_token_equals() -> None:
    contents = Contents()
    spanned = elements_of(CacheKey([0, 0], spans=(Span(0, 2, "x"),)), contents)
    assert min(spanned) >= CONTENT > max(elements_of(CacheKey([(1 << 63) - 1]), contents))
