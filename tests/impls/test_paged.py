"""The built-in `paged`: each rule of PagedAttention's manager, one example at a time."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest

from kvassay.harness import registry
from kvassay.harness.contract import CacheKey, CacheManager, Counters, Outcome, OutOfBlocks
from kvassay.impls.paged import PagedManager


def manager(num_blocks: int = 8, block_size: int = 4, prompt: int = 0) -> PagedManager:
    built = PagedManager(num_blocks=num_blocks, block_size=block_size)
    if prompt:
        built.admit("r", CacheKey(range(prompt)))
    return built


def test_is_registered_with_the_methods_it_declares() -> None:
    (registration,) = registry.find("paged")
    assert registration.kind is CacheManager
    assert isinstance(registration.build(num_blocks=4, block_size=2), PagedManager)


@pytest.mark.parametrize(("length", "blocks"), [(1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_a_table_has_as_many_blocks_as_the_tokens_fill(length: int, blocks: int) -> None:
    paged = manager(prompt=length)
    assert len(set(paged.block_table("r"))) == blocks
    assert paged.counters() == Counters(free=8 - blocks, cached=0, used=blocks)


def test_nothing_is_ever_a_hit() -> None:
    paged = manager(prompt=8)
    paged.release("r")
    assert paged.admit("s", CacheKey(range(8))) == 0


def test_append_takes_a_block_only_at_a_boundary() -> None:
    paged = manager(prompt=3)
    paged.append("r", [7])
    assert len(paged.block_table("r")) == 1
    paged.append("r", [7])
    assert len(paged.block_table("r")) == 2
    paged.append("r", [7] * 8)
    assert len(paged.block_table("r")) == 4


def test_release_gives_every_block_back_at_once() -> None:
    paged = manager(prompt=20)
    paged.release("r", Outcome.ABORTED)
    paged.drain()
    assert paged.counters() == Counters(free=8, cached=0, used=0)
    assert paged.admit("r", CacheKey(range(32))) == 0


def test_fork_shares_every_block_and_takes_none() -> None:
    paged = manager(prompt=6)
    paged.fork("r", ["a", "b"])
    table = paged.block_table("r")
    assert paged.block_table("a") == paged.block_table("b") == table
    assert paged.refcounts() == dict.fromkeys(table, 3)
    assert paged.counters().used == 2
    paged.release("r")
    assert paged.refcounts() == dict.fromkeys(table, 2)


def test_a_write_into_a_shared_partial_block_goes_to_a_copy() -> None:
    paged = manager(prompt=6)
    paged.fork("r", ["a"])
    first, tail = paged.block_table("r")
    paged.append("a", [1])
    copy = paged.block_table("a")[1]
    assert paged.block_table("a") == [first, copy]
    assert copy != tail
    assert paged.take_copies() == [(tail, copy)]
    assert paged.take_copies() == []


def test_the_last_sharer_writes_in_place() -> None:
    paged = manager(prompt=6)
    paged.fork("r", ["a"])
    paged.append("a", [1])
    paged.take_copies()
    table = paged.block_table("r")
    paged.append("r", [2])
    assert paged.block_table("r") == table
    assert paged.take_copies() == []


def test_full_shared_blocks_need_no_copy() -> None:
    paged = manager(prompt=8)
    paged.fork("r", ["a"])
    paged.append("a", [1])
    assert paged.block_table("a")[:2] == paged.block_table("r")
    assert paged.take_copies() == []


def test_truncate_gives_back_whole_blocks_and_leaves_sharers_alone() -> None:
    paged = manager(prompt=10)
    paged.fork("r", ["a"])
    table = paged.block_table("r")
    paged.truncate("a", 5)
    assert paged.block_table("a") == table[:2]
    assert paged.refcounts() == {table[0]: 2, table[1]: 2, table[2]: 1}
    paged.append("a", [1])
    assert [source for source, _ in paged.take_copies()] == [table[1]]


def test_a_refusal_changes_nothing() -> None:
    paged = manager(num_blocks=2, prompt=6)
    paged.fork("r", ["a"])
    before = paged.block_table("r"), paged.counters(), paged.refcounts()
    with pytest.raises(OutOfBlocks, match=r"^OOM: 1 blocks needed, 0 free"):
        paged.append("a", [1])
    with pytest.raises(OutOfBlocks):
        paged.admit("b", CacheKey([1]))
    assert (paged.block_table("r"), paged.counters(), paged.refcounts()) == before
    assert paged.take_copies() == []


def test_can_admit_tells_what_admit_does() -> None:
    paged = manager(num_blocks=3, prompt=4)
    assert paged.can_admit(CacheKey(range(8)))
    assert not paged.can_admit(CacheKey(range(9)))


class Index:
    """An integer of another type, as numpy's are."""

    def __index__(self) -> int:
        return 2


@pytest.mark.parametrize(
    "tokens", [[1, 2], (1, 2), range(2), array("l", [1, 2]), [Index(), Index()]]
)
def test_tokens_may_be_any_sequence_of_ints(tokens: Any) -> None:
    paged = manager()
    paged.admit("r", CacheKey(tokens))
    paged.append("r", tokens)
    assert len(paged.block_table("r")) == 1


MISUSES: dict[str, Callable[[PagedManager], Any]] = {
    "duplicate": lambda m: m.admit("r", CacheKey([1])),
    "id": lambda m: m.admit(3, CacheKey([1])),  # type: ignore[arg-type]
    "key": lambda m: m.admit("s", [1]),  # type: ignore[arg-type]
    "empty": lambda m: m.admit("s", CacheKey([])),
    "negative": lambda m: m.admit("s", CacheKey([1, -1])),
    "float": lambda m: m.can_admit(CacheKey([1.0])),  # type: ignore[list-item]
    "append nothing": lambda m: m.append("r", []),
    "append text": lambda m: m.append("r", "ab"),  # type: ignore[arg-type]
    "no children": lambda m: m.fork("r", []),
    "children text": lambda m: m.fork("r", "ab"),
    "twins": lambda m: m.fork("r", ["a", "a"]),
    "own parent": lambda m: m.fork("r", ["a", "r"]),
    "truncate to 0": lambda m: m.truncate("r", 0),
    "truncate past": lambda m: m.truncate("r", 7),
    "truncate bool": lambda m: m.truncate("r", True),
    "outcome": lambda m: m.release("r", "lost"),  # type: ignore[arg-type]
    "pool": lambda m: PagedManager(num_blocks=0, block_size=1),
    "block": lambda m: PagedManager(num_blocks=1, block_size=0),
}
UNKNOWN: dict[str, Callable[[PagedManager], Any]] = {
    "append": lambda m: m.append("s", [1]),
    "table": lambda m: m.block_table("s"),
    "fork": lambda m: m.fork("s", ["t"]),
    "truncate": lambda m: m.truncate("s", 1),
    "release": lambda m: m.release("s"),
    "unhashable": lambda m: m.release(["r"]),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", MISUSES)
def test_misuse_is_named_and_changes_nothing(name: str) -> None:
    paged = manager(prompt=6)
    with pytest.raises(ValueError, match=r"expected|is not a valid"):
        MISUSES[name](paged)
    assert paged.counters() == Counters(free=6, cached=0, used=2)
    assert len(paged.block_table("r")) == 2


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_request_is_named(name: str) -> None:
    with pytest.raises(KeyError, match="is not live; expected the id of a live one"):
        UNKNOWN[name](manager(prompt=6))


def test_a_double_release_is_misuse() -> None:
    paged = manager(prompt=6)
    paged.release("r")
    with pytest.raises(KeyError, match="'r' is not live"):
        paged.release("r")
    assert paged.counters().free == 8
