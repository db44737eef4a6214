"""Declarations say exactly what is wrong with them, and OutOfBlocks is known by its text."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kvassay.harness.contract import (
    CAPABILITY_METHODS,
    METHODS,
    CacheManager,
    Capability,
    ContractError,
    Declaration,
    Order,
    Outcome,
    OutOfBlocks,
    Publish,
    Stamp,
    is_out_of_blocks,
)


def test_names_may_be_given_as_text() -> None:
    declared = Declaration(
        capabilities=["commit", Capability.FORK],
        publish="release",
        publish_on={"finished"},
        order="lru",
        stamps=("hit",),
        reserved_ids=[0],
    )
    assert declared.capabilities == {Capability.COMMIT, Capability.FORK}
    assert declared.publish is Publish.RELEASE
    assert declared.publish_on == {Outcome.FINISHED}
    assert (declared.order, declared.stamps) == (Order.LRU, {Stamp.HIT})
    assert declared.reserved_ids == (0,)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("capabilities", ["comit"], "capabilities: unknown value 'comit'; expected one of"),
        ("capabilities", "commit", "capabilities: expected a collection of names, got 'commit'"),
        ("publish", "later", "publish: unknown value 'later'; expected one of commit, reservation"),
        ("publish_on", ["done"], "publish_on: unknown value 'done'"),
        ("order", "random", "order: unknown value 'random'; expected one of none, lru"),
        ("granularity", "slot", "granularity: unknown value 'slot'"),
        ("events", "bag", "events: unknown value 'bag'; expected one of multiset, set"),
        ("unit", 0, "unit: expected 'block_size' or an int >= 1, got 0"),
        ("unit", "token", "unit: expected 'block_size' or an int >= 1, got 'token'"),
        ("reserve", -1, "reserve: expected an int >= 0, got -1"),
        ("drop", 0.5, "drop: expected an int >= 0, got 0.5"),
        ("watermark", "1", "watermark: expected an int >= 0, got '1'"),
        ("max_tokens", 0, "max_tokens: expected None or an int >= 1, got 0"),
        ("steps", 0, "steps: expected an int >= 1, got 0"),
        ("order", "lfu", "order=lfu needs stamps"),
    ],
)
def test_an_illegal_value_is_named_with_what_was_expected(
    field: str, value: Any, says: str
) -> None:
    assert Declaration()
    with pytest.raises(ContractError, match=re.escape(says)):
        Declaration(**{field: value})


def test_an_unknown_field_is_an_error() -> None:
    with pytest.raises(TypeError, match="capabilites"):
        Declaration(capabilites=[])


def test_orders_that_need_no_access_need_no_stamps() -> None:
    assert Declaration(order=Order.FIFO).stamps == frozenset()


def test_the_hit_unit_follows_the_block_size_unless_it_is_a_number() -> None:
    assert Declaration().hit_unit(16) == 16
    assert Declaration(unit=1).hit_unit(16) == 1


def test_has_means_all_of_them() -> None:
    declared = Declaration(capabilities=["commit", "fork"])
    assert declared.has(Capability.COMMIT, Capability.FORK)
    assert not declared.has(Capability.COMMIT, Capability.RESET)


@pytest.mark.parametrize(
    ("error", "known"),
    [
        (OutOfBlocks(), True),
        (OutOfBlocks("3 needed"), True),
        (RuntimeError("OOM"), True),
        (RuntimeError("OOM: of another module"), True),
        (RuntimeError("CUDA: OOM"), False),
        (ValueError("OOM"), False),
        (MemoryError("OOM"), False),
    ],
)
def test_out_of_blocks_is_a_runtime_error_that_starts_with_oom(
    error: Exception, known: bool
) -> None:
    assert is_out_of_blocks(error) is known


def test_every_kind_says_which_capabilities_it_has() -> None:
    assert set(METHODS) == set(CAPABILITY_METHODS)
    offered = {capability for kind in CAPABILITY_METHODS.values() for capability in kind}
    assert offered == set(Capability)
    assert CAPABILITY_METHODS[CacheManager][Capability.CHUNKED] == ("begin", "reserve")
