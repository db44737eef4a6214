"""A pool that is always full: how many requests fit, and where its slots are.

All requests are in the queue from the start, in the order of their trace, and the first one is let
in as soon as it fits; each generates one token per step. Contiguous runs are placed into the first
hole that is long enough. Blocks are taken as they are needed: where none is left, the request that
came last gives all of its up and goes back to the head of the queue, with what it has generated as
part of its prompt (its being computed again takes no time here, and is counted).

What is free while the queue's head does not fit is *free*: with runs, holes that are too short.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass

import numpy as np

from kvassay.harness.memory.lengths import Lengths
from kvassay.harness.memory.reserving import Contiguous, Paged, Policy, Use


@dataclass(frozen=True)
class Saturated:
    """Means over the steps until the queue was empty."""

    pool: int
    """Slots."""
    steps: int
    use: Use
    """Slot-steps of what was held."""
    request_steps: int
    preempted: int
    recomputed: int
    """Tokens that preempted requests had, and that are computed again."""
    unfit: int
    """Requests that do not fit an empty pool, and were left out."""

    @property
    def live(self) -> float:
        """Requests at a time."""
        return self.request_steps / self.steps

    def share(self, slot_steps: int) -> float:
        """Of the pool."""
        return slot_steps / (self.pool * self.steps)

    @property
    def free(self) -> float:
        """The share of the pool that nobody held."""
        return 1 - self.share(self.use.held)


def saturate(policy: Policy, lengths: Lengths, limit: int, pool: int) -> Saturated:
    """Play the queue through `pool` slots; `ValueError` if no request fits."""
    if isinstance(policy, Paged):
        return _Blocks(policy, lengths, pool).play()
    return _runs(policy, lengths, limit, pool)


# -------------------------------------------------------------------------------------------- runs


class _Holes:
    """Free slots as runs, by their start."""

    def __init__(self, size: int) -> None:
        self._starts, self._sizes = [0], [size]

    def take(self, size: int) -> int | None:
        """The start of a run in the first hole that is long enough."""
        for place, free in enumerate(self._sizes):
            if free >= size:
                start = self._starts[place]
                if free == size:
                    del self._starts[place], self._sizes[place]
                else:
                    self._starts[place] += size
                    self._sizes[place] -= size
                return start
        return None

    def give(self, start: int, size: int) -> None:
        """Put a run back, joined with its neighbours."""
        place = bisect_left(self._starts, start)
        self._starts.insert(place, start)
        self._sizes.insert(place, size)
        for left in (place, place - 1):
            if 0 <= left < len(self._starts) - 1:
                end = self._starts[left] + self._sizes[left]
                if end == self._starts[left + 1]:
                    self._sizes[left] += self._sizes[left + 1]
                    del self._starts[left + 1], self._sizes[left + 1]


def _runs(policy: Contiguous, lengths: Lengths, limit: int, pool: int) -> Saturated:
    reserved = policy.reserve(lengths, limit)
    fits = [int(place) for place in np.flatnonzero(reserved <= pool)]
    _require(len(fits))
    queue, holes = deque(fits), _Holes(pool)
    ends: list[tuple[int, int, int]] = []  # last step, request, start of its run
    now = filled = held = final = 0
    total = {"filled": 0, "held": 0, "final": 0, "live": 0}
    while queue:
        while queue and (start := holes.take(int(reserved[queue[0]]))) is not None:
            one = queue.popleft()
            heapq.heappush(ends, (now + int(lengths.output[one]), one, start))
            filled += int(lengths.prompt[one])
            held += int(reserved[one])
            final += int(lengths.final[one])
        if not queue:
            break
        steps, live = ends[0][0] - now, len(ends)
        total["filled"] += filled * steps + live * steps * (steps + 1) // 2
        total["held"] += held * steps
        total["final"] += final * steps
        total["live"] += live * steps
        filled += live * steps
        now += steps
        while ends and ends[0][0] == now:
            _, one, start = heapq.heappop(ends)
            holes.give(start, int(reserved[one]))
            filled -= int(lengths.final[one])
            held -= int(reserved[one])
            final -= int(lengths.final[one])
    later = total["final"] - total["filled"]
    use = Use(total["filled"], later, total["held"] - total["final"])
    unfit = len(reserved) - len(fits)
    return Saturated(pool, max(now, 1), use, total["live"], 0, 0, unfit)


# ------------------------------------------------------------------------------------------ blocks


class _Blocks:
    """Live requests as arrays, in the order in which they came."""

    def __init__(self, policy: Paged, lengths: Lengths, pool: int) -> None:
        self.policy, self.pool = policy, pool
        self.blocks = pool // policy.block_size
        fits = policy.blocks(lengths.final) <= self.blocks
        _require(int(fits.sum()))
        self.unfit = len(fits) - int(fits.sum())
        pairs = zip(lengths.prompt[fits], lengths.output[fits], strict=True)
        self.queue = deque((int(prompt), int(output)) for prompt, output in pairs)
        self.length = np.empty(0, dtype=np.int64)
        self.left = np.empty(0, dtype=np.int64)
        self.steps = self.filled = self.held = self.never = self.request_steps = 0
        self.preempted = self.recomputed = 0

    def play(self) -> Saturated:
        """Until everybody has been let in."""
        while True:
            self._let_in()
            if not self.queue:
                break
            self._advance()
        use = Use(self.filled, self.held - self.filled - self.never, self.never)
        steps = max(self.steps, 1)
        again = (self.preempted, self.recomputed)
        return Saturated(self.pool, steps, use, self.request_steps, *again, self.unfit)

    def _free(self) -> int:
        return self.blocks - int(self.policy.blocks(self.length).sum())

    def _let_in(self) -> None:
        free, came = self._free(), []
        while self.queue:
            need = -(-self.queue[0][0] // self.policy.block_size)
            if need > free:
                break
            free -= need
            came.append(self.queue.popleft())
        if came:
            new = np.array(came, dtype=np.int64)
            self.length = np.concatenate([self.length, new[:, 0]])
            self.left = np.concatenate([self.left, new[:, 1]])

    def _advance(self) -> None:
        """As many steps as pass before somebody leaves or a block is missing; at least one."""
        steps = int(self.left.min())
        while self._lacking(steps):
            if steps > 1:
                steps //= 2
                continue
            self.preempted += 1
            self.recomputed += int(self.length[-1])
            self.queue.appendleft((int(self.length[-1]), int(self.left[-1])))
            self.length, self.left = self.length[:-1], self.left[:-1]
            steps = 1
        self._account(steps)
        self.length = self.length + steps
        self.left = self.left - steps
        stays = self.left > 0
        self.length, self.left = self.length[stays], self.left[stays]

    def _lacking(self, steps: int) -> bool:
        return int(self.policy.blocks(self.length + steps).sum()) > self.blocks

    def _account(self, steps: int) -> None:
        size, length = self.policy.block_size, self.length
        up_to = self.policy.slots_up_to
        self.steps += steps
        self.request_steps += steps * len(length)
        self.filled += int((steps * length + steps * (steps + 1) // 2).sum())
        self.held += int((up_to(length + steps) - up_to(length)).sum())
        # In its last block a request holds slots that it never fills.
        final = length + self.left
        start = (self.policy.blocks(final) - 1) * size
        inside = np.clip(length + steps - np.maximum(start, length), 0, None)
        self.never += int(((start + size - final) * inside).sum())


def _require(fitting: int) -> None:
    if not fitting:
        raise ValueError("pool: expected one that holds a request, but none fits")
