"""Runs: a hang or an exception is a crash that says where, and never the end of the harness."""

from __future__ import annotations

import time
from random import Random
from typing import Any

import pytest

from kvassay.harness import session
from kvassay.harness.checker import Effect
from kvassay.harness.contract import CacheKey, CacheManager, Capability, Declaration
from kvassay.harness.registry import Registration, find
from kvassay.harness.scenario import Admit, Append, Operation, Quiesce, Release, Scenario
from kvassay.harness.session import build, drive, explore, replay, without_inspection
from kvassay.harness.violation import Crash, Violation
from kvassay.impls.faulty.hashed import DECLARATION, HashedCache
from kvassay.impls.faulty.managers import CowAboveTwo

SCENARIO = Scenario(3, 2, (Admit("a", CacheKey((1,))), Append("a", (2,)), Release("a")))


def registration(factory: Any, declaration: Declaration = DECLARATION) -> Registration:
    return Registration("mine", CacheManager, factory, declaration)


class Hangs(HashedCache):
    def append(self, request: str, tokens: Any) -> None:
        while True:
            pass


def test_a_hang_is_a_crash_within_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "TIME_LIMIT", 0.05)
    assert replay(registration(HashedCache), SCENARIO).verdict is None
    verdict = replay(registration(Hangs), SCENARIO).verdict
    assert isinstance(verdict, Crash)
    assert "it hangs" in str(verdict)
    assert (verdict.index, verdict.operation) == (1, SCENARIO.operations[1])


class SlowToBuild(HashedCache):
    """Takes longer than a run may, as an engine that is imported first."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        time.sleep(0.15)


def test_building_may_take_longer_than_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "TIME_LIMIT", 0.05)
    assert replay(registration(SlowToBuild), SCENARIO).verdict is None
    monkeypatch.setattr(session, "BUILD_LIMIT", 0.05)
    verdict = replay(registration(SlowToBuild), SCENARIO).verdict
    assert isinstance(verdict, Crash)
    assert verdict.hangs
    assert "building it: no answer within 0.05 s" in str(verdict)


def test_a_hang_while_exploring_is_recorded_with_its_operation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "TIME_LIMIT", 0.05)
    for seed in range(9):
        run = explore(registration(Hangs), Random(seed), 4, 2, length=30)
        if run.verdict is not None:
            break
    assert isinstance(run.verdict, Crash)
    assert isinstance(run.scenario.operations[-1], Append)
    assert isinstance(replay(registration(Hangs), run.scenario).verdict, Crash)


def test_an_exception_is_a_crash_with_its_name_and_place() -> None:
    class Raises(HashedCache):
        def release(self, request: str, outcome: Any = None) -> None:
            raise ZeroDivisionError("of blocks")

    run = replay(registration(Raises), SCENARIO)
    assert isinstance(run.verdict, Crash)
    assert run.verdict.index == 2
    assert "ZeroDivisionError: of blocks" in str(run.verdict)
    assert run.effects == {Effect.DONE: 2}


def test_a_factory_that_refuses_a_shape_says_so() -> None:
    class OnlyPowers(HashedCache):
        def __init__(self, num_blocks: int, block_size: int) -> None:
            if block_size == 3:
                raise ValueError("block_size: expected a power of two, got 3")
            super().__init__(num_blocks, block_size)

    assert build(registration(OnlyPowers), 4, 2).model.block_size == 2
    with pytest.raises(ValueError, match="power of two, got 3"):
        build(registration(OnlyPowers), 4, 3)


def test_a_factory_that_breaks_is_a_crash() -> None:
    class Breaks(HashedCache):
        def __init__(self, num_blocks: int, block_size: int) -> None:
            raise KeyError("no device")

    with pytest.raises(Crash, match="building it: KeyError: 'no device'"):
        build(registration(Breaks), 4, 2)


def test_an_instance_may_insist_on_its_own_shape() -> None:
    class Fixed(HashedCache):
        def __init__(self, num_blocks: int, block_size: int) -> None:
            super().__init__(num_blocks, 5)

    run = explore(registration(Fixed), Random(1), 4, 2, length=10)
    assert run.verdict is None
    assert (run.scenario.num_blocks, run.scenario.block_size) == (4, 5)


def test_what_was_explored_is_recorded_without_what_was_skipped() -> None:
    (hashed,) = find("hashed")
    operations: list[Operation] = [SCENARIO.operations[0], Release("nobody"), Quiesce(), Quiesce()]
    run = drive(hashed, 3, 2, lambda checker: operations)
    assert run.verdict is None
    assert run.scenario.operations == (SCENARIO.operations[0], Quiesce())
    assert run.effects == {Effect.DONE: 2, Effect.SKIPPED: 1}


def test_a_run_ends_with_quiescence_and_its_record_replays_to_the_same() -> None:
    def told(run: session.Run) -> object:
        return run.effects, run.met, str(run.verdict)

    (radix,) = find("radix")
    for seed in range(5):
        run = explore(radix, Random(seed), 4, 2, length=20)
        assert run.scenario.operations[-1] == Quiesce()
        again = explore(radix, Random(seed), 4, 2, length=20)
        assert again.scenario == run.scenario
        back = replay(radix, run.scenario)
        assert back.verdict is None
        assert back.effects[Effect.DONE] == run.effects[Effect.DONE]
        assert told(again) == told(run)


def test_a_verdict_found_by_exploring_is_found_by_replaying() -> None:
    faulty = registration(CowAboveTwo)
    found = 0
    for seed in range(60):
        run = explore(faulty, Random(seed), 6, 2, length=40, focus="cow")
        back = replay(faulty, run.scenario)
        assert str(back.verdict) == str(run.verdict)
        found += isinstance(run.verdict, Violation)
    assert found


def test_blinding_takes_away_what_only_looks() -> None:
    blind = without_inspection(find("radix")[0].declaration)
    gone = {Capability.COUNTERS, Capability.REFCOUNTS, Capability.PEEK, Capability.EVENTS}
    assert not blind.capabilities & gone
    assert blind.has(Capability.COMMIT, Capability.QUERY)
    assert blind.order is find("radix")[0].declaration.order
