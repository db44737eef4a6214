"""Where a pool's slots are while a trace is served in virtual time: all of them, at every moment.

Requests arrive as recorded and wait in order; one that is let in stays for its output tokens times
a fixed duration. Blocks are of the trace's own size, so that a last block lacks what it lacked.
Only prompts are held: what a request generates has no ids.

Every slot (room for one token's KV) is one of

* *filled*: KV of a live request, shared blocks counted once;
* *slack*: the rest of a live request's last block;
* *ahead*: in blocks of a table beyond those that its tokens need;
* *duplicate*: in further blocks with the same KV as another live one;
* *cached*: idle, and able to be hit;
* *leaked*: counted as used by the manager, and in no live table;
* *free*.

Hindsight tells of cached blocks for how long they waited to be hit *again*; the rest of their time
was for nothing. A block is traced by its id: idle when its last table lets go of it, hit when it is
among the first blocks of a new table that the hit covers.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice, tee
from typing import Any

from kvassay.harness.contract import CacheKey, Capability, ContractError, is_out_of_blocks
from kvassay.harness.memory.lengths import ModelShape
from kvassay.harness.registry import Registration
from kvassay.harness.replaying.stream import NoBlocks, PrefixTree
from kvassay.harness.traces.request import TraceRequest
from kvassay.harness.workloads.arrivals import recorded

PARTS = ("filled", "slack", "ahead", "duplicate", "cached", "leaked", "free")
Watch = Callable[[float, dict[str, int]], None]


@dataclass
class Occupancy:
    """Slot-seconds by part, from the first arrival to the last leave."""

    slots: int
    seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    hit_again: float = 0.0
    """Slot-seconds of cached blocks before they were hit; the rest of `cached` was for nothing."""
    requests: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    waited: int = 0
    waited_seconds: float = 0.0
    refused: int = 0
    """Requests that do not fit a pool without live ones."""

    def share(self, part: str) -> float:
        """Of all slot-seconds."""
        return self.parts[part] / (self.slots * self.seconds)

    @property
    def for_nothing(self) -> float:
        """Slot-seconds of cached blocks that were not hit again."""
        return self.parts["cached"] - self.hit_again

    def gib_seconds(self, slot_seconds: float, shape: ModelShape) -> float:
        """GiB times seconds."""
        return slot_seconds * shape.token_bytes / 2**30


@dataclass
class _Live:
    """One request in the pool."""

    tokens: int
    table: list[int]


def occupancy(
    registration: Registration,
    requests: Iterable[TraceRequest],
    num_blocks: int,
    step_seconds: float,
    *,
    watch: Watch | None = None,
) -> Occupancy:
    """Serve `requests` in a pool of `num_blocks`; `watch` sees the slots by part at each change.

    `ContractError` for a manager without COUNTERS, `NoBlocks` for a trace without ids, `ValueError`
    for one without a clock.
    """
    if not registration.declaration.has(Capability.COUNTERS):
        raise ContractError(f"{registration.name} does not declare COUNTERS: it counts no blocks")
    run: _Run | None = None
    served, timed = tee(requests)
    for one, arrival in zip(served, recorded(timed), strict=True):
        if one.blocks is None or one.block_tokens is None:
            raise NoBlocks("expected requests with block ids, got one with lengths alone")
        if run is None:
            run = _Run(registration, num_blocks, one.block_tokens, step_seconds, watch)
        run.arrive(one, arrival)
    if run is None:
        raise NoBlocks("expected requests, got none")
    run.finish()
    return run.totals


class _Run:
    """The clock, the queue, and the pool as the tables show it."""

    def __init__(
        self,
        registration: Registration,
        num_blocks: int,
        block_size: int,
        step_seconds: float,
        watch: Watch | None,
    ) -> None:
        declared = registration.declaration
        self.manager: Any = registration.build(num_blocks=num_blocks, block_size=block_size)
        self.commits = declared.has(Capability.COMMIT)
        self.copies = declared.has(Capability.COPIES)
        self.size, self.step, self.watch = block_size, step_seconds, watch
        self.totals = Occupancy(num_blocks * block_size)
        self.now = 0.0
        self.queue: deque[tuple[float, TraceRequest]] = deque()
        self.prepared: list[int] | None = None  # tokens of the queue's head
        self.tree = PrefixTree()
        self.ends: list[tuple[float, int]] = []
        self.live: dict[int, _Live] = {}
        self.owners: Counter[int] = Counter()  # live tables by block
        self.holders: Counter[int] = Counter()  # live blocks by prefix id
        self.holds: dict[int, int] = {}  # prefix id by live full block
        self.idle_since: dict[int, float] = {}
        self.slack = self.ahead = self.duplicates = self.numbered = 0
        self.parts = self._parts()

    # --------------------------------------------------------------------------------- the clock

    def arrive(self, one: TraceRequest, arrival: float) -> None:
        """A request comes; whoever is to leave before it leaves."""
        while self.ends and self.ends[0][0] <= arrival:
            self._leave()
        self._pass(arrival)
        self.queue.append((arrival, one))
        self._let_in()

    def finish(self) -> None:
        """Nobody comes any more."""
        while self.ends:
            self._leave()

    def _pass(self, until: float) -> None:
        lasted = until - self.now
        totals = self.totals
        totals.seconds += lasted
        for part, slots in self.parts.items():
            totals.parts[part] += slots * lasted
        self.now = until

    # ------------------------------------------------------------------------------- the requests

    def _let_in(self) -> None:
        while self.queue:
            arrival, one = self.queue[0]
            if not self._admit(one):
                if self.live:
                    break
                self.totals.refused += 1
            elif self.now > arrival:
                self.totals.waited += 1
                self.totals.waited_seconds += self.now - arrival
            self.queue.popleft()
            self.prepared = None
        self._changed()

    def _admit(self, one: TraceRequest) -> bool:
        if self.prepared is None:
            self.numbered += 1
            self.prepared = self._tokens(one, self.numbered)
        number, tokens = self.numbered, self.prepared
        name = f"r{number}"
        try:
            hit: int = self.manager.admit(name, CacheKey(tokens))
        except RuntimeError as error:
            if not is_out_of_blocks(error):
                raise
            return False
        if self.copies:
            self.manager.take_copies()
        shared = list(islice(self.manager.block_table(name), hit // self.size))
        if self.commits and hit < len(tokens):
            self.manager.commit(name, len(tokens))
        table = list(self.manager.block_table(name))
        self._taken(_Live(len(tokens), table), self._content(one), shared, number)
        self.totals.requests += 1
        self.totals.prompt_tokens += len(tokens)
        self.totals.hit_tokens += hit
        heapq.heappush(self.ends, (self.now + one.output_tokens * self.step, number))
        return True

    def _tokens(self, one: TraceRequest, number: int) -> list[int]:
        """As long as the prompt; blocks of another id differ in every token, the last is unique."""
        tokens: list[int] = []
        for id in one.blocks or ():
            tokens += [2 * id] * self.size
        tokens += [0] * (one.input_tokens - len(tokens))
        del tokens[one.input_tokens :]
        tokens[-1] = 2 * number + 1
        return tokens

    def _content(self, one: TraceRequest) -> Sequence[int]:
        """Prefix ids of the full blocks, without one that ends with the prompt's unique token."""
        ids = one.full_blocks()[: (one.input_tokens - 1) // self.size]
        return ids if one.prefix_ids else self.tree.numbered(ids)

    def _taken(self, live: _Live, content: Sequence[int], shared: list[int], number: int) -> None:
        for block in shared:
            since = self.idle_since.pop(block, None)
            if since is not None:
                self.totals.hit_again += (self.now - since) * self.size
        needed = -(-live.tokens // self.size)
        self.slack += needed * self.size - live.tokens
        self.ahead += len(live.table) - needed
        for place, block in enumerate(live.table):
            self.idle_since.pop(block, None)
            self.owners[block] += 1
            if self.owners[block] == 1 and place < len(content):
                self._hold(block, content[place])
        self.live[number] = live

    def _hold(self, block: int, content: int) -> None:
        self.holds[block] = content
        self.duplicates += self.holders[content] > 0
        self.holders[content] += 1

    def _leave(self) -> None:
        end, number = heapq.heappop(self.ends)
        self._pass(end)
        live = self.live.pop(number)
        self.manager.release(f"r{number}")
        needed = -(-live.tokens // self.size)
        self.slack -= needed * self.size - live.tokens
        self.ahead -= len(live.table) - needed
        for block in live.table:
            self.owners[block] -= 1
            if not self.owners[block]:
                del self.owners[block]
                self.idle_since[block] = end
                content = self.holds.pop(block, None)
                if content is not None:
                    self.holders[content] -= 1
                    self.duplicates -= self.holders[content] > 0
        self._let_in()

    # ------------------------------------------------------------------------------------ the pool

    def _parts(self) -> dict[str, int]:
        counters, size = self.manager.counters(), self.size
        in_tables = len(self.owners)
        apart = self.slack + (self.ahead + self.duplicates) * size
        return {
            "filled": in_tables * size - apart,
            "slack": self.slack,
            "ahead": self.ahead * size,
            "duplicate": self.duplicates * size,
            "cached": counters.cached * size,
            "leaked": (counters.used - in_tables) * size,
            "free": counters.free * size,
        }

    def _changed(self) -> None:
        self.parts = self._parts()
        if self.watch is not None:
            self.watch(self.now, self.parts)
