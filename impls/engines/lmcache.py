"""LMCache's `LocalCPUBackend`, the store of chunks in CPU memory, with its own allocators.

A block is a memory object of one chunk of `block_size` tokens. The calls are those of LMCache's
engine: a look-up pins the chunks that it counts and then renews them (``touch_cache``, the last
chunk first); whoever reads takes references and gives the pins back; what is computed is allocated,
with eviction and without waiting, and put under its chunk's hash once it is written. Only whole
chunks are stored. A chunk that is there already is not put a second time, and nobody moves to it.
Memory comes back when the last reference and the last pin are gone.

A request here holds what it read and what it stored until it leaves; LMCache's own engine copies
to and from the GPU's blocks and lets go at once. Its look-up may count a whole prompt, of which the
serving engine computes the last token again; so a prompt is looked up here without that token.

`lmcache` is what LMCache does by default: it replaces the least recently used, and names chunks by
Python's own `hash`, which it never checks against tokens. The others have digests instead, as with
the hash functions that it takes from vLLM where that is installed, and another ``cache_policy``;
`lmcache-paged` has the allocator of fixed pages, which LMCache takes with ``enable_p2p``.

Not claimed, because the engine has no call for it: FORK, TRUNCATE, QUERY, EVENTS (of its events
none is a removal), ADAPTER and SPANS (its chunk hashes cover tokens alone; ``lmcache.tag.`` of a
request, here its salt, stands beside the hash), VALIDATES_INPUT (a reference or a pin too many is
logged, and taken).

Importing this file does not import LMCache, which takes seconds; building a manager does.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from kvassay.harness.contract import (
    CacheKey,
    CacheManager,
    Capability,
    Counters,
    Declaration,
    Order,
    Outcome,
    OutOfBlocks,
    Refusal,
    Stamp,
    Tie,
)
from kvassay.harness.registry import implementation
from kvassay.impls.engines.in_pieces import InPieces
from kvassay.impls.engines.quiet import quietly
from kvassay.impls.engines.versions import Call, importing, require

PACKAGE = "lmcache"
INSTALL = (
    "pip install torch==2.13.0 && pip install --no-deps -r impls/engines/lmcache_requirements.txt"
)
VERIFIED = ("0.5.6",)

DECLARATION = Declaration(
    capabilities=frozenset(
        {
            Capability.PREFIX_CACHE,
            Capability.SALT,
            Capability.COMMIT,
            Capability.CHUNKED,
            Capability.EVICT,
            Capability.RESET,
            Capability.PEEK,
            Capability.COUNTERS,
            Capability.REFCOUNTS,
        }
    ),
    # A look-up renews, even if no room is found afterwards; to be put is to be newest.
    order=Order.LRU,
    stamps=frozenset({Stamp.HIT, Stamp.LOOKUP}),
    # Heads first of what was put together, tails first of what was hit together.
    tie=Tie.ANY,
    # Chunks are given up one by one, before it is known whether that is enough.
    refusal=Refusal.MAY_EVICT,
)
_ALIGNMENT = 4096
"""Bytes to which the engine's default allocator rounds every object up."""


@lru_cache(maxsize=1)
def _library() -> SimpleNamespace:
    """The engine's own names, imported once."""
    environment = {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_LOG_LEVEL": "CRITICAL"}
    with (
        patch.dict(os.environ, environment),
        quietly("lmcache"),
        importing(PACKAGE, VERIFIED),
    ):
        import torch
        from lmcache.v1.config import LMCacheEngineConfig
        from lmcache.v1.metadata import LMCacheMetadata
        from lmcache.v1.pin_monitor import PinMonitor
        from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
        from lmcache.v1.token_database import ChunkedTokenDatabase

    require(PACKAGE, VERIFIED, _calls(LocalCPUBackend, ChunkedTokenDatabase, LMCacheMetadata))
    PinMonitor.GetOrCreate(LMCacheEngineConfig.from_defaults())
    return SimpleNamespace(
        Backend=LocalCPUBackend,
        Config=LMCacheEngineConfig,
        Metadata=LMCacheMetadata,
        TokenDatabase=ChunkedTokenDatabase,
        dtype=torch.uint8,
    )


def _calls(backend: type, tokens: type, metadata: type) -> list[Call]:
    """What is asked of a release."""
    return [
        Call(metadata, "__init__", 7, ("chunk_size",)),
        Call(tokens, "__init__", 2),
        Call(tokens, "process_tokens", 1, ("request_configs",)),
        Call(backend, "__init__", 2),
        Call(backend, "allocate", 2, ("busy_loop",)),
        Call(backend, "batched_contains", 1, ("pin",)),
        Call(backend, "batched_get_blocking", 1),
        Call(backend, "batched_remove", 1, ("force",)),
        Call(backend, "batched_submit_put_task", 2),
        Call(backend, "clear"),
        Call(backend, "touch_cache"),
        Call(backend, "unpin", 1),
    ]


@dataclass
class _Live:
    """A request, and what it holds."""

    tokens: list[int]
    """All that are known."""
    tags: dict[str, str]
    """What stands beside the hash in a chunk's key."""
    pinned: list[Any]
    """Keys of the chunks that its look-up counted, until it has taken references."""
    objects: list[Any]
    """In the order of the prompt; it has a reference of each, but of what is pinned."""
    length: int
    """Tokens that have slots."""
    written: int


def _digest(parts: Any) -> bytes:
    return sha256(repr(parts).encode()).digest()


def _tags(key: CacheKey) -> dict[str, str]:
    return {} if key.salt is None else {"lmcache.tag.salt": key.salt}


def _let_go(live: Mapping[str, _Live], backend: Any, allocator: Any) -> None:
    """Give the memory back, and keep the engine's objects from doing so when they are collected.

    They would take the lock of LMCache's statistics, which whoever the garbage collector interrupts
    may hold already.
    """
    objects = [one for each in live.values() for one in each.objects]
    for one in (*objects, *backend.hot_cache.values(), *getattr(allocator, "free_blocks", ())):
        one.invalidate()
    backend.memory_allocator.close()


@implementation(
    "lmcache", kind=CacheManager, declaration=DECLARATION, package=PACKAGE, install=INSTALL
)
class LMCacheManager(InPieces):
    """Requests, and the calls that LMCache's engine would make for them."""

    policy = "LRU"
    paged = False
    hash: Callable[[Any], bytes] | None = None
    """Of what stands before a chunk and its tokens; None: what LMCache has by itself."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        library = _library()
        self.num_blocks = num_blocks
        self.block_size = block_size
        # A byte of keys and one of values for each token.
        pages = 1 if self.paged else _ALIGNMENT
        self._object_size = -(-2 * block_size // pages) * pages
        config = library.Config.from_defaults(
            chunk_size=block_size,
            max_local_cpu_size=num_blocks * self._object_size / 2**30,
            cache_policy=self.policy,
            enable_p2p=self.paged,
        )
        shape = (1, 2, block_size, 1, 1)
        self._metadata = library.Metadata(
            "model", 1, 1, 0, 0, library.dtype, shape, chunk_size=block_size
        )
        self._tokens = library.TokenDatabase(config, self._metadata)
        if self.hash is not None:
            self._tokens.hash_func = self.hash
        self.backend: Any = library.Backend(config, self._metadata)
        self._allocator: Any = (
            self.backend.memory_allocator.cpu_allocator
            if self.paged
            else self.backend.memory_allocator.pin_allocator
        )
        self._live: dict[str, _Live] = {}
        weakref.finalize(self, _let_go, self._live, self.backend, self._allocator)

    # ------------------------------------------------------------------------------- operations

    def begin(self, request: str, key: CacheKey) -> int:
        tokens, tags = list(key.tokens), _tags(key)
        keys = self._keys(tokens[:-1], tags)
        found: int = self.backend.batched_contains(keys, pin=True)
        self.backend.touch_cache()
        hit = found * self.block_size
        stored = [self.backend.hot_cache[name] for name in keys[:found]]
        self._live[request] = _Live(tokens, tags, keys[:found], stored, hit, hit)
        return hit

    def append(self, request: str, tokens: Sequence[int]) -> None:
        live = self._live[request]
        self._store(live, live.length + len(tokens))
        live.tokens += tokens

    def commit(self, request: str, num_tokens: int) -> None:
        live = self._live[request]
        if not live.written < num_tokens <= live.length:
            raise ValueError(
                f"commit: expected {live.written} < num_tokens <= {live.length}, got {num_tokens}"
            )
        first = live.written // self.block_size
        live.written = num_tokens
        keys = self._keys(live.tokens[:num_tokens], live.tags)
        self.backend.batched_submit_put_task(keys[first:], live.objects[first : len(keys)])

    def release(self, request: str, outcome: Outcome = Outcome.FINISHED) -> None:
        live = self._live.pop(request)
        if live.pinned:
            self._unpin(live)
        else:
            for one in live.objects:
                one.ref_count_down()

    def evict(self, num_blocks: int) -> int:
        backend = self.backend
        with backend.cpu_lock:
            chosen = backend.cache_policy.get_evict_candidates(backend.hot_cache, num_blocks)
            freed: int = backend.batched_remove(chosen, force=False)
        return freed

    def reset(self) -> None:
        if self._live:
            raise ValueError(f"reset: expected no live request, got {len(self._live)}")
        self.backend.clear()

    # ------------------------------------------------------------------------------ inspection

    def block_table(self, request: str) -> Sequence[int]:
        return tuple(map(self._block, self._live[request].objects))

    def peek(self, key: CacheKey) -> int:
        keys = self._keys(list(key.tokens[:-1]), _tags(key))
        found: int = self.backend.batched_contains(keys, pin=False)
        return found * self.block_size

    def counters(self) -> Counters:
        used = {self._block(one) for live in self._live.values() for one in live.objects}
        cached = {self._block(one) for one in self.backend.hot_cache.values()}
        free: int = self._allocator.address_manager.get_free_size()
        return Counters(free=free // self._object_size, cached=len(cached - used), used=len(used))

    def refcounts(self) -> Mapping[int, int]:
        # The store itself has one reference; a pin is another way to hold.
        stored = {id(one) for one in self.backend.hot_cache.values()}
        held = {id(one): one for live in self._live.values() for one in live.objects}
        return {
            self._block(one): one.get_ref_count() + one.metadata.pin_count - (number in stored)
            for number, one in held.items()
        }

    def _block(self, one: Any) -> int:
        address: int = one.metadata.address
        return address if self.paged else address // self._object_size

    # ------------------------------------------------------------------------------------ room

    def _keys(self, tokens: list[int], tags: dict[str, str]) -> list[Any]:
        """Of the whole chunks among these tokens."""
        return [key for _, _, key in self._tokens.process_tokens(tokens, request_configs=tags)]

    def _store(self, live: _Live, length: int) -> None:
        """Slots for the first `length` tokens, if need be in the place of what is cached."""
        if live.pinned:
            read = self.backend.batched_get_blocking(live.pinned)
            if None in read:
                raise RuntimeError(f"a chunk that was pinned is gone: {live.pinned}")
            live.objects = read
            self._unpin(live)
        shapes, dtypes = self._metadata.get_shapes(), self._metadata.get_dtypes()
        fresh: list[Any] = []
        while len(live.objects) + len(fresh) < -(-length // self.block_size):
            one = self.backend.allocate(shapes, dtypes, busy_loop=False)
            if one is None:
                for other in fresh:
                    other.ref_count_down()
                raise OutOfBlocks(f"{length} tokens do not fit, {len(fresh)} blocks were found")
            fresh.append(one)
        live.objects += fresh
        live.length = length

    def _unpin(self, live: _Live) -> None:
        for key in live.pinned:
            self.backend.unpin(key)
        live.pinned = []


@implementation(
    "lmcache-lfu",
    kind=CacheManager,
    declaration=replace(DECLARATION, order=Order.LFU),
    package=PACKAGE,
    install=INSTALL,
)
class LeastFrequentlyUsed(LMCacheManager):
    """The same with digests and ``cache_policy="LFU"``."""

    policy = "LFU"
    hash = staticmethod(_digest)


@implementation(
    "lmcache-fifo",
    kind=CacheManager,
    declaration=replace(DECLARATION, order=Order.FIFO, stamps=frozenset(), tie=Tie.HEAD_FIRST),
    package=PACKAGE,
    install=INSTALL,
)
class FirstInFirstOut(LMCacheManager):
    """The same with digests and ``cache_policy="FIFO"``."""

    policy = "FIFO"
    hash = staticmethod(_digest)


@implementation(
    "lmcache-paged", kind=CacheManager, declaration=DECLARATION, package=PACKAGE, install=INSTALL
)
class PagedLMCacheManager(LMCacheManager):
    """The same with digests and the allocator of fixed pages."""

    paged = True
    hash = staticmethod(_digest)
