"""Arrivals of the declared process pass for every seed; those of another one do not."""

from __future__ import annotations

import math

import pytest

from kvassay.harness.load.arriving import drawn, strangeness
from kvassay.impls.faulty.metrics_clients import evenly, rescaled, slower

PROCESSES = [(4.0, 1.0), (0.25, 3.0), (100.0, 0.5)]


@pytest.mark.parametrize(("rate", "cv"), PROCESSES)
@pytest.mark.parametrize("count", [1, 10, 300])
def test_what_was_drawn_is_never_strange(rate: float, cv: float, count: int) -> None:
    for seed in range(25):
        assert not list(strangeness(drawn(rate, cv, count, seed), rate, cv)), seed


@pytest.mark.parametrize(("rate", "cv"), PROCESSES)
@pytest.mark.parametrize("other", [rescaled, evenly, slower])
def test_another_process_is_strange_for_every_seed(rate: float, cv: float, other: object) -> None:
    for seed in range(10):
        times = other(rate, cv, 1200, seed)  # type: ignore[operator]
        assert list(strangeness(times, rate, cv)), seed


def test_few_rescaled_gaps_are_enough() -> None:
    (told,) = strangeness(rescaled(2.0, 1.0, 5, 0), 2.0, 1.0)
    assert "too exactly: rescaled" in told


def test_times_that_go_back_are_said() -> None:
    assert list(strangeness([1.0, 0.5], 1.0, 1.0)) == ["arrivals go back in time"]
    assert list(strangeness([], 1.0, 1.0)) == []


def test_milliseconds_of_delay_are_no_other_process() -> None:
    late = [time + 0.001 * (1 + math.sin(time)) for time in drawn(20.0, 1.0, 300, 0)]
    assert not list(strangeness(sorted(late), 20.0, 1.0))
