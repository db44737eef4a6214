"""Closed loop: a request starts when what it answers is there, after thought, by a free client.

Whoever plays it keeps the time, in seconds, and says when answers came; it must not go back. Load
that waits for answers slows down with the system that it measures: a queue that would grow in the
open loop is not seen.
"""

from __future__ import annotations

import heapq

from kvassay.harness.workloads.plan import Planned, Workload


class ClosedLoop:
    """At most `clients` requests at a time, in the order in which they become ready."""

    def __init__(self, workload: Workload, clients: int) -> None:
        if clients < 1:
            raise ValueError(f"clients: expected at least 1, got {clients}")
        self._requests = workload.requests
        self._free = clients
        self._live: set[str] = set()
        self._answered: set[str] = set()
        self._waiting: dict[str, list[int]] = {}  # by the request whose answer is missing
        self._missing: list[int] = []
        self._ready: list[tuple[float, int]] = []  # when, and which
        for number, one in enumerate(self._requests):
            self._missing.append(len(set(one.after)))
            for name in set(one.after):
                self._waiting.setdefault(name, []).append(number)
            if not one.after:
                heapq.heappush(self._ready, (one.think_time, number))

    def start(self, now: float) -> list[Planned]:
        """The requests that are to be sent at this moment."""
        sent = []
        while self._free and self._ready and self._ready[0][0] <= now:
            one = self._requests[heapq.heappop(self._ready)[1]]
            self._free -= 1
            self._live.add(one.name)
            sent.append(one)
        return sent

    def next_start(self) -> float | None:
        """When the next one can be sent if no answer comes; None if it takes an answer."""
        return self._ready[0][0] if self._free and self._ready else None

    def answer(self, name: str, now: float) -> None:
        """A request has been answered in full; `KeyError` for one that is not live."""
        if name not in self._live:
            raise KeyError(f"{name!r} is not live; expected one of {sorted(self._live)}")
        self._live.remove(name)
        self._answered.add(name)
        self._free += 1
        for number in self._waiting.pop(name, ()):
            self._missing[number] -= 1
            if not self._missing[number]:
                heapq.heappush(self._ready, (now + self._requests[number].think_time, number))

    @property
    def done(self) -> bool:
        """Whether all requests have been answered."""
        return len(self._answered) == len(self._requests)
