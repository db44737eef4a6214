"""The yardstick: operations and arguments drawn uniformly, knowing only who is live.

This is what a first random test of a cache looks like. It rarely meets the states in which
caches break; the generator is measured against it.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from kvassay.harness.checker import Checker
from kvassay.harness.contract import CacheKey, Capability, Outcome
from kvassay.harness.scenario import (
    Admit,
    Append,
    Commit,
    Evict,
    Fork,
    Operation,
    Release,
    Reset,
    Truncate,
)

ALPHABET = 4
NAMES = (None, "a", "b")


def uniform(rng: Random, checker: Checker) -> Iterator[Operation]:
    """An endless supply of uniformly drawn operations."""
    has = checker.has
    kinds = ["admit", "append", "release"]
    kinds += ["commit"] if checker.commits else []
    for capability, kind in (
        (Capability.FORK, "fork"),
        (Capability.TRUNCATE, "truncate"),
        (Capability.EVICT, "evict"),
        (Capability.RESET, "reset"),
    ):
        kinds += [kind] if has(capability) else []
    count = 0
    while True:
        count += 1
        yield _one(rng, checker, rng.choice(kinds), count)


def _one(rng: Random, checker: Checker, kind: str, count: int) -> Operation:
    model = checker.model
    capacity = model.num_blocks * model.block_size
    live = list(model.live)
    name = rng.choice(live) if live else "nobody"
    if kind == "admit" or not live:
        salt = rng.choice(NAMES) if checker.has(Capability.SALT) else None
        adapter = rng.choice(NAMES) if checker.has(Capability.ADAPTER) else None
        return Admit(f"u{count}", CacheKey(_tokens(rng, rng.randint(1, capacity)), salt, adapter))
    length = model.live[name].length
    if kind == "append":
        return Append(name, _tokens(rng, rng.randint(1, model.block_size)))
    if kind == "commit":
        return Commit(name, rng.randint(1, max(1, length)))
    if kind == "fork":
        return Fork(name, (f"u{count}",))
    if kind == "truncate":
        return Truncate(name, rng.randint(1, max(1, length)))
    if kind == "evict":
        return Evict(rng.randint(1, model.num_blocks))
    if kind == "reset":
        return Reset()
    return Release(name, rng.choice(tuple(Outcome)))


def _tokens(rng: Random, count: int) -> tuple[int, ...]:
    return tuple([rng.randrange(ALPHABET) for _ in range(count)])
