"""Side by side: rounds, inputs in turn, and a call that takes longer measures longer."""

from __future__ import annotations

import time

import pytest

from kvassay.harness.timing import LEAST_SAMPLES, WARM_UP, Timed, captured, side_by_side


def test_contenders_take_turns_and_so_do_their_inputs() -> None:
    called: list[str] = []

    def noting(name: str) -> object:
        return lambda: called.append(name)

    timed = side_by_side(
        {"one": [noting("a"), noting("b")], "other": [noting("c")]}, "cpu", samples=4
    )
    rounds = called[2 * WARM_UP :]
    assert rounds == ["a", "c", "b", "c", "a", "c", "b", "c"]
    assert [len(each.seconds) for each in timed.values()] == [4, 4]


def test_what_takes_longer_measures_longer() -> None:
    timed = side_by_side(
        {"idle": [lambda: None], "sleeper": [lambda: time.sleep(0.01)]}, "cpu", samples=5
    )
    idle, sleeper = timed["idle"].median, timed["sleeper"].median
    assert idle is not None
    assert sleeper is not None
    assert sleeper >= 0.01 > idle


def test_it_ends_when_its_time_is_up_but_not_without_samples() -> None:
    timed = side_by_side({"sleeper": [lambda: time.sleep(0.01)]}, "cpu", limit=0.0)
    assert len(timed["sleeper"].seconds) == LEAST_SAMPLES


def test_nothing_measured_is_none() -> None:
    assert Timed("nobody").median is None
    assert Timed("nobody", [1.0, 1.0, 1.0]).spread is None
    assert Timed("nobody", [1.0, 2.0, 3.0, 4.0]).spread == pytest.approx(0.5)


def test_a_contender_without_a_call_is_refused() -> None:
    with pytest.raises(ValueError, match="nobody: expected at least one call"):
        side_by_side({"nobody": []}, "cpu")


def test_on_a_cpu_a_call_is_captured_as_it_is() -> None:
    def call() -> None: ...

    assert captured(call, "cpu") is call
