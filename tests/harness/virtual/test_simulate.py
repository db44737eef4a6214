"""Virtual time: runs whose times can be told by hand, and shortcuts that change no bit."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from random import Random
from typing import Any

import numpy as np
import pytest

from kvassay.harness.contract import Capability, Declaration
from kvassay.harness.metrics.catalogue import measure
from kvassay.harness.metrics.run import Run
from kvassay.harness.metrics.timeline import Ending
from kvassay.harness.registry import find
from kvassay.harness.rig.jobs import Job
from kvassay.harness.rig.scheduler import Limits, Scheduler
from kvassay.harness.roofline import Ceiling
from kvassay.harness.virtual.cost import Cost, Machine, StepWork
from kvassay.harness.virtual.leaping import LeapingScheduler
from kvassay.harness.virtual.model import RANDOM_LLAMA
from kvassay.harness.virtual.outcome import digest, outcome
from kvassay.harness.virtual.simulate import Incoming, Simulated, simulate

ENDLESS = Ceiling(1e30, 1e30)
SECOND = Cost(RANDOM_LLAMA, Machine("a second a step", ENDLESS, 0, 1, 1, 1.0, 0.0, 0.0, ""))
BUSY = Cost(RANDOM_LLAMA, Machine("slow", Ceiling(1e10, 1e11), 0, 1, 1, 1e-3, 1e-4, 1e-3, ""))


def asked(name: str, at: float, length: int, output: int = 3, first: int = 0) -> Incoming:
    number = int(name[1:])
    prompt = (*range(first, first + length - 1), 10**6 + number)
    return Incoming(name, at, prompt, output, 10**6 + number)


def run(
    load: Iterable[Incoming],
    cost: Cost = SECOND,
    *,
    manager: str = "radix",
    blocks: int = 100,
    limits: Limits | None = None,
    leaps: bool = True,
) -> Simulated:
    (entry,) = find(manager)
    built = entry.build(num_blocks=blocks, block_size=4)
    return simulate(built, entry.declaration, load, cost, limits, leaps=leaps)


def times(got: Simulated, number: int) -> list[float]:
    return got.times(got.requests[number])


def test_one_request_alone() -> None:
    got = run([asked("r0", 5.0, 10)])
    (one,) = got.requests
    assert times(got, 0) == [6.0, 7.0, 8.0]
    assert (one.ending, one.ended, one.entered, one.hit) == (Ending.COMPLETE, 8.0, 5.0, 0)


def test_who_comes_during_a_step_waits_for_its_end() -> None:
    got = run([asked("r0", 0.0, 10, output=2), asked("r1", 0.25, 10, first=50)])
    assert times(got, 0) == [1.0, 2.0]
    assert times(got, 1) == [2.0, 3.0, 4.0]
    line = got.timeline(got.requests[1])
    assert line.stages == {"queue": 0.75, "prefill": 1.0}
    assert sum(line.stages.values()) == line.events[0].time - line.intended


def test_prompts_go_in_chunks_beside_decodes() -> None:
    load = [asked("r0", 0.0, 4, output=4), asked("r1", 0.5, 20, first=50, output=1)]
    got = run(load, limits=Limits(step_tokens=9))
    assert times(got, 0) == [1.0, 2.0, 3.0, 4.0]
    assert times(got, 1) == [4.0]  # 8 tokens, 8, and the last 4


def test_what_is_found_is_not_computed() -> None:
    load = [asked("r0", 0.0, 41), asked("r1", 10.0, 41)]
    got = run(load, limits=Limits(step_tokens=10))
    assert times(got, 0)[0] == 5.0
    assert times(got, 1)[0] == 11.0
    assert [one.hit for one in got.requests] == [0, 40]
    assert got.prefill_tokens == 42


def test_what_cannot_be_held_fails_and_the_others_go_on() -> None:
    got = run([asked("r0", 0.0, 500), asked("r1", 0.0, 10)])
    assert [one.ending for one in got.requests] == [Ending.FAILED, Ending.COMPLETE]
    assert "blocks" in got.requests[0].error
    assert got.timeline(got.requests[0]).events == ()


def test_the_timeline_is_what_a_client_would_see() -> None:
    got = run([asked("r0", 5.0, 10)])
    (line,) = got.timelines()
    assert (line.request, line.prompt_tokens, line.output_tokens) == ("r0", 10, 3)
    assert [event.time for event in line.events] == [6.0, 7.0, 8.0]
    assert [event.finish_reason for event in line.events] == [None, None, "length"]
    assert [event.cached_tokens for event in line.events] == [0, None, None]
    assert (line.intended, line.sent, line.ended, line.ending) == (5.0, 5.0, 8.0, "complete")


# ---------------------------------------------------------------------------------- the shortcuts


def mixed(seed: int, count: int = 40, gap: float = 0.02) -> list[Incoming]:
    """Prompts that share beginnings, some long, some that come at once."""
    rng = Random(seed)
    arrivals = accumulate(rng.choice((0.0, gap, 5 * gap)) for _ in range(count))
    return [
        asked(f"r{n}", at, rng.choice((3, 16, 33, 90)), rng.randint(1, 60), rng.choice((0, 200)))
        for n, at in enumerate(arrivals)
    ]


def plainly(load: list[Incoming], manager: str, blocks: int, limits: Limits) -> list[float]:
    """Ends of the steps of the rig's own scheduler, driven as simply as can be."""
    (entry,) = find(manager)
    scheduler = Scheduler(entry.build(num_blocks=blocks, block_size=4), entry.declaration, limits)
    answers = {one.name: (one.token,) for one in load}
    now, ends, left = 0.0, [], list(load)
    while left or not scheduler.idle:
        if scheduler.idle:
            now = max(now, left[0].at)
        while left and left[0].at <= now:
            one = left.pop(0)
            scheduler.add(Job(one.name, one.prompt, one.output_tokens))
        plan = scheduler.step()
        if not plan.chunks:
            continue
        work = StepWork(len(plan.admitted))
        for chunk in plan.chunks:
            work.add(chunk.start, chunk.stop, chunk.samples)
        now += BUSY.seconds(work)
        ends.append(now)
        scheduler.complete(plan, answers)
    return ends


@pytest.mark.parametrize("manager", ["radix", "paged", "contiguous-oracle"])
@pytest.mark.parametrize("blocks", [40, 400])
def test_shortcuts_change_no_bit(manager: str, blocks: int) -> None:
    for seed in range(2):
        load, limits = mixed(seed), Limits(32, 12)
        quick, slow = (
            run(load, BUSY, manager=manager, blocks=blocks, limits=limits, leaps=leaps)
            for leaps in (True, False)
        )
        assert digest(quick) == digest(slow)
        assert list(slow.ends) == plainly(load, manager, blocks, limits)
        assert slow.leaps == 0


def test_leaps_deferred_appends_and_preemptions_are_really_met() -> None:
    quick = run(mixed(0), BUSY, blocks=40, limits=Limits(32, 12))
    assert quick.leaps > 5
    assert quick.calls < len(quick.ends)
    assert sum(one.preemptions for one in quick.requests) > 5
    assert any(one.hit for one in quick.requests)


def test_a_leap_that_is_too_long_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeapingScheduler, "_fitting", lambda self, steps: steps)
    with pytest.raises(RuntimeError, match="without leaps"):
        run(mixed(0), BUSY, blocks=40, limits=Limits(32, 12))


def test_whoever_looks_ahead_or_counts_nothing_is_not_leapt_over() -> None:
    (entry,) = find("radix")

    def scheduler(declaration: Declaration) -> Any:
        built: Any = LeapingScheduler(entry.build(num_blocks=9, block_size=4), declaration)
        built.add(Job("a", (1, 2, 3), 9))
        built.complete(built.step(), {"a": (7,)})
        return built

    offers = {Capability.COMMIT, Capability.COUNTERS}
    assert scheduler(Declaration(offers)).longest_leap() == 7
    assert scheduler(Declaration(offers, lookahead=1)).longest_leap() == 0
    assert scheduler(Declaration(offers - {Capability.COUNTERS})).longest_leap() == 0
    assert scheduler(Declaration(offers, refusal="may_evict")).longest_leap() == 0


def test_the_same_traffic_gives_the_same_bits_and_other_traffic_others() -> None:
    first, again, other = (digest(run(mixed(seed), BUSY)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


# ------------------------------------------------------------------------------- what it comes to


OBJECTIVES = {"ttft": 0.005, "tpot": 0.002}


@pytest.mark.parametrize("seed", range(2))
def test_is_what_the_metric_classes_say(seed: int) -> None:
    simulated = run([*mixed(seed), asked("r99", 9.0, 500)], BUSY, limits=Limits(32, 12))
    got = outcome(simulated, OBJECTIVES)
    told = measure(Run(tuple(simulated.timelines()), OBJECTIVES))
    assert got.ttft.tolist() == list(told["ttft"].samples)
    assert got.tpot.tolist() == list(told["tpot"].samples)
    assert got.itl.tolist() == list(told["itl"].samples)
    assert got.queue.tolist() == list(told["ttft_queue"].samples)
    assert got.goodput == told["goodput"].value
    assert 0 < got.goodput < got.rate == told["request_throughput"].value
    assert got.hit_rate == told["hit_rate"].value
    assert (got.requests, got.complete) == (41, 40)
    assert got.preemptions == told["preemptions"].value


def test_the_digest_sees_a_single_bit() -> None:
    simulated = run(mixed(0), BUSY)
    before = digest(simulated)
    simulated.ends[3] = float(np.nextafter(simulated.ends[3], 9e9))
    assert digest(simulated) != before


def test_the_digest_sees_a_hit() -> None:
    simulated = run(mixed(0), BUSY)
    before = digest(simulated)
    simulated.requests[5].hit = 1
    assert digest(simulated) != before
