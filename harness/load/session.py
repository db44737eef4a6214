"""One measurement of a server: ask whether it is there, warm it up, send the load, look at it all.

Whatever fails is in the report, and so is what makes its numbers worth less: arrivals that are not
those of the declared process, a client that could not keep up, hits that are not those intended.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvassay.harness.contract import Engine
from kvassay.harness.load.arriving import strangeness
from kvassay.harness.load.generator import Generator, Sent, Told
from kvassay.harness.load.intended import intended_hits
from kvassay.harness.load.watching import Limits, Watcher
from kvassay.harness.metrics.catalogue import measure
from kvassay.harness.metrics.coherence import incoherent
from kvassay.harness.metrics.metric import Measured
from kvassay.harness.metrics.reading import output_tokens
from kvassay.harness.metrics.run import Run
from kvassay.harness.metrics.timeline import Timeline
from kvassay.harness.serving.openai import OpenAIEngine
from kvassay.harness.serving.transport import ServingError, Unreachable
from kvassay.harness.workloads.plan import Workload

LATE = 0.1
"""Share of the median time to the first token that the client's own delay may be, unremarked."""
BUNDLED = 0.1
"""Share of the chunks that may come together with others, unremarked."""


class NoServer(ServingError):
    """There is nothing to measure; says why."""


@dataclass(frozen=True)
class Load:
    """What is sent, and when."""

    workload: Workload
    times: Sequence[float] | None = None
    """Open loop: seconds from the beginning, one per request."""
    clients: int = 1
    """Closed loop, where there are no times."""
    process: tuple[float, float] | None = None
    """Rate and coefficient of variation that the times were drawn with."""
    warm_up: Workload | None = None
    at_once: int | None = None
    limits: Limits = field(default_factory=Limits)
    objectives: Mapping[str, float] = field(default_factory=dict)
    block_size: int | None = 16
    """Of the server's cache, for the intended hits; None if they are not to be told."""


@dataclass(frozen=True)
class Report:
    """What came of it."""

    run: Run
    measured: Mapping[str, Measured]
    notes: tuple[str, ...]
    """What a reader of the numbers must know."""
    interrupted: bool = False

    @property
    def errors(self) -> Counter[str]:
        """How often each error ended a request."""
        return Counter(f"{one.ending}: {one.error}" for one in self.run.timelines if one.error)

    @property
    def clean(self) -> bool:
        """Whether every request is complete."""
        return len(self.run.complete) == len(self.run.timelines) and not self.interrupted


async def look_for(engine: OpenAIEngine) -> list[str]:
    """Notes on the server; `NoServer` if there is none, or it has another model."""
    try:
        models = await engine.models()
    except Unreachable as error:
        raise NoServer(f"no server: {error}") from None
    except ServingError as error:
        return [f"whether the model is there is not known: {error}"]
    if engine.model not in models:
        raise NoServer(f"model: expected one of {', '.join(models)}, got {engine.model!r}")
    return []


async def measured(
    engine: Engine, load: Load, clock: Callable[[], float], told: Told = lambda timeline: None
) -> Report:
    """Send the load and measure it; being cancelled ends the load and keeps what there is."""
    watcher = Watcher(engine, clock, load.limits)
    remarks = await _warm_up(watcher, load)
    generator = Generator(watcher, at_once=load.at_once, told=told)
    sent = await _send(generator, load)
    run = Run(sent.timelines, load.objectives)
    found = measure(run)
    return Report(run, found, (*remarks, *_notes(load, run, found)), sent.interrupted)


async def _warm_up(watcher: Watcher, load: Load) -> list[str]:
    """What is to be said of it; being cancelled ends everything, as there is nothing to keep."""
    if load.warm_up is None:
        return []
    sent = await Generator(watcher).closed(load.warm_up, load.clients)
    if sent.interrupted:
        raise asyncio.CancelledError
    errors = [one.error for one in sent.timelines if one.error]
    return [f"{len(errors)} requests of the warm-up failed: {errors[0]}"] if errors else []


async def _send(generator: Generator, load: Load) -> Sent:
    requests = load.workload.requests
    size = load.block_size
    hits = [None] * len(requests) if size is None else intended_hits(requests, size)
    if load.times is None:
        return await generator.closed(load.workload, load.clients, hits)
    return await generator.open(requests, load.times, hits)


def first_of(workload: Workload, count: int) -> Workload:
    """A workload of its first requests, under other names, as independent ones: to warm up with."""
    few = [replace(one, name=f"warm-up {one.name}", after=()) for one in workload.requests[:count]]
    return replace(workload, name="warm-up", requests=tuple(few))


# ------------------------------------------------------------------------------------------ remarks


def _notes(load: Load, run: Run, found: Mapping[str, Measured]) -> Iterator[str]:
    for problem in list(incoherent(run))[:5]:
        yield f"these numbers cannot be right: {problem}"
    yield from _arrivals(load, run)
    yield from _lateness(found)
    yield from _hits(load, found)
    asked = {request.name: len(request.output) for request in load.workload.requests}
    short = sum(_is_short(one, asked[one.request]) for one in run.complete)
    if short:
        yield f"{short} complete requests have fewer tokens than were asked for"
    yield from _bundles(found)
    yield from _prompts(load, run)
    if load.times is None:
        yield "closed loop: a queue that would grow with the load is not seen"


def _arrivals(load: Load, run: Run) -> Iterator[str]:
    if load.process is None or load.times is None:
        return
    rate, cv = load.process
    began = run.timelines[0].intended - load.times[0]
    sent = sorted(one.sent - began for one in run.timelines if one.sent is not None)
    if len(sent) == len(load.times):
        for strange in strangeness(sent, rate, cv):
            yield f"the arrivals achieved are not those declared: {strange}"


def _lateness(found: Mapping[str, Measured]) -> Iterator[str]:
    late, first = found["send_delay"].percentile(99), found["ttft"].value
    if late is not None and first is not None and late > LATE * first:
        yield (
            f"the client itself was late: by {late:.3g} s at p99, beside a median time to the "
            f"first token of {first:.3g} s; latencies contain it"
        )


def _hits(load: Load, found: Mapping[str, Measured]) -> Iterator[str]:
    declared, got = found["hit_rate_declared"].value, found["hit_rate"].value
    if declared is None:
        return
    intended = f"{declared:.1%} intended (whole blocks of {load.block_size}, one after the other)"
    if got is None:
        yield f"hit rate: not told by the server, {intended}"
    elif got != declared:
        yield f"hit rate: {got:.1%} realised, {intended}"


def _bundles(found: Mapping[str, Measured]) -> Iterator[str]:
    gaps = found["icl"].samples
    together = sum(gap == 0 for gap in gaps)
    if together > BUNDLED * len(gaps):
        yield (
            f"{together / len(gaps):.0%} of the chunks came together with the one before them: "
            "gaps tell how they are sent, not how they are made"
        )


def _prompts(load: Load, run: Run) -> Iterator[str]:
    """The server's own count, where prompts are sent as token ids."""
    if load.block_size is None:
        return
    sent = {request.name: len(request.prompt) for request in load.workload.requests}
    other = [one for one in run.complete if one.prompt_tokens != sent[one.request]]
    if other:
        one = other[0]
        yield (
            f"the server counts other prompts than were sent, in {len(other)} requests: "
            f"{one.prompt_tokens} tokens for {sent[one.request]}"
        )


def _is_short(one: Timeline, asked: int) -> bool:
    got = output_tokens(one)
    return got is not None and got < asked
