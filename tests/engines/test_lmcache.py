"""The adapter of LMCache's store on small examples, and faults planted in its own objects."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from convicting import convict, registered

from kvassay.harness import registry
from kvassay.harness.contract import CacheKey, CacheManager, Counters, OutOfBlocks
from kvassay.harness.registry import Registration
from kvassay.harness.session import without_inspection
from kvassay.impls.engines.lmcache import LMCacheManager

MODULE = "kvassay.impls.engines.lmcache"
ALL = ("lmcache", "lmcache-fifo", "lmcache-lfu", "lmcache-paged")


def test_importing_the_adapter_does_not_import_lmcache() -> None:
    code = f"import {MODULE}, sys; sys.exit(bool({{'lmcache', 'torch'}} & {{*sys.modules}}))"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def build() -> Callable[..., LMCacheManager]:
    pytest.importorskip("lmcache")

    def new(num_blocks: int = 8, block_size: int = 4, name: str = "lmcache") -> LMCacheManager:
        (found,) = registry.find(name)
        manager = found.build(num_blocks=num_blocks, block_size=block_size)
        assert isinstance(manager, LMCacheManager)
        return manager

    return new


def key(num_tokens: int, first: int = 0, salt: str | None = None) -> CacheKey:
    return CacheKey(range(first, first + num_tokens), salt=salt)


def serve(manager: LMCacheManager, wanted: CacheKey, request: str = "served") -> int:
    hit = manager.admit(request, wanted)
    manager.commit(request, len(wanted.tokens))
    manager.release(request)
    return hit


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("size", [1, 3, 16, 3000])
def test_a_block_is_an_object_of_one_chunk(build: Any, name: str, size: int) -> None:
    manager = build(5, size, name)
    manager.admit("a", key(5 * size))
    assert sorted(manager.block_table("a")) == [0, 1, 2, 3, 4]
    assert manager.counters() == Counters(free=0, cached=0, used=5)
    with pytest.raises(OutOfBlocks):
        manager.append("a", [1])
    manager.release("a")
    assert manager.counters() == Counters(free=5, cached=0, used=0)


def test_leaves_one_token_to_compute(build: Any) -> None:
    manager = build()
    assert serve(manager, key(16)) == 0
    assert manager.peek(key(16)) == 12
    assert manager.admit("a", key(16)) == 12
    assert manager.counters() == Counters(free=3, cached=1, used=4)


def test_a_look_up_pins_what_it_finds_and_readers_take_references(build: Any) -> None:
    manager = build(4)
    serve(manager, key(9))
    assert manager.begin("a", key(9)) == 8
    held = manager.block_table("a")
    stored = [*manager.backend.hot_cache.values()]
    assert [(one.is_pinned, one.get_ref_count()) for one in stored] == [(True, 1)] * 2
    with pytest.raises(OutOfBlocks):
        manager.admit("b", key(9, first=70))
    assert manager.block_table("a") == held
    assert manager.refcounts() == dict.fromkeys(held, 1)
    assert manager.reserve("a", 1) == 9
    assert [(one.is_pinned, one.get_ref_count()) for one in stored] == [(False, 2)] * 2
    manager.release("a")
    assert manager.counters() == Counters(free=2, cached=2, used=0)


def test_a_look_up_that_is_given_up_leaves_no_pin(build: Any) -> None:
    manager = build()
    serve(manager, key(9))
    manager.begin("a", key(9))
    manager.release("a")
    assert manager.evict(8) == 2


def test_a_chunk_is_known_once_it_is_full_and_written(build: Any) -> None:
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
    with pytest.raises(ValueError, match="expected 13 < num_tokens <= 13"):
        manager.commit("a", 13)


def test_the_second_writer_keeps_its_own_chunks(build: Any) -> None:
    manager = build()
    for request in ("a", "b"):
        manager.admit(request, key(5))
    one, other = manager.block_table("a"), manager.block_table("b")
    for request in ("a", "b"):
        manager.commit(request, 5)
    assert (manager.block_table("a"), manager.block_table("b")) == (one, other)
    assert manager.refcounts() == dict.fromkeys((*one, *other), 1)
    for request in ("a", "b"):
        manager.release(request)
    assert manager.counters() == Counters(free=7, cached=1, used=0)


def test_a_refusal_may_cost_what_is_idle_and_holds_nothing(build: Any) -> None:
    manager = build(4)
    serve(manager, key(8))
    manager.admit("a", key(4, first=50))
    with pytest.raises(OutOfBlocks, match="3 blocks were found"):
        manager.admit("b", key(16, first=70))
    assert manager.counters() == Counters(free=3, cached=0, used=1)


@pytest.mark.parametrize("salt", ["a", None])
def test_a_salt_is_part_of_a_chunk_s_name(build: Any, salt: str | None) -> None:
    manager = build()
    serve(manager, key(9, salt="b"))
    assert manager.peek(key(9, salt=salt)) == 0
    assert manager.peek(key(9, salt="b")) == 8


def test_evicts_as_many_as_are_asked_for_and_nobody_s(build: Any) -> None:
    manager = build(8)
    serve(manager, key(12))
    assert manager.admit("a", key(9)) == 8
    assert manager.evict(5) == 1
    assert manager.evict(1) == 0
    assert manager.counters() == Counters(free=5, cached=0, used=3)


@pytest.mark.parametrize(("name", "first"), [("lmcache", 20), ("lmcache-fifo", 0)])
def test_goes_by_the_last_hit_or_by_what_came_first(build: Any, name: str, first: int) -> None:
    manager = build(8, name=name)
    for start in (0, 20):
        serve(manager, key(5, first=start))
    serve(manager, key(5))
    assert manager.evict(1) == 1
    assert [manager.peek(key(5, first=start)) for start in (first, 20 - first)] == [0, 4]


def test_goes_by_the_number_of_hits(build: Any) -> None:
    manager = build(8, name="lmcache-lfu")
    for start in (0, 0, 20, 20, 20, 0):
        serve(manager, key(5, first=start))
    serve(manager, key(5, first=40))
    serve(manager, key(5, first=40))
    assert manager.evict(1) == 1
    assert [manager.peek(key(5, first=start)) for start in (0, 20, 40)] == [4, 4, 0]


def test_names_by_python_s_hash_are_not_checked_and_digests_need_not_be(build: Any) -> None:
    one, other = key(1), CacheKey([(1 << 61) - 1])
    hits = []
    for name in ALL:
        manager = build(block_size=1, name=name)
        serve(manager, one)
        hits.append(manager.peek(CacheKey([*other.tokens, 5])))
    assert hits == [1, 0, 0, 0]


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


@pytest.mark.parametrize("name", ALL)
def test_whoever_is_dropped_frees_nothing_while_it_is_collected(build: Any, name: str) -> None:
    """LMCache's objects would take a lock that the collector's victim may hold."""
    manager = build(name=name)
    serve(manager, key(8))
    manager.admit("a", key(8))
    objects = [*manager._live["a"].objects, *manager.backend.hot_cache.values()]
    gone = weakref.ref(manager)
    manager.itself = manager  # the collector alone finds it
    del manager
    gc.collect()
    assert gone() is None
    assert not any(one.is_valid() for one in objects)


@pytest.mark.parametrize(("name", "again"), [("lmcache-paged", True), ("lmcache", False)])
def test_a_reference_too_many_frees_a_page_twice(build: Any, name: str, again: bool) -> None:
    """With fixed pages, that is: elsewhere an object is given back once."""
    manager = build(2, name=name)
    manager.admit("a", key(4))
    (one,) = manager._live["a"].objects
    manager.release("a")
    one.ref_count_down()
    manager.admit("b", key(8))
    assert manager.counters().free == int(again)
    assert len({*manager.block_table("b")}) == 2


# ----------------------------------------------------------------------------------- the faults


def nothing_pinned(manager: LMCacheManager) -> None:
    """What a look-up counted can be evicted until somebody has read it."""
    backend = manager.backend
    look = backend.batched_contains
    backend.batched_contains = lambda keys, pin=False: look(keys, False)


def readers_ignored(manager: LMCacheManager) -> None:
    """What is evicted is free at once, whoever reads it."""
    backend, allocator = manager.backend, manager.backend.memory_allocator
    backend.cache_policy.get_evict_candidates = lambda cache, num_candidates=1: [
        name for name, one in cache.items() if not one.is_pinned
    ][:num_candidates]

    def remove(keys: list[Any], force: bool = True) -> int:
        for name in keys:
            allocator.free(backend.hot_cache.pop(name))
        return len(keys)

    backend.batched_remove = remove


def hash_without_what_stands_before(manager: LMCacheManager) -> None:
    """A chunk's name covers its own tokens alone."""
    tokens = manager._tokens
    named = tokens._hash_tokens
    tokens._hash_tokens = lambda chunk, prefix_hash=None, extra_keys=None: named(chunk)


def tags_left_out(manager: LMCacheManager) -> None:
    """What stands beside the hash does not tell two chunks apart."""
    tokens = manager._tokens
    make = tokens._make_key_by_hash
    tokens._make_key_by_hash = lambda chunk_hash, request_configs=None: make(chunk_hash)


def stored_without_a_reference(manager: LMCacheManager) -> None:
    """What is stored is free once whoever brought it has left, and is still found."""
    backend = manager.backend
    put = backend.submit_put_task

    def put_alone(name: Any, one: Any, **more: Any) -> None:
        known = name in backend.hot_cache
        put(name, one, **more)
        if not known:
            one.ref_count_down()

    backend.submit_put_task = put_alone


def given_back_twice(manager: LMCacheManager) -> None:
    """What is evicted comes back to the pool once more."""
    backend, allocator = manager.backend, manager.backend.memory_allocator
    remove = backend.remove

    def remove_and_free(name: Any, force: bool = True) -> bool:
        one = backend.hot_cache[name]
        removed: bool = remove(name, force)
        allocator.free(one)
        return removed

    backend.remove = remove_and_free


FAULTS: dict[Callable[[LMCacheManager], None], str] = {
    nothing_pinned: "P7 P1 P5 A2 A3",
    readers_ignored: "A2 A3 A7",
    hash_without_what_stands_before: "P2",
    tags_left_out: "P2",
    stored_without_a_reference: "P1 P5 A2 A3",
    given_back_twice: "A2 A3",
}
BRIEF = (nothing_pinned, hash_without_what_stands_before, given_back_twice)


@pytest.mark.parametrize(
    "patch",
    [
        pytest.param(p, marks=[] if p in BRIEF else [pytest.mark.long], id=p.__name__)
        for p in FAULTS
    ],
)
def test_a_planted_fault_is_convicted(build: Any, patch: Any) -> None:
    def faulty(num_blocks: int, block_size: int) -> LMCacheManager:
        manager: LMCacheManager = build(num_blocks, block_size, "lmcache-paged")
        patch(manager)
        return manager

    stock = registered(MODULE, "lmcache-paged", blind=True)
    blind = without_inspection(stock.declaration)
    planted = Registration(f"lmcache-fault-{patch.__name__}", CacheManager, faulty, blind)
    convict(planted, frozenset(FAULTS[patch].split()), stock)
