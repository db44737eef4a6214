"""A request sent to an engine, and what came of it.

An engine is known by its stream alone. What it refuses (`ValueError`) is told apart from what it
ends early and from what it fails with; who waits while nothing comes to anybody is stuck.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field, replace
from enum import StrEnum

from kvassay.harness.contract import Engine, GenerationRequest, TokenEvent

PATIENCE = 60.0
"""Seconds without a token for anybody, after which who waits is stuck."""
LONGEST = 300
"""Characters of what an engine says."""
GRACE = 1.0
"""Seconds for what is to end."""


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
    logprobs: list[float | None] = field(default_factory=list)
    """Of each token, where the engine tells them."""
    cached: int | None = None
    """Tokens of the prompt that the engine says it found."""
    strangers: set[str] = field(default_factory=set)
    """Names in its events that are not its own."""
    asked: float = math.inf
    """Monotonic seconds when it was sent."""
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
        events = engine.stream(request)
        try:
            async for event in events:
                _note(told, event)
                if time.monotonic() > max(deadline, (told.last or 0) + patience):
                    return
                if len(told.tokens) > request.max_tokens:
                    return
                if leave is not None and len(told.tokens) >= leave and not _complete(told):
                    told.end = End.LEFT
                    return
        finally:
            if hasattr(events, "aclose"):  # an iterator need not have it
                await events.aclose()
    except ValueError as error:
        told.end, told.why = End.FAILED if told.tokens else End.REFUSED, _plain(str(error))
    except Exception as error:
        told.end, told.why = End.FAILED, _plain(f"{type(error).__name__}: {error}")
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
    # One for each token, as far as the engine tells them.
    none = [None] * len(event.tokens)
    told.logprobs += none if event.logprobs is None else event.logprobs
    if event.cached_tokens is not None:
        told.cached = event.cached_tokens
    if event.finish_reason is not None:
        told.why = _plain(event.finish_reason)


def _plain(text: object) -> str:
    """What an engine says, as it may stand in a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))[:LONGEST]


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


class Asking:
    """An event loop in a thread of its own, for all that one engine is ever asked.

    An engine may keep tasks in the loop in which it was first asked. One that blocks the loop or
    does not let itself be cancelled holds up its thread, and not whoever asks.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="asking", daemon=True)
        self._thread.start()

    def sent(
        self, engine: Engine, sendings: Sequence[Sending], patience: float = PATIENCE
    ) -> list[Told]:
        """All of them side by side; who waits while nothing comes to anybody is stuck."""
        told = [Told(each.request) for each in sendings]

        async def one(sending: Sending, into: Told) -> None:
            await asyncio.sleep(sending.after)
            into.asked = time.monotonic()
            await ask(engine, sending.request, into, leave=sending.leave, patience=patience)

        async def everything() -> None:
            pairs = zip(sendings, told, strict=True)
            found = await asyncio.gather(*(one(*p) for p in pairs), return_exceptions=True)
            for into, error in zip(told, found, strict=True):
                if error is not None:
                    into.end = End.FAILED
                    into.why = _plain(f"{type(error).__name__}: {error}")

        start = time.monotonic()
        done = asyncio.run_coroutine_threadsafe(everything(), self._loop)
        while not done.done():
            newest = max([start, *(each.last for each in told if each.last is not None)])
            if time.monotonic() > newest + patience:
                done.cancel()
                time.sleep(GRACE)  # for those who let themselves be cancelled
                break
            wait([done], timeout=min(0.5, patience))
        return [replace(each, tokens=[*each.tokens], logprobs=[*each.logprobs]) for each in told]

    def close(self) -> None:
        """End the thread, if nobody holds it up."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(GRACE)
        if not self._thread.is_alive():
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.close()
