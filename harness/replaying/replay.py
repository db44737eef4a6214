"""A stream of prompts through a cache manager: what it hit, refused and evicted.

Each prompt is admitted, committed up to its last full block, and released when `concurrency`
further ones have come, so that the live ones pin their blocks. A prompt that is refused waits for
the oldest live one to leave; one that is refused with nobody live is too large for the pool and is
counted as refused. With ``concurrency=1`` the replay is serial.

What may be hit is what was published by then and not forgotten: the hits of an infinite cache that
sees the same admissions. A hit beyond it is *false*. What it holds and the manager did not count is
*missed*: evicted before, or lost. Only the policy's own count of misses tells which of the two
(`policies`).

Seconds are those spent in the manager's methods; building tokens and counting are left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from kvassay.harness.contract import CacheKey, Capability, Counters, Publish, is_out_of_blocks
from kvassay.harness.registry import Registration
from kvassay.harness.replaying.counts import Counts
from kvassay.harness.replaying.encoding import BLOCK_SIZE, EXTRA_BLOCKS, encoded
from kvassay.harness.replaying.stream import Prompt

Watch = Callable[["Replayed"], None]


@dataclass
class Replayed:
    """Totals of a replay, in blocks; those of refused prompts are in `refused` alone."""

    capacity: int
    concurrency: int
    requests: int = 0
    """Admitted."""
    blocks: int = 0
    hits: int = 0
    ceiling: int = 0
    """Hits of an infinite cache that sees the same admissions."""
    missed: int = 0
    false: int = 0
    refused: int = 0
    """Prompts that were not admitted although nobody was live."""
    refused_blocks: int = 0
    waited: int = 0
    """Prompts that were admitted only after somebody had left before their time."""
    evictions: int | None = None
    """Blocks; None if the manager does not count its blocks."""
    most_used: int | None = None
    """Blocks held by live requests at once."""
    used_share: float | None = None
    """Of the pool, held by live requests: the mean over the admissions."""
    cached_share: float | None = None
    """Of the pool, cached and idle: the mean over the admissions, each seen just after it."""
    seconds: float = 0.0

    @property
    def counts(self) -> Counts:
        """The hits of the admitted prompts."""
        return Counts(self.requests, self.blocks, self.hits)


def replay(
    registration: Registration,
    stream: Iterable[Prompt],
    capacity: int,
    *,
    concurrency: int = 1,
    watch: Watch | None = None,
) -> Replayed:
    """Play `stream` through a new manager for `capacity` blocks; `watch` sees each prompt's end.

    Whatever the manager raises besides ``OOM`` is passed on. `watch` may raise to end the replay.
    """
    if capacity < 1 or concurrency < 1:
        raise ValueError(f"expected at least 1 block and 1 request, got {capacity}, {concurrency}")
    run = _Run(registration, capacity, concurrency)
    for prompt in stream:
        run.play(prompt)
        if watch is not None:
            watch(run.totals)
    run.end()
    return run.totals


class _Run:
    """One manager, the requests that are live in it, and what was counted."""

    def __init__(self, registration: Registration, capacity: int, concurrency: int) -> None:
        declared = registration.declaration
        self.manager: Any = registration.build(
            num_blocks=capacity + EXTRA_BLOCKS, block_size=BLOCK_SIZE
        )
        self.commits = declared.has(Capability.COMMIT)
        self.copies = declared.has(Capability.COPIES)
        self.drains = declared.has(Capability.DRAIN)
        self.at_release = declared.publish is Publish.RELEASE
        self.totals = Replayed(capacity, concurrency)
        self.live: deque[tuple[str, Prompt]] = deque()
        self.published: set[int] = set()
        self.played = 0
        self.pool = _Pool(self.manager, self.totals) if declared.has(Capability.COUNTERS) else None

    def play(self, prompt: Prompt) -> None:
        """One prompt, from its arrival to the moment when the next one may come."""
        totals, number = self.totals, self.played
        self.played += 1
        if len(self.live) >= totals.concurrency:
            self._leave()
        tokens = encoded(prompt, number)
        name, key = f"r{number}", CacheKey(tokens)
        hit = self._admitted(name, key)
        if hit is None:
            totals.refused += 1
            totals.refused_blocks += len(prompt)
            return
        if self.pool is not None:
            self.pool.admitted(len(tokens), hit)
        self._count(prompt, hit)
        full = len(tokens) - 1
        start = perf_counter()
        if self.copies:
            self.manager.take_copies()
        if self.commits and hit < full:
            self.manager.commit(name, full)
        totals.seconds += perf_counter() - start
        self.live.append((name, prompt))
        if not self.at_release:
            self.published.update(prompt)

    def _admitted(self, name: str, key: CacheKey) -> int | None:
        """The hit in tokens, or None if the prompt does not fit an otherwise empty pool."""
        waited = False
        while True:
            if self.pool is not None:
                self.pool.before()
            start = perf_counter()
            try:
                hit: int = self.manager.admit(name, key)
            except RuntimeError as error:
                if not is_out_of_blocks(error):
                    raise
            else:
                self.totals.waited += waited
                return hit
            finally:
                self.totals.seconds += perf_counter() - start
            if self.pool is not None:
                self.pool.refused()
            if not self.live:
                return None
            waited = True
            self._leave()

    def _count(self, prompt: Prompt, hit: int) -> None:
        totals = self.totals
        found = hit // BLOCK_SIZE
        ceiling = next((n for n, id in enumerate(prompt) if id not in self.published), len(prompt))
        totals.requests += 1
        totals.blocks += len(prompt)
        totals.hits += found
        totals.ceiling += ceiling
        totals.missed += max(0, ceiling - found)
        totals.false += max(0, found - ceiling)

    def _leave(self) -> None:
        name, prompt = self.live.popleft()
        start = perf_counter()
        self.manager.release(name)
        if self.drains:
            self.manager.drain()
        self.totals.seconds += perf_counter() - start
        if self.at_release:
            self.published.update(prompt)

    def end(self) -> None:
        """Everybody leaves."""
        while self.live:
            self._leave()


class _Pool:
    """Evictions and the state of the pool, from the manager's own counters.

    An admission takes fresh blocks for what it did not hit, and what was evicted for it was free
    for a moment: so evictions are what is free afterwards and what was taken, less what was free
    before.
    """

    def __init__(self, manager: Any, totals: Replayed) -> None:
        self.manager, self.totals = manager, totals
        self.free = 0
        self.used = self.cached = self.seen = 0
        totals.evictions = totals.most_used = 0

    def before(self) -> None:
        """Just before an admission is tried."""
        self.free = self.manager.counters().free

    def refused(self) -> None:
        """Just after it was refused, for which something may have been evicted."""
        self._evicted(self.manager.counters().free - self.free)

    def admitted(self, tokens: int, hit: int) -> None:
        """Just after it succeeded."""
        now: Counters = self.manager.counters()
        totals = self.totals
        taken = -(-tokens // BLOCK_SIZE) - hit // BLOCK_SIZE
        self._evicted(now.free + taken - self.free)
        totals.most_used = max(totals.most_used or 0, now.used)
        self.used += now.used
        self.cached += now.cached
        self.seen += now.free + now.cached + now.used
        totals.used_share = self.used / self.seen
        totals.cached_share = self.cached / self.seen

    def _evicted(self, blocks: int) -> None:
        self.totals.evictions = (self.totals.evictions or 0) + max(0, blocks)
