"""Arrivals have the rate and the burstiness that was asked for; the closed loop waits."""

from __future__ import annotations

import statistics
from itertools import islice, pairwise

import pytest

from kvassay.harness.traces.request import TraceRequest
from kvassay.harness.workloads.arrivals import gamma, poisson, recorded
from kvassay.harness.workloads.closed_loop import ClosedLoop
from kvassay.harness.workloads.plan import Planned, Workload


def gaps(times: list[float]) -> list[float]:
    return [after - before for before, after in pairwise([0.0, *times])]


@pytest.mark.parametrize(("rate", "cv"), [(4.0, 1.0), (0.5, 3.0), (20.0, 0.3)])
def test_gaps_have_their_mean_and_variation(rate: float, cv: float) -> None:
    found = gaps(list(islice(gamma(rate, cv, seed=0), 40000)))
    assert min(found) >= 0
    assert statistics.fmean(found) == pytest.approx(1 / rate, rel=0.05)
    assert statistics.pstdev(found) / statistics.fmean(found) == pytest.approx(cv, rel=0.05)


def test_poisson_is_gamma_without_bursts_and_seeds_decide() -> None:
    one = list(islice(poisson(3.0, seed=1), 50))
    assert one == list(islice(gamma(3.0, 1.0, seed=1), 50))
    assert one != list(islice(poisson(3.0, seed=2), 50))
    bursts = gaps(list(islice(gamma(3.0, 4.0, seed=1), 5000)))
    even = gaps(list(islice(poisson(3.0, seed=1), 5000)))
    assert statistics.median(bursts) < statistics.median(even) / 5


@pytest.mark.parametrize(("rate", "cv"), [(0, 1), (-1, 1), (1, 0), (float("nan"), 1)])
def test_a_rate_and_a_variation_are_above_0(rate: float, cv: float) -> None:
    with pytest.raises(ValueError, match="expected a number above 0"):
        gamma(rate, cv, seed=0)


def at(time: float | None, recording: int = 0) -> TraceRequest:
    return TraceRequest(1, 1, arrival=time, recording=recording)


def test_recorded_times_start_at_0_and_recordings_follow_each_other() -> None:
    rows = [at(82.0), at(83.0), at(83.0), at(93.0), at(5.0, 1), at(9.0, 1)]
    assert list(recorded(rows)) == [0.0, 1.0, 1.0, 11.0, 11.0, 15.0]
    assert list(recorded(rows, speed=2.0)) == [0.0, 0.5, 0.5, 5.5, 5.5, 7.5]


def test_times_that_are_missing_or_go_back_are_refused() -> None:
    with pytest.raises(ValueError, match="request 1: expected a time of arrival, got none"):
        list(recorded([at(1.0), at(None)]))
    with pytest.raises(ValueError, match="request 1: expected no time before 5 s, got 0 s"):
        list(recorded([at(5.0), at(0.0)]))
    with pytest.raises(ValueError, match="speed"):
        list(recorded([], speed=0))


def planned(name: str, *after: str, think: float = 0.0) -> Planned:
    return Planned(name, (1,), (2,), after=after, think_time=think)


def names(requests: list[Planned]) -> list[str]:
    return [one.name for one in requests]


def test_a_closed_loop_keeps_to_clients_answers_and_think_times() -> None:
    requests = (planned("a"), planned("b"), planned("c"), planned("d", "a", "b", think=2.5))
    loop = ClosedLoop(Workload("w", 0, requests), clients=2)
    assert names(loop.start(0.0)) == ["a", "b"]
    assert loop.start(1.0) == []
    assert loop.next_start() is None  # no client is free
    loop.answer("a", 3.0)
    assert names(loop.start(3.0)) == ["c"]
    loop.answer("b", 4.0)
    assert loop.next_start() == 6.5
    assert loop.start(6.4) == []
    assert names(loop.start(6.5)) == ["d"]
    assert not loop.done
    loop.answer("c", 7.0)
    loop.answer("d", 8.0)
    assert loop.done
    assert loop.next_start() is None


def test_what_waits_for_an_answer_does_not_start_without_it() -> None:
    loop = ClosedLoop(Workload("w", 0, (planned("a", think=1.0), planned("b", "a"))), clients=9)
    assert loop.start(0.5) == []
    assert names(loop.start(1.0)) == ["a"]
    assert loop.start(100.0) == []
    loop.answer("a", 101.0)
    assert names(loop.start(101.0)) == ["b"]


def test_an_answer_belongs_to_a_live_request() -> None:
    loop = ClosedLoop(Workload("w", 0, (planned("a"),)), clients=1)
    with pytest.raises(KeyError, match="'a' is not live"):
        loop.answer("a", 0.0)
    with pytest.raises(ValueError, match="clients: expected at least 1, got 0"):
        ClosedLoop(Workload("w", 0, ()), clients=0)
