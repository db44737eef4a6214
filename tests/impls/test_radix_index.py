"""The tree by itself, on small examples that can be checked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from kvassay.harness.contract import CacheKey, IndexCounters, OutOfBlocks, PrefixIndex, Span
from kvassay.impls.radix_index import RadixIndex


class Planter:
    """An index whose values are 100 times the order of the insert, plus the position."""

    def __init__(self, page_size: int = 1, capacity: int | None = None) -> None:
        self.index = RadixIndex(capacity, page_size)
        self.count = 0

    def plant(self, *tokens: int, **parts: Any) -> int:
        self.count += 1
        values = [100 * self.count + position for position in range(len(tokens))]
        return self.index.insert(CacheKey(tokens, **parts), values)

    def found(self, *tokens: int, **parts: Any) -> list[int]:
        match = self.index.match(CacheKey(tokens, **parts))
        assert match.length == len(match.values)
        return list(match.values)

    def handle(self, *tokens: int) -> Any:
        return self.index.match(CacheKey(tokens)).handle

    def shape(self) -> set[tuple[tuple[int, ...], int]]:
        return {(node.tokens, node.locks) for node in self.index.walk()}


def test_keeps_the_protocol() -> None:
    assert isinstance(RadixIndex(None, 1), PrefixIndex)


# ------------------------------------------------------------------------------- match and insert


def test_an_insert_stores_what_is_new_and_tells_what_was_there() -> None:
    planter = Planter()
    assert planter.plant(1, 2, 3) == 0
    assert planter.plant(1, 2, 4, 5) == 2
    assert planter.plant(1, 2, 3) == 3
    assert planter.found(1, 2, 4, 5, 6) == [100, 101, 202, 203]
    assert planter.found(1, 2, 3) == [100, 101, 102]
    assert planter.found(2) == []


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_keys_are_cut_to_whole_pages(page_size: int) -> None:
    planter = Planter(page_size)
    tokens = tuple(range(2 * page_size + page_size // 2))
    planter.plant(*tokens)
    whole = 2 * page_size
    assert planter.found(*tokens) == [100 + position for position in range(whole)]
    assert planter.found(*tokens[: whole - 1]) == [100 + n for n in range(whole - page_size)]
    assert planter.index.counters().total == whole


def test_a_key_shorter_than_a_page_stores_and_matches_nothing() -> None:
    planter = Planter(page_size=4)
    assert planter.plant(1, 2, 3) == 0
    assert planter.found(1, 2, 3) == []
    assert planter.index.walk() == []
    assert planter.plant(*range(10)) == 0
    assert planter.index.counters() == IndexCounters(8, 0, 8)


def test_pages_that_begin_alike_are_different_pages() -> None:
    planter = Planter(page_size=4)
    planter.plant(1, 2, 3, 4)
    assert planter.plant(1, 2, 3, 5) == 0
    assert planter.found(1, 2, 3, 4) == [100, 101, 102, 103]
    assert planter.found(1, 2, 3, 5) == [200, 201, 202, 203]


def test_salt_adapter_and_contents_keep_keys_apart() -> None:
    planter = Planter()
    spaces: list[dict[str, Any]] = [
        {},
        {"salt": "a"},
        {"adapter": "a"},
        {"spans": (Span(0, 1, "x"),)},
        {"spans": (Span(0, 1, "y"),)},
    ]
    for number, parts in enumerate(spaces, 1):
        assert planter.plant(7, 8, **parts) == 0
        assert planter.found(7, 8, **parts) == [100 * number, 100 * number + 1]


def test_a_split_keeps_values_and_the_walk_tells_it() -> None:
    planter = Planter(page_size=2)
    planter.plant(*range(6))
    assert planter.shape() == {(tuple(range(6)), 0)}
    assert planter.found(0, 1, 9, 9) == [100, 101]
    assert planter.shape() == {((0, 1), 0), ((2, 3, 4, 5), 0)}
    upper, lower = planter.index.walk()
    assert (upper.parent, lower.parent) == (None, upper.id)
    assert lower.values == (102, 103, 104, 105)
    assert planter.found(*range(6)) == [100 + position for position in range(6)]


def test_peek_changes_nothing() -> None:
    planter = Planter()
    planter.plant(1, 2)
    planter.plant(3)
    before = planter.index.walk()
    assert planter.index.peek(CacheKey((1, 9))) == 1
    assert planter.index.walk() == before
    assert planter.index.evict(1) == [101]


# ----------------------------------------------------------------------------------------- capacity


def test_an_insert_beyond_the_capacity_is_refused_and_changes_nothing() -> None:
    planter = Planter(page_size=2, capacity=5)
    planter.plant(1, 2, 3, 4)
    before = planter.index.walk()
    with pytest.raises(OutOfBlocks, match=r"^OOM: 6 tokens would be stored, 5 may be"):
        planter.plant(1, 2, 9, 9)
    assert planter.index.walk() == before
    assert planter.plant(1, 2, 3, 4, 5) == 4
    planter.index.evict(1)
    assert planter.plant(1, 2, 9, 9) == 2


# ---------------------------------------------------------------------------------------- eviction


def test_evicts_the_least_recent_leaf_from_its_end() -> None:
    planter = Planter()
    planter.plant(1, 2, 3)
    planter.plant(5, 6)
    planter.found(1, 2, 3)
    assert planter.index.evict(1) == [201]
    assert planter.index.evict(2) == [200, 102]
    assert planter.index.evict(9) == [100, 101]
    assert planter.index.evict(1) == []


def test_frees_whole_pages() -> None:
    planter = Planter(page_size=4)
    planter.plant(*range(8))
    assert planter.index.evict(1) == [104, 105, 106, 107]
    assert planter.found(*range(8)) == [100, 101, 102, 103]


def test_a_look_up_renews_what_it_found_and_not_the_rest_of_the_edge() -> None:
    planter = Planter()
    planter.plant(1, 2, 3)
    planter.plant(5)
    planter.found(1, 9)
    assert planter.index.evict(3) == [101, 102, 200]
    assert planter.found(1) == [100]


def test_an_inner_node_goes_once_it_is_a_leaf() -> None:
    planter = Planter()
    planter.plant(1, 2)
    planter.plant(1, 3)
    assert planter.index.evict(2) == [101, 201]
    assert planter.index.evict(1) == [100]
    assert planter.index.walk() == []


# ------------------------------------------------------------------------------------------- locks


def test_a_lock_protects_the_path_and_an_unlock_gives_it_back() -> None:
    planter = Planter()
    planter.plant(1, 2, 3)
    planter.plant(1, 2, 4)
    handle = planter.handle(1, 2, 3)
    planter.index.lock(handle)
    assert planter.index.counters() == IndexCounters(1, 3, 4)
    assert planter.index.evict(9) == [202]
    planter.index.unlock(handle)
    assert planter.index.counters() == IndexCounters(3, 0, 3)
    assert planter.index.evict(9) == [100, 101, 102] or not planter.index.walk()


def test_a_split_below_a_lock_keeps_both_halves_locked() -> None:
    planter = Planter()
    planter.plant(1, 2, 3, 4)
    handle = planter.handle(1, 2, 3, 4)
    planter.index.lock(handle)
    planter.plant(1, 2, 9)
    assert planter.shape() == {((1, 2), 1), ((3, 4), 1), ((9,), 0)}
    assert planter.index.evict(9) == [202]
    planter.index.unlock(handle)
    assert planter.shape() == {((1, 2), 0), ((3, 4), 0)}


def test_two_readers_hold_one_path_until_both_have_left() -> None:
    planter = Planter()
    planter.plant(1, 2)
    one, other = planter.handle(1, 2), planter.handle(1)
    planter.index.lock(one)
    planter.index.lock(other)
    planter.index.unlock(one)
    assert planter.index.evict(9) == [101]
    planter.index.unlock(other)
    assert planter.index.evict(9) == [100]


def test_a_lock_can_be_taken_again_while_it_is_held() -> None:
    planter = Planter()
    planter.plant(1)
    handle = planter.handle(1)
    planter.index.lock(handle)
    planter.plant(2)
    planter.index.lock(handle)
    planter.index.unlock(handle)
    assert planter.index.evict(9) == [200]


def test_a_handle_is_void_after_a_change_unless_it_is_locked() -> None:
    planter = Planter()
    planter.plant(1, 2)
    handle = planter.handle(1, 2)
    planter.found(1)  # a look-up that splits is no change
    planter.index.lock(handle)
    planter.plant(3)
    planter.index.unlock(handle)
    with pytest.raises(KeyError, match="match again"):
        planter.index.lock(handle)
    with pytest.raises(ValueError, match="expected a locked one"):
        planter.index.unlock(handle)


def test_nothing_is_forgotten_under_a_lock() -> None:
    planter = Planter()
    planter.plant(1, 2)
    handle = planter.handle(1, 2)
    planter.index.lock(handle)
    with pytest.raises(ValueError, match="2 tokens are locked"):
        planter.index.reset()
    assert planter.found(1, 2) == [100, 101]
    planter.index.unlock(handle)
    planter.index.reset()
    assert planter.found(1, 2) == []
    assert planter.index.counters() == IndexCounters(0, 0, 0)


# ------------------------------------------------------------------------------------------- misuse


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda index: index.match(CacheKey(())), "at least one token"),
        (lambda index: index.match(7), "expected a CacheKey"),
        (lambda index: index.insert(CacheKey((1, 2)), [1]), "expected 2, one a token, got 1"),
        (lambda index: index.insert(CacheKey((1,)), [None]), "expected a sequence of ints"),
        (lambda index: index.evict(0), "num_tokens: expected an int >= 1"),
        (lambda index: index.lock("x"), "expected what a match returned"),
        (lambda index: index.unlock(None), "expected what a match returned"),
    ],
)
def test_misuse_says_what_was_expected(wrong: Any, says: str) -> None:
    planter = Planter()
    planter.plant(1)
    before = planter.index.walk()
    with pytest.raises((ValueError, KeyError), match=says):
        wrong(planter.index)
    assert planter.index.walk() == before


@pytest.mark.parametrize(("capacity", "page_size"), [(None, 0), (-1, 4), (None, True)])
def test_sizes_are_checked(capacity: Any, page_size: Any) -> None:
    with pytest.raises(ValueError, match="expected an int"):
        RadixIndex(capacity, page_size)
