"""The yardstick for indexes: operations and arguments drawn uniformly, as in `harness.uniform`."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from kvassay.harness.contract import CacheKey, Capability
from kvassay.harness.index.checker import IndexChecker
from kvassay.harness.index.scenario import Evict, Insert, Lock, Match, Operation, Unlock
from kvassay.harness.scenario import Reset
from kvassay.harness.uniform import ALPHABET, NAMES

PAGES = 4
"""Pages of the longest key where there is no limit."""


def uniform(rng: Random, checker: IndexChecker) -> Iterator[Operation]:
    """An endless supply of uniformly drawn operations."""
    kinds = ["match", "insert"]
    for capability, more in (
        (Capability.LOCK, ["lock", "unlock"]),
        (Capability.EVICT, ["evict"]),
        (Capability.RESET, ["reset"]),
    ):
        kinds += more if checker.has(capability) else []
    count = 0
    while True:
        count += 1
        yield _one(rng, checker, rng.choice(kinds), count)


def _one(rng: Random, checker: IndexChecker, kind: str, count: int) -> Operation:
    model = checker.model
    longest = model.capacity or PAGES * model.page_size
    readers = list(checker.readers) or ["nobody"]
    if kind in ("match", "insert"):
        salt = rng.choice(NAMES) if checker.has(Capability.SALT) else None
        adapter = rng.choice(NAMES) if checker.has(Capability.ADAPTER) else None
        tokens = tuple([rng.randrange(ALPHABET) for _ in range(rng.randint(1, longest))])
        key = CacheKey(tokens, salt, adapter)
        return Insert(key) if kind == "insert" else Match(f"u{count}", key)
    if kind == "lock":
        return Lock(rng.choice(readers))
    if kind == "unlock":
        return Unlock(rng.choice(readers))
    return Evict(rng.randint(1, longest)) if kind == "evict" else Reset()
