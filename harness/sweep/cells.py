"""One cell of a sweep: a trace, a block size and a capacity, through a policy or a manager.

A cell is counted, not timed: its result is the same on every machine and with any number of
workers. Capacity is in tokens, so that block sizes compare; hits are in tokens, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import islice, product
from typing import Any

from kvassay.harness.contract import CacheManager
from kvassay.harness.registry import Registration, find
from kvassay.harness.replaying.counts import Counts
from kvassay.harness.replaying.optimum import optimum
from kvassay.harness.replaying.policies import flat_lru, infinite, leaf_lru
from kvassay.harness.replaying.replay import replay
from kvassay.harness.replaying.stream import Prompt
from kvassay.harness.sweep.resizing import resized
from kvassay.harness.traces.finding import requests

POLICIES: Mapping[str, Callable[[Sequence[Prompt], int], Counts]] = {
    "lru": flat_lru,
    "leaf-lru": leaf_lru,
    "optimum": optimum,
    "infinite": lambda stream, capacity: infinite(stream),
}
"""What needs no implementation; `infinite` has no capacity."""


class BadGrid(ValueError):
    """A sweep that cannot be made; says what was expected."""


@dataclass(frozen=True, order=True)
class Cell:
    """What is counted."""

    trace: str
    block_size: int
    """Tokens."""
    capacity: int
    """Tokens; a pool has as many whole blocks."""
    policy: str = ""
    """One of `POLICIES`; empty for an implementation."""
    impl: str = ""
    concurrency: int = 1
    """Live requests, of an implementation."""
    limit: int = 0
    """Requests of the trace; 0 for all."""

    @property
    def key(self) -> str:
        """Its name in a file of results."""
        return " ".join(f"{part.name}={getattr(self, part.name)}" for part in fields(self))


@dataclass(frozen=True)
class Counted:
    """What came of a cell."""

    requests: int
    refused: int
    prompt_tokens: int
    """Of all requests, refused ones included."""
    hit_tokens: int
    evicted_blocks: int | None
    """None for a policy, or a manager that does not tell."""

    @property
    def hit_rate(self) -> float:
        """Of the prompts' tokens."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def grid(
    traces: Sequence[str],
    block_sizes: Sequence[int],
    capacities: Sequence[int],
    policies: Sequence[str],
    impls: Sequence[str],
    *,
    concurrency: int = 1,
    limit: int = 0,
) -> list[Cell]:
    """All cells, in their order; `BadGrid` for an empty grid or a policy that there is not."""
    for policy in policies:
        if policy not in POLICIES:
            raise BadGrid(f"policy: expected one of {', '.join(POLICIES)}, got {policy!r}")
    cells = [
        Cell(trace, size, capacity, policy=policy, limit=limit)
        for trace, size, capacity, policy in product(traces, block_sizes, capacities, policies)
    ]
    cells += [
        Cell(trace, size, capacity, impl=impl, concurrency=concurrency, limit=limit)
        for trace, size, capacity, impl in product(traces, block_sizes, capacities, impls)
    ]
    if not cells:
        raise BadGrid("expected at least one trace, block size, capacity, and policy or impl")
    for cell in cells:
        if cell.capacity < cell.block_size:
            raise BadGrid(f"capacity {cell.capacity}: expected at least a block, {cell.block_size}")
    return sorted(set(cells))


def count(cell: Cell) -> Counted:
    """Play a cell. Raises what the trace, the policy or the manager raises."""
    tokens: list[int] = []
    stream = list(_prompts(cell, tokens))
    blocks = cell.capacity // cell.block_size
    if cell.policy:
        found = POLICIES[cell.policy](stream, blocks)
        hits = found.hits * cell.block_size
        return Counted(found.requests, 0, sum(tokens), hits, None)
    seen = replay(_manager(cell.impl), stream, blocks, concurrency=cell.concurrency)
    hits = seen.hits * cell.block_size
    return Counted(seen.requests, seen.refused, sum(tokens), hits, seen.evictions)


def _prompts(cell: Cell, tokens: list[int]) -> Iterator[Prompt]:
    every = requests(cell.trace)
    for prompt, length in resized(islice(every, cell.limit or None), cell.block_size):
        tokens.append(length)
        yield prompt


def _manager(reference: str) -> Registration:
    found = [one for one in find(reference) if one.kind is CacheManager]
    if len(found) != 1:
        names = ", ".join(one.name for one in found) or "none"
        raise BadGrid(f"impl {reference!r}: expected one CacheManager, got {names}")
    return found[0]


def as_dict(cell: Cell, counted: Counted) -> dict[str, Any]:
    """Plain data, for a file."""
    return {**asdict(cell), **asdict(counted)}
