"""A request sent to an engine, and what came of it.

An engine is known by its stream alone. What it refuses (`ValueError`) is told apart from what it
ends early and from what it fails with; who waits longer than `patience` is told to be stuck.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from enum import StrEnum

from kvassay.harness.contract import Engine, GenerationRequest, TokenEvent

PATIENCE = 60.0
"""Seconds for all requests of a batch."""


class End(StrEnum):
    """How a request ended."""

    DONE = "done"
    """With all tokens that were asked for, or behind the model's own end."""
    EARLY = "ended early"
    """With fewer, and a reason."""
    REFUSED = "refused"
    FAILED = "failed"
    LEFT = "left"
    """Its client went away."""
    STUCK = "stuck"


@dataclass
class Told:
    """What a client saw of its request."""

    request: GenerationRequest
    end: End = End.STUCK
    why: str = ""
    """The reason or the error, as the engine put it."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """Of each token, where the engine tells them."""
    cached: int | None = None
    """Tokens of the prompt that the engine says it found."""
    strangers: set[str] = field(default_factory=set)
    """Names in its events that are not its own."""
    first: float | None = None
    """Monotonic seconds of its first token, as it came here."""
    last: float | None = None

    @property
    def name(self) -> str:
        """Of the request."""
        return self.request.request

    @property
    def answered(self) -> bool:
        """Whether it got all that it asked for."""
        return self.end is End.DONE

    def __str__(self) -> str:
        asked = f"{len(self.request.prompt)} tokens, {self.request.max_tokens} to come"
        why = f" ({self.why})" if self.why else ""
        return f"{self.name} ({asked}) {self.end} with {len(self.tokens)}{why}"


async def ask(
    engine: Engine,
    request: GenerationRequest,
    told: Told,
    *,
    leave: int | None = None,
    patience: float = PATIENCE,
) -> None:
    """Stream one request into `told`; with `leave` its client goes after so many tokens.

    A stream that goes on for `patience` seconds is left, stuck, even if it never waits.
    """
    deadline = time.monotonic() + patience
    try:
        async with aclosing(engine.stream(request)) as events:  # type: ignore[type-var]
            async for event in events:
                _note(told, event)
                if time.monotonic() > deadline:
                    return
                if leave is not None and len(told.tokens) >= leave:
                    told.end = End.LEFT
                    return
    except ValueError as error:
        told.end, told.why = End.FAILED if told.tokens else End.REFUSED, str(error)
    except Exception as error:
        told.end, told.why = End.FAILED, f"{type(error).__name__}: {error}"
    else:
        told.end = End.DONE if _complete(told) else End.EARLY
        if told.end is End.EARLY and not told.why:
            told.why = "its stream just ended"


def _note(told: Told, event: TokenEvent) -> None:
    if event.request != told.name:
        told.strangers.add(event.request)
    if event.tokens:
        told.last = time.monotonic()
        told.first = told.last if told.first is None else told.first
    told.tokens += event.tokens
    told.logprobs += event.logprobs or ()
    if event.cached_tokens is not None:
        told.cached = event.cached_tokens
    if event.finish_reason is not None:
        told.why = event.finish_reason


def _complete(told: Told) -> bool:
    return len(told.tokens) >= told.request.max_tokens or told.why == "stop"


@dataclass(frozen=True)
class Sending:
    """A request, when it goes, and when its client does."""

    request: GenerationRequest
    after: float = 0.0
    """Seconds."""
    leave: int | None = None
    """Tokens after which its client goes away."""


def sent(engine: Engine, sendings: Sequence[Sending], patience: float = PATIENCE) -> list[Told]:
    """All of them side by side; those that are unfinished after `patience` seconds are stuck."""
    told = [Told(each.request) for each in sendings]

    async def one(sending: Sending, into: Told) -> None:
        await asyncio.sleep(sending.after)
        await ask(engine, sending.request, into, leave=sending.leave, patience=patience)

    async def everything() -> None:
        tasks = [asyncio.create_task(one(*pair)) for pair in zip(sendings, told, strict=True)]
        _, late = await asyncio.wait(tasks, timeout=patience)
        for task in late:
            task.cancel()
        for task in late:
            with suppress(asyncio.CancelledError):
                await task

    asyncio.run(everything())
    return told
