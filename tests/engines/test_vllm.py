"""The vLLM adapter on small examples whose numbers can be checked by hand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from convicting import convict, registered

from kvassay.harness import registry
from kvassay.harness.contract import CacheKey, Counters, EventKind, OutOfBlocks
from kvassay.harness.control.contract_stages import contender
from kvassay.harness.control.steps import Step, measure
from kvassay.impls.engines import vllm as adapter
from kvassay.impls.faulty.vllm import FAULTS


def test_importing_the_adapter_does_not_import_vllm() -> None:
    code = "import kvassay.impls.engines.vllm, sys; sys.exit('vllm' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def build() -> Any:
    pytest.importorskip("vllm", reason=f"needs vLLM: {adapter.INSTALL}")

    def new(name: str = "vllm", num_blocks: int = 8) -> Any:
        (registration,) = registry.find(name)
        return registration.build(num_blocks=num_blocks, block_size=4)

    return new


def key(num_tokens: int, **more: Any) -> CacheKey:
    return CacheKey(range(num_tokens), **more)


def test_leaves_one_token_to_compute(build: Any) -> None:
    manager = build()
    assert manager.admit("a", key(16)) == 0
    assert manager.admit("b", key(16)) == 12
    assert manager.block_table("a") == [1, 2, 3, 4]
    assert manager.block_table("b") == [1, 2, 3, 5]
    assert manager.refcounts() == {1: 2, 2: 2, 3: 2, 4: 1, 5: 1}


def test_publishes_a_block_with_the_append_that_fills_it(build: Any) -> None:
    manager = build()
    manager.admit("a", key(6))
    manager.append("a", [6])
    assert manager.peek(key(9)) == 4
    manager.append("a", [7])
    assert manager.peek(key(9)) == 8


def test_publishes_at_commit_when_deferred(build: Any) -> None:
    manager = build("vllm-deferred")
    manager.admit("a", key(6))
    assert manager.peek(key(6)) == 0
    manager.commit("a", 6)
    assert manager.peek(key(6)) == 4
    manager.append("a", [6, 7])
    assert manager.peek(key(9)) == 4
    manager.commit("a", 8)
    assert manager.peek(key(9)) == 8


def test_accepts_only_a_growing_commit_within_the_request(build: Any) -> None:
    manager = build("vllm-deferred")
    manager.admit("a", key(6))
    with pytest.raises(ValueError, match="0 < num_tokens <= 6, got 7"):
        manager.commit("a", 7)
    manager.commit("a", 6)
    with pytest.raises(ValueError, match="6 < num_tokens <= 6, got 6"):
        manager.commit("a", 6)


@pytest.mark.parametrize("name", ["vllm", "vllm-deferred"])
def test_refuses_without_a_trace(build: Any, name: str) -> None:
    manager = build(name, num_blocks=4)
    manager.admit("a", key(15))
    before = manager.block_table("a"), manager.counters(), manager.peek(key(16))
    with pytest.raises(OutOfBlocks):
        manager.append("a", [15, 16])
    with pytest.raises(OutOfBlocks):
        manager.admit("b", key(1))
    assert (manager.block_table("a"), manager.counters(), manager.peek(key(16))) == before
    manager.append("a", [15])
    assert len(manager.block_table("a")) == 4


def test_evicts_by_release_and_tail_first(build: Any) -> None:
    manager = build(num_blocks=4)
    manager.admit("a", key(8))
    manager.admit("b", CacheKey((7,) * 8))
    manager.release("b")
    manager.release("a")
    assert manager.peek(key(9)) == 8
    manager.admit("c", CacheKey((1,) * 4))
    assert manager.peek(CacheKey((7,) * 9)) == 4
    assert manager.peek(key(9)) == 8


def test_counts_blocks_by_state(build: Any) -> None:
    manager = build()
    manager.admit("a", key(6))
    assert manager.counters() == Counters(free=6, cached=0, used=2)
    manager.release("a")
    assert manager.counters() == Counters(free=7, cached=1, used=0)


def test_resets_only_when_nobody_is_there(build: Any) -> None:
    manager = build()
    manager.admit("a", key(8))
    with pytest.raises(ValueError, match="2 in use by 1 live"):
        manager.reset()
    manager.release("a")
    manager.reset()
    assert manager.peek(key(8)) == 0
    assert manager.counters() == Counters(free=8, cached=0, used=0)


def test_keeps_salts_and_adapters_apart(build: Any) -> None:
    manager = build(num_blocks=16)
    keys = [key(5), key(5, salt="x"), key(5, adapter="x"), key(5, salt="x", adapter="x")]
    for number, each in enumerate(keys):
        assert manager.admit(str(number), each) == 0
    assert [manager.peek(each) for each in keys] == [4, 4, 4, 4]


def test_names_salt_and_adapter_in_every_event(build: Any) -> None:
    manager = build()
    manager.admit("a", key(8, salt="s"))
    manager.append("a", [8, 9, 10, 11])
    first, second = manager.take_events()
    assert (first.kind, first.parent, first.tokens) == (EventKind.STORED, None, tuple(range(8)))
    assert (second.parent, second.tokens) == (first.entries[1], (8, 9, 10, 11))
    assert (first.salt, second.salt) == ("s", "s")
    manager.admit("b", key(4, adapter="s"))
    (third,) = manager.take_events()
    assert (third.salt, third.adapter) == (None, "s")
    assert third.entries[0] != first.entries[0]


def test_reports_removals_and_the_reset(build: Any) -> None:
    manager = build(num_blocks=2)
    manager.admit("a", key(8))
    (stored,) = manager.take_events()
    manager.release("a")
    manager.admit("b", CacheKey((9,)))
    (removed,) = manager.take_events()
    assert (removed.kind, removed.entries) == (EventKind.REMOVED, stored.entries[1:])
    manager.release("b")
    manager.reset()
    assert [event.kind for event in manager.take_events()] == [EventKind.CLEARED]


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_leave_the_stock_adapter_alone(build: Any, name: str) -> None:
    build(f"vllm-fault-{name}")
    manager = build()
    for request in ("a", "b"):
        manager.admit(request, key(16))
    for request in ("a", "b"):
        manager.release(request)
    assert manager.admit("c", CacheKey((1,) * 32)) == 0
    assert sorted(manager.block_table("c")) == list(range(1, 9))
    assert manager.peek(key(16)) == 0


def trials() -> Iterator[Any]:
    """Every fault, without the manager's own inspection, which is harder; with it if `long`."""
    for name, blind in product(FAULTS, (False, True)):
        marks = [] if blind else [pytest.mark.long]
        yield pytest.param(name, blind, marks=marks, id=f"{name}-{'blind' if blind else 'seen'}")


def test_there_are_enough_faults() -> None:
    assert len(FAULTS) >= 8


@pytest.mark.parametrize(("name", "blind"), [*trials()])
def test_a_planted_fault_is_convicted(build: Any, name: str, blind: bool) -> None:
    module = "kvassay.impls.faulty.vllm"
    faulty = registered(module, f"vllm-fault-{name}", blind=blind)
    stock = registered("kvassay.impls.engines.vllm", "vllm", blind=blind)
    convict(faulty, FAULTS[name].accepted, stock)


def test_its_own_stages_hit_what_is_shared(build: Any) -> None:
    build()
    (registration,) = registry.find("vllm")
    timed = measure(Step(3, prompt=40, shared=32), [contender(registration)], rounds=1)
    assert all(seconds > 0 for seconds in timed["vllm"].total(["look_up", "reserve", "append"]))


def test_without_events_it_does_the_same(build: Any) -> None:
    loud, quiet = build("vllm"), build("vllm-eventless")
    for manager in (loud, quiet):
        manager.admit("a", key(16))
        manager.release("a")
    assert [manager.admit("b", key(16)) for manager in (loud, quiet)] == [12, 12]
    assert loud.take_events()
    assert not quiet.engine.take_events()
