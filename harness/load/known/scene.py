"""A scene: requests with their times, and what a scripted server does for each.

It is performed on virtual time by the instrument's own client, generator and metrics. Times are
multiples of 1/64 s, so that sums and differences have no rounding error and numbers can be compared
for equality.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvassay.harness.load.known.instrument import Instrument
from kvassay.harness.load.watching import Limits
from kvassay.harness.metrics.metric import Measured
from kvassay.harness.metrics.run import Run
from kvassay.harness.metrics.timeline import Timeline
from kvassay.harness.serving.script import Script
from kvassay.harness.serving.scripted import Asked, Scripted
from kvassay.harness.serving.virtual_time import play
from kvassay.harness.workloads.plan import Planned, Workload

FIRST_TOKEN_ID = 1000
OUTPUT = (1, 2, 3, 4)


@dataclass(frozen=True)
class Call:
    """One request: when it is meant to start, and what it gets."""

    at: float
    script: Script
    prompt_tokens: int = 8


@dataclass(frozen=True)
class Scene:
    """What happens."""

    calls: tuple[Call, ...]
    at_once: int | None = None
    """How many requests the client has at a time; None is as many as come."""
    limits: Limits = field(default_factory=Limits)
    objectives: Mapping[str, float] = field(default_factory=dict)
    warm_up: tuple[Call, ...] = ()
    """Sent before, one after the other, and not to be measured."""

    @property
    def everything(self) -> tuple[Call, ...]:
        """The calls, then those of the warm-up; a prompt's first token tells which one it is."""
        return self.calls + self.warm_up

    def requests(self) -> tuple[Planned, ...]:
        """A request per call, in the same order."""
        return tuple(
            Planned(f"r{number}", (FIRST_TOKEN_ID + number,) * call.prompt_tokens, OUTPUT)
            for number, call in enumerate(self.everything)
        )


@dataclass(frozen=True)
class Performed:
    """What the instrument made of it, and what really happened."""

    timelines: tuple[Timeline, ...]
    run: Run
    measured: Mapping[str, Measured]
    server: Scripted


def perform(instrument: Instrument, scene: Scene) -> Performed:
    """Play the scene, once."""
    return play(_perform(instrument, scene))


async def _perform(instrument: Instrument, scene: Scene) -> Performed:
    clock = asyncio.get_running_loop().time
    server = Scripted(lambda asked: scene.everything[number_of(asked)].script)
    engine = instrument.engine(server, "scripted", clock=clock)
    watcher = instrument.watcher(engine, clock, scene.limits)
    generator = instrument.generator(watcher, at_once=scene.at_once)
    requests = scene.requests()
    count = len(scene.calls)
    warm: tuple[Timeline, ...] = ()
    if scene.warm_up:
        warm = (await generator.closed(Workload("warm-up", 0, requests[count:]), 1)).timelines
    sent = await generator.open(requests[:count], [call.at for call in scene.calls])
    run = instrument.run_of(warm, sent.timelines, scene.objectives)
    measured = {tag: metric.measure(run) for tag, metric in instrument.metrics.items()}
    return Performed(sent.timelines, run, measured, server)


def number_of(asked: Asked) -> int:
    """Which of the scene's calls has come."""
    return int(asked.body["prompt"][0]) - FIRST_TOKEN_ID
