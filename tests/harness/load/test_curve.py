"""Load curves of servers whose capacity is known, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from kvassay.harness.load.curve import Plan, Point, sweep
from kvassay.harness.load.saturation import METRICS, saturated, verdict
from kvassay.harness.load.session import Load, Report, measured
from kvassay.harness.metrics.catalogue import measure
from kvassay.harness.metrics.timeline import Ending
from kvassay.harness.serving.openai import OpenAIEngine
from kvassay.harness.serving.script import Script, plain
from kvassay.harness.serving.scripted import Answering, Asked, Scripted
from kvassay.harness.serving.virtual_time import play

SERVICE = 0.1
CAPACITY = 1 / SERVICE
SMALL = ("prompt_tokens=8", "output_tokens=2")
PLAN = Plan("unrelated", SMALL, requests=150, seconds=0.0, patience=1000.0, warm_up=0)


class OneSlot:
    """A server for one request at a time, which takes 0.1 s; the others wait in order."""

    def __init__(self, service: float = SERVICE) -> None:
        self.service, self.free = service, 0.0

    def __call__(self, asked: Asked) -> Script:
        self.free = max(self.free, asked.time) + self.service
        return plain(self.free - asked.time, (0.0,))


class Sharing:
    """Works on all requests at once, each so much slower: latency grows, and no queue is there."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def __call__(self, asked: Asked) -> Script:
        self.ends = [end for end in self.ends if end > asked.time]
        took = SERVICE * (1 + len(self.ends))
        self.ends.append(asked.time + took)
        return plain(0.001, (took - 0.001,))


def asking(
    make: Callable[[], Answering] = OneSlot, servers: dict[str, Scripted] | None = None
) -> Callable[[str, Load], Report]:
    """Each point meets a server of its own, at time 0."""

    def ask(server: str, load: Load) -> Report:
        transport = Scripted(make())
        (servers if servers is not None else {})[server] = transport

        async def run() -> Report:
            clock = asyncio.get_running_loop().time
            return await measured(OpenAIEngine(transport, "m", clock=clock), load, clock)

        return play(run())

    return ask


def values(point: Point) -> dict[str, float]:
    return {tag: one.value for tag, one in point.measured.items() if one.value is not None}


def test_saturation_is_where_the_capacity_is() -> None:
    points = list(sweep(["one"], [4, 8, 16, 32], PLAN, asking(), refine=2))
    assert [one.rate for one in points[:3]] == [4, 8, 16]  # and no 32
    assert [bool(one.saturated) for one in points[:3]] == [False, False, True]
    kept_up = max(one.rate for one in points if not one.saturated)
    saturated_at = min(one.rate for one in points if one.saturated)
    assert 0.8 * CAPACITY < kept_up < saturated_at < 1.25 * CAPACITY
    assert values(points[2])["departure_rate"] == pytest.approx(CAPACITY, rel=0.01)
    assert points[2].saturated.startswith("departures 9.9")


def test_a_queue_grows_as_fast_as_arrivals_exceed_the_capacity() -> None:
    (point,) = sweep(["one"], [16], replace(PLAN, requests=400), asking())
    found = values(point)
    arrivals = found["arrival_rate"]
    assert found["latency_growth"] == pytest.approx(arrivals / CAPACITY - 1, rel=0.15)
    assert verdict(arrivals, arrivals, found["latency_growth"]).startswith("latency grows by 0.")


def test_waiting_times_are_those_of_queueing_theory() -> None:
    """M/D/1: the mean wait is ``load * service / (2 (1 - load))``."""
    (point,) = sweep(["one"], [5], replace(PLAN, requests=400), asking())
    wait = np.mean(point.measured["ttft"].samples) - SERVICE
    assert wait == pytest.approx(0.5 * SERVICE / (2 * 0.5), rel=0.25)
    assert not point.saturated


def test_latency_grows_where_no_request_waits_for_its_first_token() -> None:
    point = next(sweep(["one"], [40], PLAN, asking(Sharing)))
    assert max(point.measured["ttft"].samples) == pytest.approx(0.001)
    assert values(point)["latency_growth"] > 0.1
    assert point.saturated


def test_a_point_beyond_saturation_ends_in_time_and_counts_what_it_gave_up() -> None:
    plan = replace(PLAN, patience=5.0)
    (point,) = sweep(["one"], [100], plan, asking())
    run = point.report.run
    assert run.seconds is not None
    assert run.seconds <= max(one.intended for one in run.timelines) + 5.0
    given_up = [one for one in run.timelines if one.ending is Ending.CANCELLED]
    assert {one.error for one in given_up} == {"not finished after 5 s"}
    # Served are those whose 0.1 s each end within 5 s of their own sending.
    assert len(run.complete) + len(given_up) == 150
    assert 50 < len(run.complete) < 70
    ttft = point.measured["ttft"]
    assert ttft.lost == len(given_up)
    assert ttft.percentile(99) < 5 < 1000  # of those that were answered
    assert ttft.percentile_of_all(99) is None
    assert point.saturated


def test_the_loop_waits_for_no_server() -> None:
    servers: dict[str, Scripted] = {}
    (point,) = sweep(["one"], [100], PLAN, asking(servers=servers))
    intended = [one.intended for one in point.report.run.timelines]
    assert [asked.time for asked in servers["one"].asked] == intended


def test_a_closed_loop_sees_no_saturation() -> None:
    """What the curve must not be made of: twice the clients, no queue that anybody would see."""
    load = PLAN.load(100, 0)
    for clients in (1, 2):
        report = asking()("one", replace(load, times=None, process=None, clients=clients))
        found = measure(report.run, METRICS)
        assert found["departure_rate"].value == pytest.approx(CAPACITY)
        assert saturated(found) == ""
    assert saturated(measure(asking()("one", load).run, METRICS)) != ""


def test_a_clients_own_limit_hides_no_saturation() -> None:
    report = asking()("one", replace(PLAN.load(100, 0), at_once=1))
    assert saturated(measure(report.run, METRICS)) != ""


def test_servers_get_the_same_load_in_turns_and_stop_by_themselves() -> None:
    seen: list[tuple[str, float, tuple[float, ...]]] = []
    slow, fast = asking(OneSlot), asking(lambda: OneSlot(SERVICE / 4))

    def ask(server: str, load: Load) -> Report:
        assert load.process is not None
        assert load.times is not None
        seen.append((server, load.process[0], tuple(load.times)))
        return (slow if server == "slow" else fast)(server, load)

    points = list(sweep(["slow", "fast"], [4, 8, 16, 32, 64, 128], PLAN, ask))
    order = [(one.server, one.rate) for one in points]
    assert order[:2] == [("slow", 4), ("fast", 4)]
    assert order[2:4] == [("fast", 8), ("slow", 8)]
    assert max(rate for server, rate in order if server == "slow") == 16
    assert max(rate for server, rate in order if server == "fast") == 64
    assert seen[0][2] == seen[1][2] != seen[2][2]


def test_no_cache_has_seen_a_points_prompts() -> None:
    plan = replace(PLAN, workload="few-shot", settings=("example_tokens=64",), warm_up=2)
    loads = [plan.load(rate, number) for number, rate in enumerate((1, 2))]
    begins = {one.prompt[:16] for load in loads for one in load.workload.requests}
    assert len(begins) == 2  # of one prefix each
    warm = {one.prompt[:16] for load in loads if load.warm_up for one in load.warm_up.requests}
    assert len(warm) == 2
    assert not begins & warm


def test_a_server_that_answers_nothing_is_saturated() -> None:
    (point,) = sweep(["one"], [4], PLAN, asking(lambda: lambda asked: Script(status=500)))
    assert point.saturated.startswith("departures 0/s")
    assert point.measured["requests_failed"].value == 150


def test_a_part_of_a_point_is_none() -> None:
    def ask(server: str, load: Load) -> Report:
        return replace(asking()(server, load), interrupted=True)

    with pytest.raises(KeyboardInterrupt):
        next(sweep(["one"], [4], PLAN, ask))


@pytest.mark.parametrize("rates", [[], [2, 1], [1, 1]])
def test_rates_rise(rates: list[float]) -> None:
    with pytest.raises(ValueError, match="rising"):
        next(sweep(["one"], rates, PLAN, asking()))


def test_a_plan_is_of_independent_requests() -> None:
    with pytest.raises(ValueError, match="few-shot, unrelated"):
        Plan("multi-turn")
    with pytest.raises(ValueError, match="1 to 1000 requests"):
        Plan(requests=2000)
