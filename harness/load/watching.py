"""One request, from its intended start to its end, whatever that is: nothing is lost.

The timeline is made of what the engine streams, with its stamps. An error, a stream that breaks
off, one that falls silent and an interruption are endings of their own; what came before them is
kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from kvassay.harness.contract import Engine, GenerationRequest, TokenEvent
from kvassay.harness.metrics.timeline import Ending, Timeline
from kvassay.harness.serving.transport import CutOff, ServingError

Clock = Callable[[], float]
INTERRUPTED = "interrupted"


class GaveUp(Exception):
    """The client's patience ended; says after what."""


@dataclass(frozen=True)
class Limits:
    """When a client gives up, in seconds; None is never."""

    stall: float | None = 120.0
    """Without a chunk, the first included."""
    whole: float | None = None
    """From the sending to the end."""


@dataclass(frozen=True)
class Wanted:
    """A request, when it is to start, and the hits that it intends."""

    request: GenerationRequest
    intended: float
    declared_cached: int | None = None


class Watcher:
    """Plays requests on an engine; `clock` is the engine's own, the event loop's."""

    def __init__(self, engine: Engine, clock: Clock, limits: Limits | None = None) -> None:
        self.engine, self.clock, self.limits = engine, clock, limits or Limits()

    async def watch(self, wanted: Wanted) -> Timeline:
        """Send it now. Never raises for what a server does, nor when it is cancelled."""
        sent = self.clock()
        events: list[TokenEvent] = []
        error = ""
        try:
            await self._collect(wanted.request, sent, events)
            ending = self.ending_of(events)
        except CutOff as problem:
            ending, error = Ending.TRUNCATED, str(problem)
        except GaveUp as problem:
            ending, error = Ending.CANCELLED, str(problem)
        except asyncio.CancelledError:
            ending, error = Ending.CANCELLED, INTERRUPTED
        except ServingError as problem:
            ending, error = Ending.FAILED, str(problem)
        except Exception as problem:
            ending, error = Ending.FAILED, f"{type(problem).__name__}: {problem}"
        if ending is Ending.TRUNCATED and not error:
            error = "the stream ended without a finish_reason"
        return self.timeline(wanted, sent, events, ending, error)

    async def _collect(
        self, request: GenerationRequest, sent: float, events: list[TokenEvent]
    ) -> None:
        loop = asyncio.get_running_loop()
        patience = asyncio.timeout(None)
        try:
            async with patience:
                self._wait_from(patience, loop.time(), sent)
                async with aclosing(_closable(self.engine.stream(request))) as stream:
                    async for event in stream:
                        events.append(event)
                        self._wait_from(patience, loop.time(), sent)
        except TimeoutError:
            if patience.expired():
                raise GaveUp(self._gave_up(sent)) from None
            raise

    def _wait_from(self, patience: asyncio.Timeout, now: float, sent: float) -> None:
        """Give the server its time anew."""
        stall, whole = self.limits.stall, self.limits.whole
        ends = [now + stall] if stall is not None else []
        ends += [sent + whole] if whole is not None else []
        if ends:
            patience.reschedule(min(ends))

    def _gave_up(self, sent: float) -> str:
        whole = self.limits.whole
        if whole is not None and self.clock() >= sent + whole:
            return f"not finished after {whole:g} s"
        return f"stalled: no chunk for {self.limits.stall:g} s"

    def ending_of(self, events: list[TokenEvent]) -> Ending:
        """How a stream ended that ended by itself."""
        if any(event.finish_reason for event in events):
            return Ending.COMPLETE
        return Ending.TRUNCATED

    def timeline(
        self,
        wanted: Wanted,
        sent: float | None,
        events: list[TokenEvent],
        ending: Ending,
        error: str,
    ) -> Timeline:
        """What is known now. The end of a complete request is its last chunk."""
        complete = ending is Ending.COMPLETE
        return Timeline(
            request=wanted.request.request,
            prompt_tokens=_last(events, "prompt_tokens") or len(wanted.request.prompt),
            intended=wanted.intended,
            sent=sent,
            events=tuple(events),
            ended=events[-1].time if complete else self.clock(),
            ending=ending,
            error=error,
            declared_cached=wanted.declared_cached,
            output_tokens=_last(events, "output_tokens"),
        )

    def never_sent(self, wanted: Wanted, why: str) -> Timeline:
        """A request that the client did not come to send."""
        return self.timeline(wanted, None, [], Ending.CANCELLED, f"not sent: {why}")


def _last(events: list[TokenEvent], name: str) -> int | None:
    """The newest count of that name, where the engine tells it."""
    told = [value for event in events if (value := getattr(event, name, None)) is not None]
    return told[-1] if told else None


async def _each(stream: AsyncIterator[TokenEvent]) -> Any:
    async for event in stream:
        yield event


def _closable(stream: AsyncIterator[TokenEvent]) -> Any:
    """Generators can be closed; other iterators of an engine need not be."""
    return stream if hasattr(stream, "aclose") else _each(stream)
