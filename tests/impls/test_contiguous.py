"""The built-ins `contiguous*`: how long each run is, where it lies, and what that wastes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvassay.harness import registry
from kvassay.harness.contract import (
    CacheKey,
    CacheManager,
    Outcome,
    OutOfBlocks,
    PagedAttention,
    Placement,
)
from kvassay.impls.contiguous import MaxLengthManager, OracleManager, PowerOfTwoManager

Manager = MaxLengthManager | PowerOfTwoManager | OracleManager
ALL = (MaxLengthManager, PowerOfTwoManager, OracleManager)


def prompt(length: int) -> CacheKey:
    return CacheKey(range(length))


def test_are_registered_as_contiguous() -> None:
    *found, kernel = registry.find("kvassay.impls.contiguous")
    assert (kernel.name, kernel.kind) == ("contiguous", PagedAttention)
    assert [entry.name for entry in found] == [
        "contiguous",
        "contiguous-pow2",
        "contiguous-oracle",
    ]
    for entry in found:
        assert entry.kind is CacheManager
        assert entry.declaration.placement is Placement.CONTIGUOUS
        assert isinstance(entry.build(num_blocks=4, block_size=2), ALL)
    assert found[0].declaration.max_tokens == 16


@pytest.mark.parametrize("build", ALL)
def test_a_table_is_the_filled_part_of_the_run(build: Callable[..., Manager]) -> None:
    manager = build(num_blocks=8, block_size=4)
    assert manager.admit("r", prompt(3)) == 0
    assert manager.block_table("r") == [0]
    manager.append("r", [7])
    assert manager.block_table("r") == [0]


# ------------------------------------------------------------------------------ length of a run


@pytest.mark.parametrize(
    ("build", "length", "reserved"),
    [
        (MaxLengthManager, 1, 3),  # 16 tokens for everybody: 4 blocks, of which one is filled
        (MaxLengthManager, 16, 0),
        (PowerOfTwoManager, 1, 0),  # 2 tokens
        (PowerOfTwoManager, 3, 0),  # 4 tokens
        (PowerOfTwoManager, 4, 1),  # 8 tokens: a power of two itself gets the next one
        (PowerOfTwoManager, 9, 1),  # 16 tokens
        (PowerOfTwoManager, 33, 3),  # 64 tokens, of which the pool has 48
        (OracleManager, 5, 0),
    ],
)
def test_what_is_reserved_beyond_the_prompt(
    build: Callable[..., Manager], length: int, reserved: int
) -> None:
    manager = build(num_blocks=12, block_size=4)
    manager.admit("r", prompt(length))
    assert manager.reserved() == reserved
    assert len(manager.refcounts()) == -(-length // 4)


def test_max_length_serves_few_requests_however_short() -> None:
    manager = MaxLengthManager(num_blocks=8, block_size=4)
    manager.admit("a", prompt(1))
    manager.admit("b", prompt(1))
    with pytest.raises(OutOfBlocks, match=r"^OOM: no run of free blocks for a request of 1 token"):
        manager.admit("c", prompt(1))
    assert manager.reserved() == 6


def test_max_length_is_a_limit_wherever_the_last_block_ends() -> None:
    manager = MaxLengthManager(num_blocks=8, block_size=4, max_tokens=6)
    with pytest.raises(OutOfBlocks):
        manager.admit("r", prompt(7))
    manager.admit("r", prompt(5))
    manager.append("r", [1])
    with pytest.raises(OutOfBlocks, match="7 tokens in one request, at most 6 fit"):
        manager.append("r", [1])
    assert manager.block_table("r") == [0, 1]


def test_power_of_two_refuses_beyond_its_run() -> None:
    manager = PowerOfTwoManager(num_blocks=8, block_size=4)
    manager.admit("r", prompt(6))
    manager.append("r", [1, 2])
    with pytest.raises(OutOfBlocks, match="3 blocks needed, 2 were reserved at admission"):
        manager.append("r", [1])
    assert manager.block_table("r") == [0, 1]


def test_the_oracle_grows_only_while_the_blocks_behind_are_free() -> None:
    manager = OracleManager(num_blocks=4, block_size=4)
    manager.admit("a", prompt(4))
    manager.append("a", range(4))
    assert manager.block_table("a") == [0, 1]
    manager.admit("b", prompt(4))
    with pytest.raises(OutOfBlocks, match="the 1 blocks behind the run are not all free"):
        manager.append("a", [1])
    with pytest.raises(OutOfBlocks, match="behind the run"):
        manager.append("b", range(8))
    assert (manager.block_table("a"), manager.block_table("b")) == ([0, 1], [2])
    manager.release("b")
    manager.append("a", [1])
    assert manager.block_table("a") == [0, 1, 2]


# ------------------------------------------------------------------------------- place of a run


def test_first_fit_takes_the_first_gap_that_is_long_enough() -> None:
    manager = OracleManager(num_blocks=8, block_size=1)
    for name, length in {"a": 1, "b": 1, "c": 2, "d": 1}.items():
        manager.admit(name, prompt(length))
    manager.release("a")
    manager.release("c")
    manager.admit("two", prompt(2))
    manager.admit("one", prompt(1))
    assert manager.block_table("two") == [2, 3]
    assert manager.block_table("one") == [0]


def test_free_blocks_in_pieces_fit_nobody() -> None:
    manager = OracleManager(num_blocks=3, block_size=1)
    for name in "abc":
        manager.admit(name, prompt(1))
    manager.release("a")
    manager.release("c")
    assert not manager.can_admit(prompt(2))
    with pytest.raises(OutOfBlocks):
        manager.admit("d", prompt(2))
    manager.release("b")
    assert manager.can_admit(prompt(3))


@pytest.mark.parametrize("build", ALL)
def test_release_frees_the_whole_run(build: Callable[..., Manager]) -> None:
    manager = build(num_blocks=4, block_size=4)
    for _ in range(3):
        manager.admit("r", prompt(16))
        manager.release("r", Outcome.ABORTED)
    assert manager.reserved() == 0
    assert manager.refcounts() == {}


# -------------------------------------------------------------------------------------- misuse

MISUSES: dict[str, Callable[[Manager], Any]] = {
    "duplicate": lambda m: m.admit("r", CacheKey([1])),
    "empty": lambda m: m.admit("s", CacheKey([])),
    "negative": lambda m: m.admit("s", CacheKey([-1])),
    "key": lambda m: m.can_admit([1]),  # type: ignore[arg-type]
    "append nothing": lambda m: m.append("r", []),
    "outcome": lambda m: m.release("r", "lost"),  # type: ignore[arg-type]
    "pool": lambda m: type(m)(num_blocks=0, block_size=1),
    "block": lambda m: type(m)(num_blocks=1, block_size=0),
    "limit": lambda m: MaxLengthManager(num_blocks=1, block_size=1, max_tokens=0),
}


@pytest.mark.parametrize("build", ALL)
@pytest.mark.parametrize("name", MISUSES)
def test_misuse_is_named_and_changes_nothing(build: Callable[..., Manager], name: str) -> None:
    manager = build(num_blocks=8, block_size=4)
    manager.admit("r", prompt(6))
    before = manager.refcounts(), manager.reserved()
    with pytest.raises(ValueError, match=r"expected|is not a valid"):
        MISUSES[name](manager)
    assert (manager.refcounts(), manager.reserved()) == before


@pytest.mark.parametrize("build", ALL)
def test_an_unknown_request_is_named(build: Callable[..., Manager]) -> None:
    manager = build(num_blocks=8, block_size=4)
    for call in (manager.block_table, manager.release, lambda r: manager.append(r, [1])):
        with pytest.raises(KeyError, match="'s' is not live; expected the id of a live one"):
            call("s")
