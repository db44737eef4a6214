"""Traffic through an engine that has a watch inside, step by step, in one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass, field
from typing import Protocol

from kvassay.harness.contract import CacheKey
from kvassay.harness.inside.traffic import Traffic, Wanted

PATIENCE = 2000
"""Steps without a token after which an engine is given up."""
TURN = 40
"""Steps after which another number of requests is let in at once."""


@dataclass(frozen=True)
class Answer:
    """What a step brought one request."""

    request: str
    tokens: tuple[int, ...]
    finished: bool


class Engine(Protocol):
    """What is stepped; its backend tells the watch what it does."""

    def submit(self, wanted: Wanted) -> None:
        """Take in a request."""
        ...

    def abort(self, request: str) -> None:
        """Forget a request."""
        ...

    def step(self) -> Iterable[Answer]:
        """Schedule, compute, answer."""
        ...


class Onlooker(Protocol):
    """Who is told what callers ask for and get: a `Watch`, or nobody."""

    @property
    def convictions(self) -> Sized:
        """Of requests."""
        ...

    def submitted(self, request: str, key: CacheKey) -> None:
        """A caller asks for this."""
        ...

    def received(self, request: str, tokens: Sequence[int]) -> None:
        """The caller got these tokens."""
        ...

    def left(self, request: str, *, aborted: bool = False) -> None:
        """The request is finished, or was aborted by its caller."""
        ...


class Nobody:
    """Does not listen: what an engine takes by itself."""

    convictions: Sized = ()

    def submitted(self, request: str, key: CacheKey) -> None:
        """Nothing."""

    def received(self, request: str, tokens: Sequence[int]) -> None:
        """Nothing."""

    def left(self, request: str, *, aborted: bool = False) -> None:
        """Nothing."""


class Stuck(RuntimeError):
    """An engine that has requests and brings no tokens."""


@dataclass
class _Live:
    wanted: Wanted
    left: int | None
    """Steps until it is aborted."""
    output: list[int] = field(default_factory=list)


def play(
    engine: Engine,
    watch: Onlooker,
    traffic: Traffic,
    requests: int,
    *,
    together: int = 16,
    to_the_first: bool = False,
    tell: Callable[[int], None] = lambda _: None,
) -> None:
    """Make so many requests, at most `together` at once, and wait for all of them.

    With `to_the_first`, only until a request is convicted. `Stuck` if nothing comes any more.
    `tell` hears how many have left, step by step.
    """
    live: dict[str, _Live] = {}
    drawn = silent = step = 0
    limit = together
    while drawn < requests or live:
        limit = limit if step % TURN else traffic.among(together)
        while drawn < requests and len(live) < limit:
            wanted = traffic.draw()
            watch.submitted(wanted.name, wanted.key)
            engine.submit(wanted)
            live[wanted.name] = _Live(wanted, wanted.aborted_after)
            drawn += 1
        silent = 0 if _step(engine, watch, traffic, live) else silent + 1
        step += 1
        tell(drawn - len(live))
        if to_the_first and watch.convictions:
            return
        if silent > PATIENCE:
            raise Stuck(f"no token in {silent} steps for {len(live)} requests")


def _step(engine: Engine, watch: Onlooker, traffic: Traffic, live: dict[str, _Live]) -> bool:
    """One step; whether it brought anything."""
    came = False
    for answer in engine.step():
        one = live.get(answer.request)
        if one is None:
            continue
        came = True
        watch.received(answer.request, answer.tokens)
        one.output += answer.tokens
        if answer.finished:
            watch.left(answer.request)
            traffic.answered([*one.wanted.key.tokens, *one.output])
            del live[answer.request]
    return _abort(engine, watch, live) or came


def _abort(engine: Engine, watch: Onlooker, live: dict[str, _Live]) -> bool:
    """Give up those whose callers do; whether there were any."""
    for one in live.values():
        one.left = None if one.left is None else one.left - 1
    impatient = [name for name, one in live.items() if one.left == 0]
    for name in impatient:
        engine.abort(name)
        watch.left(name, aborted=True)
        del live[name]
    return bool(impatient)
