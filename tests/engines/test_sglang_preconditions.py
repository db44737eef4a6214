"""What SGLang's pools and trees do where a caller breaks their preconditions.

None of it is a defect: no public API of the engine gets there, and its scheduler keeps the
preconditions, as the adapters do. It is held here because the three trees differ in it, which
whoever ports or forks one should know, and so that a release that changes it is noticed. The
names are those of `results/findings/README.md`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from importlib import util
from typing import Any

import pytest

from kvassay.harness.contract import CacheKey
from kvassay.impls.engines import sglang, sglang_parts
from kvassay.impls.engines.sglang_parts import TREES, length, lock, radix_key, unlock

pytestmark = pytest.mark.skipif(
    util.find_spec("sglang") is None, reason=f"needs SGLang: {sglang_parts.INSTALL}"
)
SIZE = 64
ALL = range(SIZE)


class Pool:
    """A tree on a pool of 64 slots, and the calls that the tests make."""

    def __init__(self, name: str, page_size: int = 1) -> None:
        self.engine = sglang_parts.engine()
        self.allocator = sglang._allocator(SIZE, page_size)
        self.tree: Any = sglang_parts.new_tree(
            name,
            self.engine.CacheInitParams(
                disable=False,
                req_to_token_pool=self.engine.ReqToTokenPool(8, SIZE, "cpu", False),
                token_to_kv_pool_allocator=self.allocator,
                page_size=page_size,
            ),
        )

    def insert(self, tokens: Sequence[int], slots: Any) -> None:
        key = radix_key(CacheKey(tuple(tokens)))
        self.tree.insert(self.engine.InsertParams(key=key, value=slots))

    def match(self, tokens: Sequence[int]) -> Any:
        key = radix_key(CacheKey(tuple(tokens)))
        return self.tree.match_prefix(self.engine.MatchPrefixParams(key=key))

    def evict(self, count: int) -> int:
        return int(self.tree.evict(self.engine.EvictParams(num_tokens=count)).num_tokens_evicted)


@pytest.fixture(params=TREES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def full(name: str) -> Pool:
    """All slots are in one entry of the tree."""
    pool = Pool(name)
    pool.insert(ALL, pool.allocator.alloc(SIZE))
    return pool


@pytest.mark.parametrize(("page_size", "free"), [(1, 96), (16, 80)])
def test_s1_a_second_free_is_handed_out_again(page_size: int, free: int) -> None:
    allocator = sglang._allocator(SIZE, page_size)
    slots = allocator.alloc(32 if page_size == 1 else page_size)
    allocator.free(slots)
    assert allocator.available_size() == SIZE
    allocator.free(slots)
    assert allocator.available_size() == free


def test_s2_slots_that_never_were_are_handed_out() -> None:
    allocator = sglang._allocator(8, 1)
    allocator.free(sglang_parts.engine().torch.tensor([0, 9999]))
    assert allocator.alloc(10).tolist()[-2:] == [0, 9999]


@pytest.mark.parametrize(
    ("page_size", "asked", "got"), [(1, -1, 7), (16, 10, 0), (16, 16, 16), (16, 20, 16)]
)
def test_s3_sizes_are_not_looked_at(page_size: int, asked: int, got: int) -> None:
    allocator = sglang._allocator(8 if page_size == 1 else SIZE, page_size)
    assert len(allocator.alloc(asked)) == got


def test_s5_a_second_unlock_is_told_by_two_trees_of_three(full: Pool, name: str) -> None:
    receipt = lock(full.tree, full.match(ALL).last_device_node)
    unlock(full.tree, receipt)
    if name == "radix":
        unlock(full.tree, receipt)
        lock(full.tree, full.match(ALL).last_device_node)
        assert full.evict(SIZE) == SIZE  # what the next holder has locked
        return
    expected = AssertionError if name == "unified-python" else RuntimeError
    with pytest.raises(expected, match="lock_ref=0"):
        unlock(full.tree, receipt)
    if name == "unified-rust":
        with pytest.raises(RuntimeError, match="poisoned"):
            full.match(ALL)
    else:
        assert length(full.match(ALL)) == SIZE


@pytest.mark.parametrize("times", [1, 2])
def test_s6_a_second_unlock_takes_the_lock_of_another_holder(full: Pool, times: int) -> None:
    mine, _ = (lock(full.tree, full.match(ALL).last_device_node) for _ in range(2))
    for _ in range(times):
        unlock(full.tree, mine)
    assert full.evict(SIZE) == (SIZE if times == 2 else 0)


def test_s7_a_node_that_was_evicted(full: Pool, name: str) -> None:
    node = full.match(ALL).last_device_node
    assert full.evict(SIZE) == SIZE
    if name == "radix":
        lock(full.tree, node)
        assert (full.tree.evictable_size(), full.tree.protected_size()) == (-SIZE, SIZE)
    else:
        with pytest.raises(KeyError):
            lock(full.tree, node)


def test_s9_a_reset_leaves_the_slots_to_the_caller(full: Pool) -> None:
    full.tree.reset()
    assert full.allocator.available_size() == 0


def test_s10_without_values_the_tokens_become_slots(name: str) -> None:
    pool = Pool(name)
    pool.insert([900, 901], None)
    assert pool.evict(2) == 2
    assert pool.allocator.alloc(SIZE + 2).tolist()[-2:] == [900, 901]


def test_s11_fewer_values_than_tokens(name: str) -> None:
    pool = Pool(name)
    half = pool.allocator.alloc(SIZE // 2)
    if name == "unified-rust":
        with pytest.raises(ValueError, match="shorter than the aligned key length"):
            pool.insert(ALL, half)
        return
    pool.insert(ALL, half)
    assert pool.tree.evictable_size() == (SIZE if name == "radix" else SIZE // 2)


def test_s12_values_that_end_inside_a_page_lose_that_page(name: str) -> None:
    pool = Pool(name, page_size=16)
    pool.insert(range(24), pool.allocator.alloc(32)[:24])
    assert pool.evict(SIZE) == 16
    assert pool.allocator.available_size() == SIZE - 16


@pytest.mark.parametrize(("looked_up", "evicted"), [(0, SIZE), (SIZE // 2, SIZE // 2)])
def test_s13_a_look_up_splits_what_one_eviction_takes(
    full: Pool, looked_up: int, evicted: int
) -> None:
    if looked_up:
        full.match(range(looked_up))
    assert full.evict(1) == evicted


@pytest.mark.parametrize(("extra", "found"), [("", 0), (None, 4)])
def test_s16_the_empty_extra_key_is_a_namespace(name: str, extra: str | None, found: int) -> None:
    pool = Pool(name)
    key = pool.engine.RadixKey(array("q", range(4)), extra)
    pool.tree.insert(pool.engine.InsertParams(key=key, value=pool.allocator.alloc(4)))
    assert length(pool.match(range(4))) == found


def test_s17_a_wrong_last_slot_gives_slots_that_are_in_use() -> None:
    allocator = sglang._allocator(SIZE, 16)
    one = sglang._one
    first = allocator.alloc_extend(one(0), one(0), one(20), one(20), one(-1), 20)
    wrong = int(first[3])  # instead of the last
    more = allocator.alloc_extend(one(20), one(20), one(30), one(30), one(wrong), 10)
    assert set(more.tolist()) & set(first.tolist())
