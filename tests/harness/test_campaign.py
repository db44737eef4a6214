"""Campaigns: repeatable, what is known first, the smallest counterexample of each invariant."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from kvassay.harness.campaign import ERROR, Budget, Campaign, Geometry, Outcome, load_known
from kvassay.harness.contract import CacheKey, CacheManager, ContractError
from kvassay.harness.registry import Registration
from kvassay.harness.scenario import Admit, Append, BadScenario, Commit, Scenario, to_json
from kvassay.harness.session import replay
from kvassay.harness.violation import Crash
from kvassay.impls.faulty.hashed import DECLARATION, HashedCache
from kvassay.impls.faulty.managers import CowAboveTwo, FullHit

NOTHING = pytest.fail.Exception
FEW = Budget(examples=60)
SMALL = Geometry(num_blocks=4, block_size=2)


class RefusesThree(HashedCache):
    """A factory that does not offer every shape."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if block_size == 3:
            raise ValueError("expected a power of two")
        super().__init__(num_blocks, block_size)


class Breaks(HashedCache):
    """A factory that fails in a way the contract does not know."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        raise KeyError("no device")


class Raises(HashedCache):
    def append(self, request: str, tokens: Any) -> None:
        raise ZeroDivisionError


class Lame(HashedCache):
    fork = None  # type: ignore[assignment]


def mine(factory: type[HashedCache]) -> Registration:
    return Registration("mine", CacheManager, factory, DECLARATION)


def run(factory: type[HashedCache], focus: str = "cow", **options: Any) -> Outcome:
    return Campaign(mine(factory), focus, **{"budget": FEW, "geometry": SMALL, **options}).run()


def test_finds_the_fault_and_keeps_a_counterexample_from_which_nothing_can_go() -> None:
    finding = run(CowAboveTwo, budget=Budget(examples=400)).findings["C1"]
    assert finding.how.startswith("found after")
    smallest = finding.scenario
    assert smallest.violates == "C1 in mine"
    assert str(replay(mine(CowAboveTwo), smallest).verdict) == smallest.note
    assert replay(mine(HashedCache), smallest).verdict is None
    for index in range(len(smallest.operations)):
        rest = smallest.operations[:index] + smallest.operations[index + 1 :]
        verdict = replay(mine(CowAboveTwo), Scenario(4, 2, rest)).verdict
        assert verdict is None or not str(verdict).startswith("C1")


def test_acquits_a_correct_manager_and_says_what_it_ran() -> None:
    outcome = run(HashedCache)
    assert outcome.findings == {}
    assert outcome.examples == 60
    assert outcome.num_operations > 500
    assert sum(outcome.met.values()) > 500


def test_the_same_budget_runs_the_same_examples() -> None:
    one, other = run(HashedCache), run(HashedCache)
    assert (one.met, one.effects) == (other.met, other.effects)
    assert run(HashedCache, focus="prefix").met != one.met
    free = Budget(examples=60, derandomized=False)
    assert run(HashedCache, budget=free).met != one.met


def test_what_is_known_is_replayed_first() -> None:
    operations = (Admit("a", CacheKey((1, 2))), Commit("a"), Admit("b", CacheKey((1, 2))))
    known = [Scenario(4, 2, operations)]
    nothing = Budget(examples=1, seconds=0.0)
    finding = run(FullHit, known=known, budget=nothing).findings["P3"]
    assert finding.how == "replayed from a known scenario"
    assert run(HashedCache, known=known, budget=nothing).findings == {}
    assert run(FullHit, budget=nothing).findings == {}


def test_a_crash_is_a_finding_of_its_own() -> None:
    finding = run(Raises).findings[ERROR]
    assert isinstance(finding.verdict, Crash)
    assert isinstance(finding.scenario.operations[-1], Append)
    assert finding.scenario.num_counted <= 3


def test_shapes_that_the_factory_refuses_are_counted_and_the_others_run() -> None:
    outcome = run(RefusesThree, geometry=Geometry(num_blocks=4), budget=Budget(examples=100))
    assert set(outcome.refused_geometries) == {(4, 3)}
    assert outcome.num_operations > 500
    assert outcome.findings == {}


def test_a_geometry_is_drawn_within_what_was_asked() -> None:
    drawn = {Geometry(num_blocks=7).draw(Random(seed)) for seed in range(99)}
    assert {blocks for blocks, _ in drawn} == {7}
    assert len({size for _, size in drawn}) > 3
    drawn = {Geometry(block_size=9).draw(Random(seed)) for seed in range(99)}
    assert {size for _, size in drawn} == {9}
    assert len({blocks for blocks, _ in drawn}) > 3


def test_known_scenarios_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b", "a"):
        scenario = Scenario(1, 1, (Admit("r", CacheKey((1,))),), name=name)
        (tmp_path / f"{name}.json").write_text(to_json(scenario))
    assert [each.name for each in load_known([tmp_path])] == ["a", "b"]
    assert [each.name for each in load_known([tmp_path], "b*.json")] == ["b"]
    (tmp_path / "c.json").write_text("{}")
    with pytest.raises(BadScenario, match=r"c\.json"):
        load_known([tmp_path])


def test_a_missing_method_is_not_a_refused_shape() -> None:
    with pytest.raises(ContractError, match=r"needs the method fork\(\)"):
        run(Lame)


def test_a_known_scenario_of_a_refused_shape_is_passed_over() -> None:
    outcome = run(
        RefusesThree, known=[Scenario(4, 3, (Admit("a", CacheKey((1,))),), violates="A1")]
    )
    assert outcome.refused_geometries[4, 3] == 1


def test_a_factory_that_breaks_is_a_finding() -> None:
    assert isinstance(run(Breaks).findings[ERROR].verdict, Crash)
