"""The control plane's timing: whose samples these are, and that wrong answers are not timed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kvassay.harness.contract import Declaration, Match, PrefixIndex
from kvassay.harness.control.contract_stages import contender
from kvassay.harness.control.growth import depth_growth, pool_growth
from kvassay.harness.control.matching import match_times
from kvassay.harness.control.pairing import ratio, turns
from kvassay.harness.control.stages import STAGES, Contender, Prompt
from kvassay.harness.control.steps import Interrupted, Step, WrongHits, measure
from kvassay.harness.registry import Registration, Unavailable, find


def named(name: str) -> Contender:
    (registration,) = find(name)
    return contender(registration)


class Scripted:
    """Stages that note who was asked for what, and answer hits as told."""

    def __init__(self, name: str, hit: int, calls: list[tuple[str, str, int]]) -> None:
        self.name, self.hit, self.calls = name, hit, calls

    def prepare(self, prompts: Sequence[Prompt]) -> list[Any]:
        self.calls.append((self.name, "prepare", len(prompts)))
        return [tokens for _, tokens in prompts]

    def look_up(self, handles: Sequence[Any]) -> list[int]:
        self.calls.append((self.name, "look_up", len(handles)))
        return [self.hit for _ in handles]

    def reserve(self, handles: Sequence[Any]) -> None:
        self.calls.append((self.name, "reserve", len(handles)))

    def publish(self, handles: Sequence[Any]) -> None:
        self.calls.append((self.name, "publish", len(handles)))

    def append(self, handles: Sequence[Any], token: int) -> None:
        self.calls.append((self.name, "append", len(handles)))

    def release(self, handles: Sequence[Any]) -> None:
        self.calls.append((self.name, "release", len(handles)))


def scripted(name: str, hit: int, calls: list[tuple[str, str, int]]) -> Contender:
    return Contender(name, "0", lambda *sizes: Scripted(name, hit, calls))


def test_every_stage_of_every_contender_is_sampled_once_a_round() -> None:
    calls: list[tuple[str, str, int]] = []
    pair = [scripted("a", 32, calls), scripted("b", 32, calls)]
    timed = measure(Step(64, prompt=48, shared=32), pair, rounds=3)
    for name in "ab":
        assert {stage: len(timed[name].seconds[stage]) for stage in STAGES} == dict.fromkeys(
            STAGES, 3
        )
        assert all(value > 0 for value in timed[name].seconds["append"])
    began = [who for who, stage, count in calls if stage == "prepare" and count == 64]
    assert began == ["a", "b", "b", "a", "a", "b", "b", "a"]  # the first round is thrown away


def test_small_batches_are_repeated() -> None:
    calls: list[tuple[str, str, int]] = []
    measure(Step(1, prompt=48, shared=32), [scripted("a", 32, calls)], rounds=1)
    looked = [call for call in calls if call[1] == "look_up"]
    assert len(looked) == 1 + 2 * 64  # the shared prefix, then a round to warm up and one to keep


@pytest.mark.parametrize("hit", [31, 33])
def test_who_finds_something_else_is_not_timed(hit: int) -> None:
    with pytest.raises(WrongHits, match="a: expected hits of 32 to 32 tokens"):
        measure(Step(1, prompt=48, shared=32), [scripted("a", hit, [])], rounds=1)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("requests", [1, 70])
def test_a_registered_manager_goes_through_all_stages(requests: int, full: bool) -> None:
    timed = measure(Step(requests, 100, 64, full=full), [named("radix")], rounds=2)
    assert all(len(samples) == 2 for samples in timed["radix"].seconds.values())


def test_a_manager_without_a_look_up_of_its_own_admits_in_one() -> None:
    with pytest.raises(WrongHits):  # `paged` never hits
        measure(Step(1, 48, 32), [named("paged")], rounds=1)
    timed = measure(Step(1, 48, 0), [named("paged")], rounds=1)
    assert timed["paged"].total(["reserve"])[0] > timed["paged"].total(["publish"])[0]


def test_an_interrupted_measurement_keeps_its_finished_rounds() -> None:
    rounds = iter((None, None, KeyboardInterrupt))

    def watch() -> None:
        if raised := next(rounds):
            raise raised

    with pytest.raises(Interrupted) as stopped:
        measure(Step(1, 48, 32), [named("radix")], rounds=9, watch=watch)
    seconds = stopped.value.timed["radix"].seconds
    assert {len(samples) for samples in seconds.values()} == {2}


def test_growth_is_sampled_hot_and_random() -> None:
    hot, random = pool_growth([named("radix")], 100, rounds=2)
    assert [len(hot["radix"]), len(random["radix"])] == [2, 2]
    assert len(depth_growth([named("radix")], 64, rounds=2)["radix"]) == 2


def test_a_bare_look_up_is_one_of_everything_that_is_stored() -> None:
    (index,) = find("radix-index")
    assert len(match_times([index], 100, rounds=2)["radix-index"]) == 2
    with pytest.raises(ValueError, match="at least a page of 16, got 15"):
        match_times([index], 15, rounds=1)
    with pytest.raises(ValueError, match="expected a PrefixIndex, got a CacheManager"):
        match_times(find("radix"), 100, rounds=1)


def test_a_tree_that_finds_too_little_is_not_timed() -> None:
    class Forgetful:
        def insert(self, key: object, values: object) -> int:
            return 0

        def match(self, key: object) -> Match:
            return Match(0, ())

    forgetful = Registration("forgetful", PrefixIndex, lambda **sizes: Forgetful(), Declaration())
    with pytest.raises(WrongHits, match="forgetful: expected 96 tokens, got 0"):
        match_times([forgetful], 100, rounds=1)


def test_sizes_are_checked() -> None:
    with pytest.raises(ValueError, match="at least 100, got 99"):
        pool_growth([named("radix")], 99, rounds=1)
    with pytest.raises(ValueError, match="1 to 64, got 65"):
        depth_growth([named("radix")], 65, rounds=1)
    with pytest.raises(ValueError, match="0 <= shared < prompt"):
        Step(1, prompt=16, shared=16)


def test_only_managers_can_be_timed() -> None:
    (index,) = (entry for entry in find("radix-index") if entry.kind is PrefixIndex)
    with pytest.raises(ValueError, match="expected a CacheManager, got a PrefixIndex"):
        contender(index)


def test_an_engine_that_is_not_here_says_so() -> None:
    (entry,) = find("vllm")
    if entry.available:
        pytest.skip("vLLM is installed here")
    with pytest.raises(Unavailable, match="install it with"):
        contender(entry).build(10, 16, 1)


def test_ratios_are_formed_within_a_round() -> None:
    found = ratio([2.0, 30.0, 8.0], [1.0, 10.0, 2.0])
    assert (found.median, found.low, found.high, found.rounds) == (3.0, 2.5, 3.5, 3)
    assert ratio([3.0], [2.0]).median == 1.5
    with pytest.raises(ValueError, match="got 1 and 2"):
        ratio([1.0], [1.0, 2.0])
    assert turns("abc", 4) == ["b", "c", "a"]
