"""What clients see: tokens as they come, ends, and where the time before the first token went."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from kvassay.harness.contract import CacheManager
from kvassay.harness.metrics.coherence import incoherent
from kvassay.harness.metrics.run import Run
from kvassay.harness.metrics.timeline import Ending
from kvassay.harness.registry import find
from kvassay.harness.rig.choosing import Forced
from kvassay.harness.rig.jobs import Job
from kvassay.harness.rig.rig import Rig
from kvassay.harness.rig.scheduler import Limits
from kvassay.harness.rig.tagged import TaggedDevice, follows


class Ticking:
    """A clock by which every look takes a second, and a step of the device ten."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def rig(name: str = "radix", num_blocks: int = 16, **limits: int) -> Rig:
    (entry,) = (found for found in find(name) if found.kind is CacheManager)
    manager = entry.build(num_blocks=num_blocks, block_size=4)
    clock = Ticking()

    class Slow(TaggedDevice):
        def run(self, transfers, work):  # type: ignore[no-untyped-def]
            clock.now += 10
            return super().run(transfers, work)

    return Rig(manager, entry.declaration, Slow(4), Limits(**limits), clock=clock)


def test_tokens_are_those_of_the_model_and_come_one_by_one() -> None:
    running = rig()
    running.submit(Job("a", (1, 2, 3), 3))
    running.finish()
    timeline = running.timelines["a"]
    tokens = [1, 2, 3]
    for event in timeline.events:
        (token,) = event.tokens
        assert token == follows(tokens).first
        tokens.append(token)
    assert len(tokens) == 6
    assert [event.finish_reason for event in timeline.events] == [None, None, "done"]
    times = [event.time for event in timeline.events]
    assert times == sorted(times)
    assert timeline.ended == times[-1]
    assert (timeline.ending, timeline.error, timeline.preemptions) == (Ending.COMPLETE, "", 0)


@pytest.mark.parametrize("name", ["radix", "paged"])
def test_stages_add_up_to_the_time_before_the_first_token(name: str) -> None:
    running = rig(name, step_tokens=6)
    running.submit(Job("a", tuple(range(12)), 2))
    running.submit(Job("b", tuple(range(50, 55)), 2), intended=0.5)
    running.finish()
    looked_up = name == "radix"
    for timeline in running.timelines.values():
        stages = timeline.stages
        assert ("lookup" in stages) == looked_up
        assert timeline.sent is not None
        first = timeline.events[0].time - timeline.sent
        assert sum(stages.values()) == pytest.approx(first)
        assert min(stages.values()) > 0
    a, b = running.timelines["a"].stages, running.timelines["b"].stages
    assert a["queue"] < b["queue"]
    assert b["queue"] > 10
    assert a["prefill"] > 10
    assert running.timelines["b"].intended == 0.5


def test_what_was_hit_is_told() -> None:
    running = rig()
    for name in ("a", "b"):
        running.submit(Job(name, tuple(range(9)), 1), declared_cached=8)
        running.finish()
    cached = [running.timelines[name].events[0].cached_tokens for name in ("a", "b")]
    assert cached == [0, 8]
    assert running.timelines["b"].declared_cached == 8


def test_ends_that_are_no_success() -> None:
    running = rig(num_blocks=2)
    running.submit(Job("giant", tuple(range(30)), 1))
    running.submit(Job("outgrows", tuple(range(7)), 9))
    running.submit(Job("aborted", (1, 2), 9))
    running.step()
    running.abort("aborted")
    running.finish()
    endings = {name: line.ending for name, line in running.timelines.items()}
    assert endings == {
        "giant": Ending.FAILED,
        "outgrows": Ending.FAILED,
        "aborted": Ending.CANCELLED,
    }
    giant, outgrows = running.timelines["giant"], running.timelines["outgrows"]
    assert not giant.events
    assert giant.stages == {}
    assert "blocks" in giant.error
    assert [len(event.tokens) for event in outgrows.events] == [1, 1]
    assert all(event.finish_reason is None for event in outgrows.events)


def test_samples_stream_together_and_preemption_is_counted() -> None:
    running = rig("paged", 4)
    running.submit(Job("a", tuple(range(4)), 5, width=2))
    running.submit(Job("b", tuple(range(9, 13)), 5))
    running.finish()
    a, b = running.timelines["a"], running.timelines["b"]
    assert sum(len(event.tokens) for event in a.events) == 10
    assert len(a.events[0].tokens) == 2
    assert sum(len(event.tokens) for event in b.events) == 5
    assert b.preemptions is not None
    assert b.preemptions > 0


@pytest.mark.parametrize("name", ["radix", "paged", "contiguous-pow2"])
def test_timelines_are_coherent(name: str) -> None:
    running = rig(name, num_blocks=12, step_tokens=7)
    running.clock = running.scheduler.managed._clock = time.perf_counter
    for number in range(12):
        prompt = tuple(range(number % 3, 3 + 4 * number))
        running.submit(Job(f"j{number}", prompt, 6, width=1 + number % 2))
        running.step()
    running.abort("j10")
    running.finish()
    timelines = tuple(running.timelines.values())
    assert {one.ending for one in timelines} == {*Ending} - {Ending.TRUNCATED}
    assert any(one.preemptions for one in timelines)
    assert list(incoherent(Run(timelines))) == []
    broken = replace(timelines[0], stages={"prefill": 1e6})
    assert [one.invariant for one in incoherent(Run((broken,)))] == ["M1"]


def test_outputs_can_be_forced() -> None:
    running = rig()
    running.choose = Forced({"a": (7, 8, 9)})
    running.submit(Job("a", (1, 2), 3))
    running.finish()
    assert running.ended["a"].outputs == ((7, 8, 9),)


def test_a_name_is_used_once() -> None:
    running = rig()
    running.submit(Job("a", (1, 2), 1))
    running.finish()
    with pytest.raises(ValueError, match="'a' is in use"):
        running.submit(Job("a", (1, 2), 1))


def test_a_run_can_be_cut_short() -> None:
    running = rig()
    running.submit(Job("a", (1, 2), 9))
    running.finish(patience=3)
    assert not running.idle
    (branch,) = running.scheduler.running
    assert branch.generated == 3
