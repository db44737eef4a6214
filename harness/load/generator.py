"""Load: every request is sent at its time, whatever became of those before, and none is lost.

In the open loop nothing waits for the server: each request is a task of its own, and its latency
counts from the time that the arrival process gave it. A client that allows itself only so many
requests at a time (`at_once`) makes them wait, and the wait is in their latency. In the closed loop
a request is intended when a client is free for it and what it answers is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from kvassay.harness.contract import GenerationRequest
from kvassay.harness.load.watching import INTERRUPTED, Wanted, Watcher
from kvassay.harness.metrics.timeline import Timeline
from kvassay.harness.serving.waiting import exactly, until
from kvassay.harness.workloads.closed_loop import ClosedLoop
from kvassay.harness.workloads.plan import Planned, Workload

Told = Callable[[Timeline], None]
LEAD = 0.0625
"""Seconds before the first request, in which tasks can be made."""


def _nothing(timeline: Timeline) -> None:
    """Nobody listens."""


@dataclass(frozen=True)
class Sent:
    """What became of a load: one timeline per request, in the order of the load."""

    timelines: tuple[Timeline, ...]
    interrupted: bool = False


def wanted(one: Planned, intended: float, declared: int | None = None) -> Wanted:
    """A planned request at its time."""
    request = GenerationRequest(one.name, one.prompt, max(len(one.output), 1))
    return Wanted(request, intended, declared)


class Generator:
    """Sends loads through a watcher, and tells each timeline as it ends."""

    def __init__(
        self, watcher: Watcher, *, at_once: int | None = None, told: Told = _nothing
    ) -> None:
        if at_once is not None and at_once < 1:
            raise ValueError(f"at_once: expected at least 1, got {at_once}")
        self.watcher, self.told = watcher, told
        self.at_once = at_once
        self._slots: Any = nullcontext()

    async def open(
        self,
        requests: Sequence[Planned],
        times: Sequence[float],
        declared: Sequence[int | None] | None = None,
    ) -> Sent:
        """Send each at its time, in seconds from the beginning; times must not go back.

        Being cancelled ends the run, not the results: what is live is given up, what was not sent
        is said so. `ValueError` for requests that need answers of others.
        """
        _require_independent(requests)
        begin = self.watcher.clock() + LEAD
        hits = declared or [None] * len(requests)
        load = [
            wanted(one, begin + time, hit)
            for one, time, hit in zip(requests, times, hits, strict=True)
        ]
        return await self._gathered(load, self._send_all)

    async def closed(
        self, workload: Workload, clients: int, declared: Sequence[int | None] | None = None
    ) -> Sent:
        """At most `clients` requests at a time, each when its answers are there, after thought.

        A request that fails counts as answered: its client goes on.
        """
        begin = self.watcher.clock() + LEAD
        hits = declared or [None] * len(workload.requests)
        by_name = {
            one.name: wanted(one, begin, hit)
            for one, hit in zip(workload.requests, hits, strict=True)
        }
        loop = ClosedLoop(workload, clients)

        async def send_all(load: list[Wanted], tasks: dict[str, asyncio.Task[Timeline]]) -> None:
            await until(begin)
            answered: asyncio.Queue[str] = asyncio.Queue()
            while not loop.done:
                now = self.watcher.clock()
                for one in loop.start(now - begin):
                    known = by_name[one.name]
                    task = self._task(Wanted(known.request, now, known.declared_cached))
                    task.add_done_callback(partial(_answered, answered, one.name))
                    tasks[one.name] = task
                name = await self._next_answer(answered, loop.next_start(), begin)
                if name is not None:
                    loop.answer(name, self.watcher.clock() - begin)

        return await self._gathered(list(by_name.values()), send_all)

    async def _next_answer(
        self, answered: asyncio.Queue[str], start: float | None, begin: float
    ) -> str | None:
        """Whoever is answered next; None if a request can be sent before."""
        try:
            async with asyncio.timeout_at(None if start is None else begin + start):
                return await answered.get()
        except TimeoutError:
            return None

    # ------------------------------------------------------------------------------------- sending

    async def _gathered(self, load: list[Wanted], send: Any) -> Sent:
        _require_distinct([one.request.request for one in load])
        self._slots = asyncio.Semaphore(self.at_once) if self.at_once else nullcontext()
        tasks: dict[str, asyncio.Task[Timeline]] = {}
        interrupted = False
        try:
            await send(load, tasks)
            await asyncio.gather(*tasks.values())
        except asyncio.CancelledError:
            interrupted = True
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        timelines = tuple(self._result(one, tasks.get(one.request.request)) for one in load)
        return Sent(timelines, interrupted)

    def _result(self, one: Wanted, task: asyncio.Task[Timeline] | None) -> Timeline:
        if task is None or task.cancelled():  # cancelled before its first step
            return self.watcher.never_sent(one, INTERRUPTED)
        return task.result()

    async def _send_all(self, load: list[Wanted], tasks: dict[str, asyncio.Task[Timeline]]) -> None:
        for one in load:
            await exactly(one.intended)
            tasks[one.request.request] = self._task(one)

    def _task(self, one: Wanted) -> asyncio.Task[Timeline]:
        return asyncio.get_running_loop().create_task(self._send(one))

    async def _send(self, one: Wanted) -> Timeline:
        try:
            async with self._slots:
                timeline = await self.watcher.watch(one)
        except asyncio.CancelledError:  # while it waited for its turn
            timeline = self.watcher.never_sent(one, INTERRUPTED)
        self.told(timeline)
        return timeline


def _answered(queue: asyncio.Queue[str], name: str, task: asyncio.Task[Timeline]) -> None:
    queue.put_nowait(name)


def _require_independent(requests: Sequence[Planned]) -> None:
    for one in requests:
        if one.after:
            raise ValueError(
                f"{one.name}: needs the answers of {', '.join(one.after)}: expected a closed loop"
            )


def _require_distinct(names: list[str]) -> None:
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"expected a name of its own for each request, got {twice!r} twice")
