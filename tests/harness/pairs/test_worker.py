"""The worker follows the contract: the same operations take effect as under the checker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest

from kvassay.harness.assay import corpus_folder
from kvassay.harness.checker import Effect
from kvassay.harness.contract import CacheKey, Capability
from kvassay.harness.pairs.session import Pair
from kvassay.harness.registry import Registration
from kvassay.harness.scenario import (
    Accept,
    Admit,
    Append,
    Begin,
    Commit,
    Fork,
    Operation,
    Peek,
    Query,
    Quiesce,
    Release,
    Reserve,
    Reset,
    Scenario,
    Truncate,
    load,
)
from kvassay.harness.session import build, explore
from kvassay.impls.faulty import controls
from kvassay.impls.faulty.hashed import DECLARATION, HashedCache

CORPUS = [load(path) for path in sorted(corpus_folder().glob("*.json"))]
MANAGERS = ("paged", "radix", "contiguous", "hashed", "control-drafts-at-release", "control-remap")


def under_the_checker(registration: Registration, scenario: Scenario) -> list[Effect]:
    checker = build(registration, *scenario.shape)
    return [checker.step(operation) for operation in scenario.operations]


def under_the_worker(pair: Pair, scenario: Scenario) -> list[Effect]:
    worker = pair.worker(*scenario.shape)
    return [worker.step(operation) for operation in scenario.operations]


def shuffled(scenario: Scenario, seed: int) -> Scenario:
    """The same operations in another order: many of them are no longer legal."""
    operations = list(scenario.operations)
    Random(seed).shuffle(operations)
    return Scenario(*scenario.shape, tuple(operations))


@pytest.mark.parametrize("name", MANAGERS)
def test_the_same_operations_take_effect_as_under_the_checker(
    make: Callable[..., Pair], name: str
) -> None:
    assert controls  # imported for what it registers
    pair = make(name)
    explored = [
        explore(pair.manager, Random(seed), 4, 2, length=40, focus=focus).scenario
        for seed, focus in enumerate(("cow", "prefix", "allocator", "prefix"))
    ]
    scenarios = [*CORPUS, *explored]
    skipped = 0
    for seed, scenario in enumerate([*scenarios, *(shuffled(s, 1) for s in scenarios)]):
        effects = under_the_worker(pair, scenario)
        assert effects == under_the_checker(pair.manager, scenario), f"{seed}: {scenario}"
        skipped += effects.count(Effect.SKIPPED)
    assert skipped > 50


@pytest.mark.parametrize("name", MANAGERS)
def test_tables_and_lengths_are_those_of_the_checker(make: Callable[..., Pair], name: str) -> None:
    pair = make(name)
    for seed in range(3):
        scenario = explore(pair.manager, Random(seed), 5, 2, length=40).scenario
        checker, worker = build(pair.manager, *scenario.shape), pair.worker(*scenario.shape)
        for operation in scenario.operations:
            if isinstance(operation, Quiesce):
                break
            checker.step(operation)
            worker.step(operation)
            for one, other in zip(
                checker.model.live.items(), worker.model.live.items(), strict=True
            ):
                assert one[0] == other[0]
                for field in ("table", "tags", "length", "committed", "drafts", "hit"):
                    assert getattr(one[1], field) == getattr(other[1], field), field


def test_kv_is_written_before_it_is_committed(make: Callable[..., Pair]) -> None:
    calls: list[tuple[int, int | None]] = []

    class Watched(HashedCache):
        def commit(self, request: str, num_tokens: int) -> None:
            live = worker.model.live[request]
            found = worker.pool.first_wrong(live.table, live.tags, num_tokens, worker.history)
            calls.append((num_tokens, found))
            super().commit(request, num_tokens)

    worker = make(Watched, managing=DECLARATION).worker(4, 2)
    for operation in (Admit("a", CacheKey((1, 2, 3))), Commit("a", 2), Commit("a")):
        worker.step(operation)
    assert calls == [(2, None), (3, None)]


ADMITTED: tuple[Operation, ...] = (Admit("a", CacheKey((1, 2, 3))), Commit("a"))
ILLEGAL: tuple[tuple[Sequence[Operation], Operation], ...] = (
    (ADMITTED, Admit("a", CacheKey((4,)))),
    (ADMITTED, Begin("b", CacheKey((4,)))),
    (ADMITTED, Reserve("a", 1)),
    (ADMITTED, Commit("a")),
    (ADMITTED, Commit("a", 0)),
    (ADMITTED, Append("a", (1,), drafts=1)),
    (ADMITTED, Append("b", (1,))),
    (ADMITTED, Accept("a", 0)),
    ((Admit("a", CacheKey((1, 2, 3))),), Fork("a", ("b",))),
    (ADMITTED, Fork("a", ("a",))),
    (ADMITTED, Fork("a", ("b", "b"))),
    (ADMITTED, Fork("a", ())),
    (ADMITTED, Truncate("a", 0)),
    (ADMITTED, Truncate("a", 4)),
    (ADMITTED, Release("b")),
    (ADMITTED, Reset()),
    (ADMITTED, Query(CacheKey((1,)))),
    (ADMITTED, Peek(CacheKey((1,)))),
)


@pytest.mark.parametrize(("before", "operation"), ILLEGAL, ids=[repr(each[1]) for each in ILLEGAL])
def test_what_is_not_legal_is_skipped(
    make: Callable[..., Pair], before: Sequence[Operation], operation: Operation
) -> None:
    worker = make("hashed").worker(4, 2)
    for each in before:
        assert worker.step(each) is Effect.DONE
    assert worker.step(operation) is Effect.SKIPPED


class BothWays(controls.DraftsAtRelease):
    """Drafts may also be cut away by a truncation."""

    def truncate(self, request: str, num_tokens: int) -> None:
        cut = len(self._live[request].tokens) - num_tokens
        super().truncate(request, num_tokens)
        self._drafts[request] = max(0, self._drafts.get(request, 0) - cut)


def test_drafts_that_are_cut_away_are_pending_no_longer(make: Callable[..., Pair]) -> None:
    offered = controls.DRAFTING.capabilities | {Capability.TRUNCATE}
    pair = make(BothWays, managing=replace(controls.DRAFTING, capabilities=offered))
    drafted = (*ADMITTED[:1], Append("a", (4, 5), drafts=2))
    ends: tuple[tuple[Operation, ...], ...] = (
        (Append("a", (6,)), Accept("a", 2)),
        (Truncate("a", 4), Accept("a", 2), Accept("a", 1), Append("a", (6,))),
        (Truncate("a", 2), Accept("a", 0), Append("a", (6,))),
    )
    for end in ends:
        scenario = Scenario(6, 2, (*drafted, *end))
        effects = under_the_worker(pair, scenario)
        assert effects == under_the_checker(pair.manager, scenario)
        assert Effect.SKIPPED in effects
        assert effects[-1] is Effect.DONE
