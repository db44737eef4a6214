"""The model of an index, against a brute-force one that stores whole keys and nothing else."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Any

import pytest

from kvassay.harness.contract import CacheKey, Declaration, Span
from kvassay.reference.index_model import Fate, IndexModel


def model(page_size: int = 1, capacity: int | None = None, **declared: Any) -> IndexModel:
    lru = {"order": "lru", "stamps": ["hit", "commit"], "granularity": "page"}
    return IndexModel(page_size, capacity, Declaration(**{**lru, **declared}))


def insert(index: IndexModel, *tokens: int, first: int = 0, **parts: Any) -> list[int]:
    """Store a key at the next moment; its values count from `first`."""
    index.now += 1
    places = index.places_of(CacheKey(tokens, **parts))
    values = list(range(first, first + len(tokens)))
    index.insert(places, values, index.resident(places))
    return places


def match(index: IndexModel, *tokens: int) -> list[int]:
    index.now += 1
    places = index.places_of(CacheKey(tokens))
    found = index.resident(places)
    index.match(places, found)
    return places[:found]


# ----------------------------------------------------------------------------------- brute force


class BruteForce:
    """Whole pages, each with all the tokens before it, in one dict."""

    def __init__(self, page_size: int) -> None:
        self.size = page_size
        self.pages: dict[tuple[object, ...], list[int]] = {}

    def prefixes(self, key: CacheKey) -> list[tuple[object, ...]]:
        stops = range(self.size, len(key.tokens) + 1, self.size)
        return [(key.salt, key.adapter, *key.tokens[:stop]) for stop in stops]

    def resident(self, key: CacheKey) -> int:
        found = 0
        for prefix in self.prefixes(key):
            if prefix not in self.pages:
                break
            found += self.size
        return found

    def insert(self, key: CacheKey, values: list[int]) -> None:
        for at, prefix in enumerate(self.prefixes(key)):
            self.pages.setdefault(prefix, values[at * self.size : (at + 1) * self.size])

    def values(self) -> set[int]:
        return {value for page in self.pages.values() for value in page}

    def drop(self, values: set[int]) -> None:
        self.pages = {p: page for p, page in self.pages.items() if values.isdisjoint(page)}


@pytest.mark.parametrize("page_size", [1, 2, 3, 4])
def test_stores_and_finds_what_brute_force_does(page_size: int) -> None:
    rng = Random(page_size)
    for _ in range(40):
        index, brute, slots = model(page_size), BruteForce(page_size), count()
        for _ in range(25):
            tokens = tuple(rng.randrange(2) for _ in range(rng.randint(1, 10)))
            key = CacheKey(tokens, rng.choice((None, "a")), rng.choice((None, None, "a")))
            places = index.places_of(key)
            index.now += 1
            assert index.resident(places) == brute.resident(key)
            if rng.random() < 0.5:
                values = [next(slots) for _ in tokens]
                index.insert(places, values, index.resident(places))
                brute.insert(key, values)
            elif rng.random() < 0.3 and index.values:
                gone = leaf_page(index, rng)
                brute.drop({index.values[place] for place in gone})
                index.evict(gone)
            assert set(index.values.values()) == brute.values()
            assert index.evictable() == len(brute.values())


def leaf_page(index: IndexModel, rng: Random) -> set[int]:
    """The last page of some path."""
    place = rng.choice([place for place in index.values if not index.below.get(place)])
    page = {place}
    while len(page) < index.page_size:
        place = index.above[place]
        page.add(place)
    assert index.unreachable(page) is None
    return page


@pytest.mark.parametrize("order", ["lru", "fifo", "lfu", "filo"])
def test_the_leaf_to_go_is_the_one_that_brute_force_takes(order: str) -> None:
    """Take one position at a time, always the lowest ranked tip: that is never a wrong leaf."""
    rng = Random(order)
    compared = 0
    for _ in range(60):
        index = model(order=order)
        for number in range(8):
            tokens = tuple(rng.randrange(2) for _ in range(rng.randint(1, 5)))
            insert(index, *tokens, first=10 * number)
            match(index, *tokens[: rng.randint(1, len(tokens))])
        amount = rng.randint(1, len(index.values))
        due = by_brute_force(index, order, amount)
        wrong, seen = index.wrong_leaf(due)
        assert wrong is None
        compared += seen
        for tip in tips(index, set()):
            if tip not in due and tip not in by_brute_force(index, order, 1):
                assert index.wrong_leaf({tip})[0] is not None
    assert compared > 40


def tips(index: IndexModel, gone: set[int]) -> list[int]:
    return [p for p in index.values if p not in gone and not index.below.get(p, set()) - gone]


def by_brute_force(index: IndexModel, order: str, amount: int) -> set[int]:
    def rank(place: int) -> tuple[int, ...]:
        access = index.accesses[place]
        ranks = {
            "lru": (access.stamp,),
            "fifo": (access.born,),
            "lfu": (access.count, access.stamp),
            "filo": (-access.born,),
        }
        return ranks[order]

    gone: set[int] = set()
    for _ in range(amount):
        gone.add(min(tips(index, gone), key=rank))
    return gone


# ------------------------------------------------------------------------------------------- places


def test_pages_that_begin_alike_have_nothing_in_common() -> None:
    index = model(page_size=4)
    one = index.places_of(CacheKey((1, 2, 3, 4, 5)))
    other = index.places_of(CacheKey((1, 2, 3, 9)))
    assert set(one).isdisjoint(other)
    assert index.places_of(CacheKey((1, 2, 3, 4))) == one[:4]
    assert [index.prefix_of(place)[1][-1] for place in one] == [1, 2, 3, 4, 5]
    assert index.prefix_of(one[4])[1] == [1, 2, 3, 4, 5]


def test_contents_and_resets_are_part_of_a_place() -> None:
    index = model()
    plain = index.places_of(CacheKey((1,)))
    assert index.places_of(CacheKey((1,), spans=(Span(0, 1, "x"),))) != plain
    insert(index, 1, first=5)
    index.reset()
    assert index.resident(index.places_of(CacheKey((1,)))) == 0
    assert index.offers[5].fate is Fate.FORGOTTEN
    assert index.places_of(CacheKey((1,))) != plain


# -------------------------------------------------------------------------------------------- fates


def test_every_value_has_a_fate() -> None:
    index = model(page_size=2)
    insert(index, 1, 2, 3, 4)
    insert(index, 1, 2, 5, 6, 7, first=10)
    refused = index.places_of(CacheKey((8, 9)))
    index.refuse(refused, [20, 21])
    index.evict(insert(index, 1, 2, 3, 4, first=30)[2:])
    fates = {value: offer.fate for value, offer in index.offers.items()}
    assert {fates[value] for value in (0, 1, 12, 13)} == {Fate.STORED}
    assert {fates[value] for value in (10, 11, 30, 33)} == {Fate.DUPLICATE}
    assert (fates[14], fates[20], fates[2]) == (Fate.TAIL, Fate.REFUSED, Fate.FREED)


def test_capacity_counts_what_is_stored() -> None:
    index = model(capacity=3)
    insert(index, 1, 2)
    assert index.fits(1)
    assert not index.fits(2)
    assert model().fits(10**9)


# -------------------------------------------------------------------------------------------- locks


def test_locks_cover_a_prefix_as_often_as_they_were_taken() -> None:
    index = model()
    places = insert(index, 1, 2, 3)
    insert(index, 1, 2, 4, first=10)
    first, second = index.lock(places), index.lock(places[:2])
    assert (index.evictable(), index.surely_evictable()) == (1, 1)
    index.unlock(places, first)
    assert index.evictable() == 2
    index.unlock(places[:2], second)
    assert index.evictable() == 4
    assert not index.covers


def test_a_lock_may_reach_to_the_next_branch_of_that_moment() -> None:
    index = model()
    places = insert(index, 1, 2, 3)
    beyond = index.lock(places[:1])
    assert (index.evictable(), index.surely_evictable()) == (2, 0)
    insert(index, 1, 9, first=10)  # a branch that comes later does not set the others free
    assert (index.evictable(), index.surely_evictable()) == (3, 1)
    index.unlock(places[:1], beyond)
    assert index.surely_evictable() == 4


# ----------------------------------------------------------------------------------------- eviction


def test_what_hangs_below_must_go_too() -> None:
    index = model()
    places = insert(index, 1, 2)
    assert index.unreachable({places[0]}) == places[1]
    assert index.unreachable(set(places)) is None


@pytest.mark.parametrize(
    ("granularity", "most"), [("block", 4), ("page", 4), ("leaf", 8), ("all", 12)]
)
def test_the_most_that_may_be_evicted(granularity: str, most: int) -> None:
    index = model(page_size=4, granularity=granularity)
    leaf = insert(index, *range(8))
    insert(index, *range(50, 54), first=10)
    assert index.most_evicted(1, leaf) == most


def test_an_access_counts_for_what_was_found_and_not_for_the_rest() -> None:
    index = model()
    older = insert(index, 1, 2)
    newer = insert(index, 5, first=10)
    match(index, 1)
    assert index.wrong_leaf({older[1]}) == (None, True)
    wrong = index.wrong_leaf(set(newer))[0]
    assert wrong is not None
    assert (wrong.gone, wrong.stayed) == (newer[0], older[1])


def test_with_whole_leaves_an_access_may_count_for_the_rest_as_well() -> None:
    index = model(granularity="leaf")
    older = insert(index, 1, 2)
    newer = insert(index, 5, first=10)
    match(index, 1)
    assert index.wrong_leaf({older[1]})[0] is None
    assert index.wrong_leaf(set(newer))[0] is None


def test_a_refused_insert_may_have_been_an_access() -> None:
    index = model()
    older, newer = insert(index, 1), insert(index, 5, first=10)
    index.now += 1
    index.refuse(index.places_of(CacheKey((1, 2, 3))), [20, 21, 22])
    assert index.wrong_leaf(set(older))[0] is None
    assert index.wrong_leaf(set(newer))[0] is None
    match(index, 1)
    assert index.wrong_leaf(set(older))[0] is not None


def test_only_declared_stamps_are_accesses() -> None:
    index = model(stamps=["commit"])
    older, newer = insert(index, 1), insert(index, 5, first=10)
    match(index, 1)
    assert index.wrong_leaf(set(newer))[0] is not None
    index.now += 1
    index.unlock(older, index.lock(older))
    assert index.wrong_leaf(set(newer))[0] is not None
    locking = model(stamps=["reserve"])
    older, newer = insert(locking, 1), insert(locking, 5, first=10)
    locking.now += 1
    locking.unlock(older, locking.lock(older))
    assert locking.wrong_leaf(set(newer))[0] is None


def test_without_an_order_nothing_is_a_wrong_leaf() -> None:
    index = model(order="none", stamps=[])
    insert(index, 1)
    assert index.wrong_leaf(set(insert(index, 5, first=10))) == (None, False)
