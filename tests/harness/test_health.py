"""Health: a campaign that met too little is named for what it did not meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from kvassay.harness.campaign import Budget, Campaign, Outcome
from kvassay.harness.checker import Checker, Effect
from kvassay.harness.contract import CacheKey, CacheManager, Declaration
from kvassay.harness.evidence import Seen
from kvassay.harness.health import FEW, FLOORS, Floor, Health
from kvassay.harness.registry import Registration
from kvassay.harness.scenario import Admit, Append, Commit, Fork, Operation, Release
from kvassay.impls.faulty.hashed import DECLARATION, HashedCache

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


class CopiesAtFork(HashedCache):
    """Every child has its own copy of a partly filled block from the start."""

    def fork(self, parent: str, children: Sequence[str]) -> None:
        copying = self._open_block(self._live[parent]) is not None
        self._require(copying * len(children), self._room())
        super().fork(parent, children)
        for child in children if copying else ():
            self._copy_on_write(self._live[child])


FORKED = [Admit("a", CacheKey((1, 2, 3))), Commit("a"), Fork("a", ("b",))]


@pytest.mark.parametrize("kind", [HashedCache, CopiesAtFork])
@pytest.mark.parametrize(
    ("more", "times"),
    [
        ([Append("b", (4,))], 1),
        ([Append("b", (4,)), Append("b", (5,))], 1),
        ([Release("a"), Append("b", (4,))], 0),
    ],
)
def test_a_write_behind_a_fork_counts_whenever_the_copy_is_made(
    kind: type[HashedCache], more: list[Operation], times: int
) -> None:
    checker = Checker(kind(8, 2), DECLARATION)
    for operation in [*FORKED, *more]:
        assert checker.step(operation) is Effect.DONE
    assert checker.met()[Seen.FORK_THEN_WRITE] == times


def test_one_that_copies_at_the_fork_is_not_below_the_floors() -> None:
    entry = Registration("copies-at-fork", CacheManager, CopiesAtFork, DECLARATION)
    outcome = Campaign(entry, "cow", Budget(examples=100)).run()
    assert not outcome.findings
    assert Health.of(outcome, DECLARATION).below_floors() == []
