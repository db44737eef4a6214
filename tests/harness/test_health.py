"""Health: a campaign that met too little is named for what it did not meet."""

from __future__ import annotations

from collections import Counter

import pytest

from kvassay.harness.campaign import Outcome
from kvassay.harness.checker import Effect
from kvassay.harness.contract import Declaration
from kvassay.harness.health import FEW, FLOORS, Floor, Health

EVERYTHING = Declaration(["prefix_cache", "fork", "truncate"])


def outcome(operations: int = 10_000, skipped: int = 0, short: Floor | None = None) -> Outcome:
    """Every floor reached exactly, but for `short`."""
    met = Counter({floor.seen: round(floor.least * operations) for floor in FLOORS})
    if short is not None:
        met[short.seen] -= 1
    effects = Counter({Effect.DONE: operations - skipped, Effect.SKIPPED: skipped})
    return Outcome(met=met, effects=effects)


def below(outcome: Outcome, declaration: Declaration = EVERYTHING) -> list[str]:
    return Health.of(outcome, declaration).below_floors()


@pytest.mark.parametrize("floor", FLOORS, ids=lambda floor: floor.name)
def test_one_occurrence_too_few_is_named(floor: Floor) -> None:
    assert below(outcome()) == []
    (named,) = below(outcome(short=floor))
    assert named.startswith(floor.name)


@pytest.mark.parametrize("floor", FLOORS, ids=lambda floor: floor.name)
def test_a_floor_holds_only_where_its_capability_is_declared(floor: Floor) -> None:
    bare = below(outcome(short=floor), Declaration())
    assert bool(bare) is (floor.needs is None)


def test_a_pool_that_is_spent_once_cannot_evict() -> None:
    evictions = next(floor for floor in FLOORS if floor.name == "evictions")
    spent = Declaration(["prefix_cache"], reclaim="reset")
    assert below(outcome(short=evictions), spent) == []
    assert below(outcome(short=evictions), Declaration(["prefix_cache"])) != []


def test_skipped_operations_have_their_own_floor() -> None:
    assert below(outcome(skipped=1_000)) == []
    assert below(outcome(skipped=1_200)) == ["only 88% of operations took effect"]


def test_few_operations_say_nothing() -> None:
    assert below(Outcome(effects=Counter({Effect.DONE: FEW - 1}))) == []
    assert below(Outcome(effects=Counter({Effect.DONE: FEW}))) != []
    assert below(Outcome()) == []
