"""Controls: correct instruments with unusual habits, which the trial must not convict."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import accumulate, repeat
from random import Random
from typing import Any

from kvassay.harness.contract import GenerationRequest
from kvassay.harness.load.generator import Generator
from kvassay.harness.load.known.instrument import Instrument
from kvassay.harness.load.watching import Wanted, Watcher
from kvassay.harness.metrics import latency
from kvassay.harness.metrics.catalogue import METRICS
from kvassay.harness.metrics.timeline import Timeline
from kvassay.harness.serving.openai import OpenAIEngine, ServedEvent
from kvassay.harness.serving.transport import Reply
from kvassay.harness.serving.waiting import until
from kvassay.harness.workloads.plan import Planned

CONTROLS: dict[str, Instrument] = {}


def control(name: str, **parts: Any) -> None:
    """Enter the usual instrument with these parts replaced into `CONTROLS`."""
    CONTROLS[name] = replace(Instrument(), name=f"metric-control-{name}", **parts)


class AllTasksAtOnce(Generator):
    """Makes every task before the first request; each sleeps until its own time."""

    async def _send_all(self, load: list[Wanted], tasks: dict[str, Any]) -> None:
        for one in load:
            tasks[one.request.request] = self._task(one)

    async def _send(self, one: Wanted) -> Timeline:
        await until(one.intended)
        return await super()._send(one)


control("all-tasks-at-once", generator=AllTasksAtOnce)


class SilentEvents(OpenAIEngine):
    """Does not hand on what carries neither tokens nor a reason nor a count."""

    async def stream(self, request: GenerationRequest) -> Any:
        async for event in super().stream(request):
            if event.tokens or event.finish_reason or event.output_tokens is not None:
                yield event


control("no-empty-events", engine=SilentEvents)


class ByteByByte:
    """A transport that hands on single bytes."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside

    @asynccontextmanager
    async def post(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[Reply]:
        async with self.inside.post(path, body) as reply:
            yield Reply(reply.status, self._bytes(reply.body))

    async def _bytes(self, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for piece in body:
            for number in range(len(piece)):
                yield piece[number : number + 1]


class Slicing(OpenAIEngine):
    def __init__(self, transport: Any, model: str, **parts: Any) -> None:
        super().__init__(ByteByByte(transport), model, **parts)


control("byte-by-byte", engine=Slicing)


class Yielding(Watcher):
    """Lets everybody else go first, at every chunk."""

    async def _collect(self, request: GenerationRequest, sent: float, events: Any) -> None:
        await asyncio.sleep(0)
        await super()._collect(request, sent, events)


control("yields-to-others", watcher=Yielding)


def shifted(requests: Sequence[Planned], salt: int) -> Sequence[Planned]:
    """Token ids moved on by the salt, around the vocabulary."""
    step = salt * 997 + 1

    def moved(tokens: Sequence[int]) -> tuple[int, ...]:
        return tuple((token + step) % 32000 for token in tokens)

    return [replace(one, prompt=moved(one.prompt), output=moved(one.output)) for one in requests]


control("salted-by-shifting", salting=shifted)


def of_his_own(rate: float, cv: float, count: int, seed: int) -> list[float]:
    """The same process from other random numbers."""
    rng = Random(seed + 1000)
    gaps = (rng.gammavariate(cv**-2, cv**2 / rate) for _ in repeat(None, count))
    return list(accumulate(gaps))


control("another-seed", arrivals=of_his_own)


class FirstPlusGaps(latency.EndToEnd):
    """Adds up instead of subtracting: exact where times are exact."""

    def of(self, one: Timeline) -> float | None:
        first = latency.TimeToFirstToken().of(one)
        return None if first is None else first + sum(latency.InterChunk().of(one) or ())


control("adds-up", metrics={**METRICS, "e2e": FirstPlusGaps()})


class TellsMore(OpenAIEngine):
    """Hands on events of a class of its own."""

    async def stream(self, request: GenerationRequest) -> Any:
        async for event in super().stream(request):
            yield Annotated(**{**event.__dict__, "note": "seen"})


class Annotated(ServedEvent):
    def __init__(self, note: str, **parts: Any) -> None:
        super().__init__(**parts)
        object.__setattr__(self, "note", note)


control("events-of-its-own", engine=TellsMore)
