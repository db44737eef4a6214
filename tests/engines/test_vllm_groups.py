"""The vLLM adapters with windows and groups, on examples that can be checked by hand."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from convicting import convict, registered

from kvassay.harness import registry
from kvassay.harness.contract import CacheKey, Counters, GroupSpec, OutOfBlocks
from kvassay.impls.engines import vllm as adapter
from kvassay.impls.faulty.vllm_groups import FAULTS

GROUPS = (GroupSpec("full"), GroupSpec("window", window=6))


@pytest.fixture
def build() -> Any:
    pytest.importorskip("vllm", reason=f"needs vLLM: {adapter.INSTALL}")

    def new(name: str = "vllm-hybrid", num_blocks: int = 16) -> Any:
        (registration,) = registry.find(name)
        return registration.build(num_blocks=num_blocks, block_size=4, groups=GROUPS)

    return new


def key(num_tokens: int) -> CacheKey:
    return CacheKey(range(num_tokens))


def test_drops_what_the_window_has_passed_when_more_is_asked_for(build: Any) -> None:
    manager = build()
    manager.admit("a", key(11))
    assert manager.block_table("a", "full") == [1, 2, 3]
    assert manager.block_table("a", "window") == [4, 5, 6]
    # The query at position 11 sees positions 6 to 11: blocks 1 and 2 of the table.
    manager.append("a", [11])
    assert manager.block_table("a", "window") == [0, 5, 6]
    assert manager.counters() == Counters(free=10, cached=1, used=5)


def test_a_hit_is_null_where_no_query_sees_it(build: Any) -> None:
    manager = build()
    manager.admit("a", key(16))
    assert manager.admit("b", key(16)) == 12
    assert manager.block_table("b", "full")[:3] == manager.block_table("a", "full")[:3]
    assert manager.block_table("b", "window")[:3] == [0, *manager.block_table("a", "window")[1:3]]


def test_drops_it_also_where_more_is_refused(build: Any) -> None:
    manager = build(num_blocks=6)
    manager.admit("a", key(11))
    with pytest.raises(OutOfBlocks):
        manager.append("a", range(11, 40))
    assert manager.block_table("a", "window") == [0, 5, 6]


def test_a_window_alone_is_one_group(build: Any) -> None:
    manager = build("vllm-window")
    assert manager.groups == GROUPS[1:]
    manager.admit("a", key(11))
    manager.append("a", [11])
    assert manager.block_table("a", "window") == [0, 2, 3]


def trials() -> Iterator[Any]:
    """Every fault, without the manager's own inspection, which is harder; with it if `long`."""
    for name, blind in product(FAULTS, (False, True)):
        marks = [] if blind else [pytest.mark.long]
        yield pytest.param(name, blind, marks=marks, id=f"{name}-{'blind' if blind else 'seen'}")


@pytest.mark.parametrize(("name", "blind"), [*trials()])
def test_a_planted_fault_is_convicted(build: Any, name: str, blind: bool) -> None:
    build()
    faulty = registered(
        "kvassay.impls.faulty.vllm_groups", f"vllm-hybrid-fault-{name}", blind=blind
    )
    stock = registered("kvassay.impls.engines.vllm_groups", "vllm-hybrid", blind=blind)
    convict(faulty, FAULTS[name].accepted, stock)


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_leave_the_stock_adapter_alone(build: Any, name: str) -> None:
    build(f"vllm-hybrid-fault-{name}")
    manager = build()
    manager.admit("a", key(11))
    manager.append("a", [11])
    manager.release("a")
    assert manager.counters().used == 0
    assert manager.admit("b", key(13)) == 12
    assert manager.block_table("b", "window")[0] == 0 != manager.block_table("b", "full")[0]
