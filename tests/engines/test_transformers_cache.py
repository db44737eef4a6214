"""The adapter of transformers' cache on small examples, and faults planted in its own objects."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from convicting import convict, registered

from kvassay.harness import registry
from kvassay.harness.contract import TORN, CacheKey, CacheManager, Counters, OutOfBlocks
from kvassay.harness.registry import Registration
from kvassay.harness.session import without_inspection
from kvassay.impls.engines import transformers_cache as adapter
from kvassay.impls.engines.transformers_cache import TransformersManager

MODULE = "kvassay.impls.engines.transformers_cache"


def test_importing_the_adapter_does_not_import_transformers() -> None:
    code = f"import {MODULE}, sys; sys.exit('transformers' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def build() -> Callable[..., TransformersManager]:
    pytest.importorskip("transformers")

    def new(
        num_blocks: int = 8, block_size: int = 4, name: str = "transformers"
    ) -> TransformersManager:
        (found,) = registry.find(name)
        manager = found.build(num_blocks=num_blocks, block_size=block_size)
        assert isinstance(manager, TransformersManager)
        return manager

    return new


def key(num_tokens: int, first: int = 0) -> CacheKey:
    return CacheKey(range(first, first + num_tokens))


def serve(manager: TransformersManager, wanted: CacheKey, request: str = "served") -> int:
    hit = manager.admit(request, wanted)
    manager.commit(request, len(wanted.tokens))
    manager.release(request)
    return hit


@pytest.mark.parametrize("size", [1, 3, 16])
def test_a_block_is_a_page_is_a_sector(build: Any, size: int) -> None:
    manager = build(5, size)
    assert manager.engine.num_blocks == 5
    manager.admit("a", key(5 * size))
    assert sorted(manager.block_table("a")) == [2, 3, 4, 5, 6]


def test_leaves_one_token_to_compute(build: Any) -> None:
    manager = build()
    assert serve(manager, key(16)) == 0
    assert manager.peek(key(16)) == 12
    assert manager.admit("a", key(16)) == 12
    assert manager.counters() == Counters(free=3, cached=1, used=4)


def test_a_look_up_holds_what_it_finds(build: Any) -> None:
    manager = build(4)
    serve(manager, key(9))
    assert manager.begin("b", key(4, first=50)) == 0
    assert manager.block_table("b") == ()
    assert manager.begin("a", key(9)) == 8
    held = manager.block_table("a")
    with pytest.raises(OutOfBlocks):
        manager.admit("c", key(9, first=70))
    assert manager.block_table("a") == held
    assert manager.reserve("a", 1) == 9
    assert manager.counters() == Counters(free=1, cached=0, used=3)


def test_a_page_is_known_once_it_is_full_and_written(build: Any) -> None:
    manager = build()
    manager.admit("a", key(10))
    assert manager.peek(key(10)) == 0
    manager.commit("a", 3)
    assert manager.peek(key(10)) == 0
    manager.commit("a", 5)
    assert manager.peek(key(10)) == 4
    manager.append("a", [10, 11, 12])
    manager.commit("a", 13)
    assert manager.peek(key(13)) == 12


def test_the_second_writer_moves_to_the_page_of_the_first(build: Any) -> None:
    manager = build()
    for request in ("a", "b"):
        manager.admit(request, key(5))
    one, other = manager.block_table("a"), manager.block_table("b")
    assert not set(one) & set(other)
    for request in ("a", "b"):
        manager.commit(request, 5)
    assert manager.block_table("a") == one
    assert manager.block_table("b") == (one[0], other[1])
    assert manager.refcounts() == {one[0]: 2, one[1]: 1, other[1]: 1}
    assert manager.counters() == Counters(free=5, cached=0, used=3)


def test_short_of_one_page_it_evicts_all_that_are_idle(build: Any) -> None:
    manager = build(8)
    serve(manager, key(12))
    serve(manager, key(12, first=50))
    assert manager.counters() == Counters(free=2, cached=6, used=0)
    manager.admit("a", key(12, first=70))
    assert manager.counters() == Counters(free=5, cached=0, used=3)


def test_evicts_all_that_are_idle_and_tells_how_many(build: Any) -> None:
    manager = build(8)
    serve(manager, key(12))
    assert manager.admit("a", key(9)) == 8
    assert manager.evict(5) == 1
    assert manager.evict(1) == 0
    assert manager.counters() == Counters(free=5, cached=0, used=3)


def test_a_fork_shares_full_pages_and_copies_the_rest(build: Any) -> None:
    manager = build()
    manager.admit("a", key(6))
    manager.commit("a", 6)
    manager.fork("a", ["b", "c"])
    first, last = manager.block_table("a")
    copied = [manager.block_table(child)[1] for child in ("b", "c")]
    assert [manager.block_table(child)[0] for child in ("b", "c")] == [first, first]
    assert manager.take_copies() == [(last, copied[0]), (last, copied[1])]
    assert manager.take_copies() == []
    assert manager.refcounts() == {first: 3, last: 1, copied[0]: 1, copied[1]: 1}


def test_tags_lie_in_keys_and_values_of_every_layer(build: Any) -> None:
    manager = build()
    slots, tags = [2 * 4 + 3, 5 * 4, 9 * 4 + 1], [7, -1, 2**31 - 1]
    manager.write(0, slots, tags)
    assert manager.read(0, slots) == tags
    assert manager.read(0, slots[::-1]) == tags[::-1]
    assert manager.read(0, []) == []
    views = manager.allocator._kv_token_views
    assert len(views) == 2
    row = 2 * manager.allocator.block_physical_stride + 3
    for part in (part for layer in views.values() for part in layer):
        before = part[row, 0, 5].clone()
        part[row, 0, 5] += 1
        assert manager.read(0, slots) == [TORN, *tags[1:]]
        part[row, 0, 5] = before
        assert manager.read(0, slots) == tags


def test_a_fork_has_its_copies_when_it_returns(build: Any) -> None:
    manager = build()
    manager.admit("a", key(6))
    manager.commit("a", 6)
    last = manager.block_table("a")[1]
    manager.write(0, range(4 * last, 4 * last + 4), [11, 12, 13, 14])
    manager.fork("a", ["b", "c"])
    for source, destination in manager.take_copies():
        assert source == last
        assert manager.read(0, range(4 * destination, 4 * destination + 4)) == [11, 12, 13, 14]


def test_a_fork_takes_the_place_of_what_is_idle_or_is_refused_as_a_whole(build: Any) -> None:
    manager = build(6)
    serve(manager, key(8, first=50))
    manager.admit("a", key(6))
    manager.commit("a", 6)
    manager.fork("a", ["b", "c", "d"])
    assert len(manager.take_copies()) == 3
    assert manager.counters() == Counters(free=1, cached=0, used=5)
    with pytest.raises(OutOfBlocks, match="1 of 2 children fit"):
        manager.fork("a", ["e", "f"])
    assert manager.take_copies() == []
    assert manager.counters() == Counters(free=1, cached=0, used=5)


def test_forks_only_what_is_written(build: Any) -> None:
    manager = build()
    manager.admit("a", key(6))
    with pytest.raises(ValueError, match="written up to 6"):
        manager.fork("a", ["b"])


def test_a_yes_counts_what_is_free_alone(build: Any) -> None:
    manager = build(4)
    serve(manager, key(8))
    assert manager.can_admit(key(8, first=50))
    assert not manager.can_admit(key(9, first=50))
    assert manager.counters() == Counters(free=2, cached=2, used=0)


def test_without_sharing_a_fork_copies_everything(build: Any) -> None:
    manager = build(name="transformers-unshared")
    assert serve(manager, key(6)) == 0
    assert manager.admit("a", key(6)) == 0
    manager.commit("a", 6)
    manager.fork("a", ["b"])
    one, other = manager.block_table("a"), manager.block_table("b")
    assert manager.take_copies() == [*zip(one, other, strict=True)]
    assert manager.counters() == Counters(free=4, cached=0, used=4)


def test_tokens_beyond_any_vocabulary_keep_apart(build: Any) -> None:
    manager = build()
    large = [(1 << 61) - 1, 1 << 31, (1 << 31) + 1, (1 << 30) - 1]
    assert serve(manager, CacheKey([*large, 0])) == 0
    assert manager.peek(CacheKey([*large, 0])) == 4
    assert manager.peek(CacheKey([large[0], large[2], large[1], large[3], 0])) == 0
    manager.admit("a", CacheKey([5]))
    manager.append("a", large)
    manager.commit("a", 5)
    assert manager.peek(CacheKey([5, *large])) == 4


def test_resets_only_when_nobody_is_there(build: Any) -> None:
    manager = build()
    serve(manager, key(8))
    manager.admit("a", key(4))
    with pytest.raises(ValueError, match="no live request, got 1"):
        manager.reset()
    manager.release("a")
    manager.reset()
    assert manager.counters() == Counters(free=8, cached=0, used=0)
    assert serve(manager, key(8)) == 0


# ----------------------------------------------------------------------------------- the faults


def hash_kept_at_eviction(manager: TransformersManager) -> None:
    """An evicted page is free, and still found by its hash."""
    ledger = manager.allocator.ledger

    def evict() -> list[int]:
        evicted = list(ledger.cached_blocks)
        ledger.cached_blocks.clear()
        return evicted

    ledger.evict_cached_blocks = evict


def freed_with_the_first_sharer(manager: TransformersManager) -> None:
    """A page that several requests hold is given up as soon as one of them leaves."""
    ledger = manager.allocator.ledger
    release = ledger.release

    def release_wholly(block_id: int, no_cache: bool = False) -> bool:
        ledger.shared_ref_counts.pop(block_id, None)
        given_back: bool = release(block_id, no_cache)
        return given_back

    ledger.release = release_wholly


def duplicate_leaked(manager: TransformersManager) -> None:
    """Whoever leaves its page for the first one of its kind does not give it back."""
    engine, pool = manager.engine, manager.engine.pool
    mark = engine.mark_complete_blocks

    def mark_and_leak(state: Any, complete_blocks: dict[str, int]) -> None:
        pool.free_blocks = lambda index, block_ids: None
        try:
            mark(state, complete_blocks)
        finally:
            del pool.free_blocks

    engine.mark_complete_blocks = mark_and_leak


def open_page_shared(manager: TransformersManager) -> None:
    """A fork shares the page that is not full yet, too."""
    allocator = manager.allocator
    allocator.count_shareable_blocks = lambda source, past_length: len(
        allocator.block_table[source]
    )


def nothing_copied(manager: TransformersManager) -> None:
    """A fork is told what to copy, and nobody does it."""
    manager.engine.perform_cache_copy = lambda copies: None


def keys_copied_alone(manager: TransformersManager) -> None:
    """A fork has the keys of what it copies, and not the values."""
    copy_only(manager, lambda layer, part: part == 0)


def first_layer_copied_alone(manager: TransformersManager) -> None:
    """A fork has keys and values of the first layer, and not of the second."""
    copy_only(manager, lambda layer, part: layer == 0)


def copy_only(manager: TransformersManager, wanted: Callable[[int, int], bool]) -> None:
    """Of every page that is copied, some tensors only."""
    allocator = manager.allocator
    pages_per_block = allocator.block_physical_stride // manager.block_size
    views = [
        part
        for layer, parts in allocator._kv_page_views.items()
        for number, part in enumerate(parts)
        if wanted(layer, number)
    ]

    def copy(copies: dict[str, tuple[list[int], list[int]]]) -> None:
        for source, destination in zip(*copies[adapter.NAME], strict=True):
            for view in views:
                view[destination * pages_per_block] = view[source * pages_per_block]

    manager.engine.perform_cache_copy = copy


def copy_forgotten(manager: TransformersManager) -> None:
    """A fork gets a page of its own for the one that is not full, and no copy is asked for."""
    allocator = manager.allocator
    fork = allocator.fork_blocks

    def fork_without(*arguments: Any) -> tuple[list[int], list[int]]:
        fork(*arguments)
        return [], []

    allocator.fork_blocks = fork_without


FAULTS: dict[Callable[[TransformersManager], None], str] = {
    hash_kept_at_eviction: "P1 P5 A2 A3",
    freed_with_the_first_sharer: "A1 A2 A3",
    duplicate_leaked: "A1 A4 A5",
    open_page_shared: "C1",
    copy_forgotten: "C2",
    nothing_copied: "C2",
    keys_copied_alone: "C2",
    first_layer_copied_alone: "C2",
}


def trials() -> Iterator[Any]:
    """One fault of each kind: a wrong hit, a missing copy, half of one; if `long`, every fault."""
    for patch in FAULTS:
        brief = patch in (hash_kept_at_eviction, open_page_shared, keys_copied_alone)
        marks = [] if brief else [pytest.mark.long]
        yield pytest.param(patch, marks=marks, id=patch.__name__)


@pytest.mark.parametrize("patch", [*trials()])
def test_a_planted_fault_is_convicted(build: Any, patch: Any) -> None:
    def faulty(num_blocks: int, block_size: int) -> TransformersManager:
        manager: TransformersManager = build(num_blocks, block_size)
        patch(manager)
        return manager

    blind = without_inspection(adapter.DECLARATION)
    planted = Registration(f"transformers-fault-{patch.__name__}", CacheManager, faulty, blind)
    stock = registered(MODULE, "transformers", blind=True)
    convict(planted, frozenset(FAULTS[patch].split()), stock)
