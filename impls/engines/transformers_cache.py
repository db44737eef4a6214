"""transformers' `PagedAttentionCache`, which serves its continuous batching, driven by itself.

The calls are those of its scheduler: a look-up when a request comes, which takes references on
what it finds; room before each forward pass; hashes of the pages that the pass has filled, after
it. A page that was filled twice is then left for the one that was first. When a request finds no
room, every cached page that nobody uses is evicted, as before anybody is preempted there
(``offload_requests``), and only then it is refused. A fork shares full pages and has the rest
copied at once; children that do not fit wait there, and are taken back here.

Two layers with full attention, whose pages fill their sectors: a block, a page of each layer, is a
sector. The first two are trash, which padding reads and writes. What is judged lies in the engine's
own tensors (STORAGE), written and read by the `update` of its allocator, and copied by the engine's
`perform_cache_copy`; the copies are told as well, for those who keep KV elsewhere.

Not claimed, because the contract has no word or the engine no call for it: an order of eviction
(all go at once), GROUPS (sectors shared with layers that have a window), TRUNCATE, EVENTS, SALT
and ADAPTER (a hash covers tokens alone), VALIDATES_INPUT (a second ``free_blocks`` is silent).
Every request leaves its pages to the cache here; in the engine, those that are preempted do not.

`transformers-unshared` is the same with ``allow_block_sharing=False``: no page is ever shared.

Importing this file does not import transformers, which takes seconds; building a manager does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from kvassay.harness.contract import (
    TORN,
    CacheKey,
    CacheManager,
    Capability,
    Counters,
    Declaration,
    Dedup,
    Granularity,
    Outcome,
    OutOfBlocks,
    Publish,
    Refusal,
)
from kvassay.harness.registry import implementation
from kvassay.impls.engines.in_pieces import InPieces
from kvassay.impls.engines.quiet import quietly
from kvassay.impls.engines.token_names import TokenNames
from kvassay.impls.engines.transformers_attention import INSTALL, PACKAGE

DECLARATION = Declaration(
    capabilities=frozenset(
        {
            Capability.PREFIX_CACHE,
            Capability.COMMIT,
            Capability.CHUNKED,
            Capability.FORK,
            Capability.COPIES,
            Capability.STORAGE,
            Capability.EVICT,
            Capability.RESET,
            Capability.QUERY,
            Capability.PEEK,
            Capability.COUNTERS,
            Capability.REFCOUNTS,
        }
    ),
    publish=Publish.COMMIT,
    dedup=Dedup.REMAP,
    granularity=Granularity.ALL,
    # Cached pages are given up before it is known whether that is enough.
    refusal=Refusal.MAY_EVICT,
    reserved_ids=(0, 1),
)
UNSHARED = Declaration(
    capabilities=DECLARATION.capabilities
    - {Capability.PREFIX_CACHE, Capability.PEEK, Capability.EVICT},
    reserved_ids=DECLARATION.reserved_ids,
)
NAME = "full_attention"
"""What the engine calls its only allocator here."""
_LAYERS = 2
_HEAD_DIM = 32
"""Keys and values of a token in 16 bits: 128 bytes a layer, to which the engine aligns sectors."""
_LARGEST = (1 << 30) - 1
"""Token ids beyond are renamed: the engine hashes them as signed 32-bit numbers."""


@lru_cache(maxsize=1)
def _library() -> SimpleNamespace:
    """The engine's own names, imported once."""
    with quietly("ContinuousBatchingLogger"):
        import torch
        from transformers import PreTrainedConfig
        from transformers.generation.configuration_utils import ContinuousBatchingConfig
        from transformers.generation.continuous_batching import cache
        from transformers.generation.continuous_batching.distributed import DistributedHelper
        from transformers.generation.continuous_batching.requests import RequestState

    return SimpleNamespace(
        ContinuousBatchingConfig=ContinuousBatchingConfig,
        DistributedHelper=DistributedHelper,
        cache=cache,
        RequestState=RequestState,
        dtype=torch.float16,
        torch=torch,
        # The pool's size is given, and reading the machine's takes longer than all the rest.
        memory=lru_cache(cache.get_device_and_memory_breakdown),
        model=PreTrainedConfig(
            num_hidden_layers=_LAYERS,
            num_attention_heads=1,
            num_key_value_heads=1,
            hidden_size=_HEAD_DIM,
            head_dim=_HEAD_DIM,
            vocab_size=1,
        ),
    )


@dataclass
class _Live:
    """A request of the engine's, whose `position_offset` is how much of it is written."""

    state: Any
    length: int
    """Tokens that have slots."""


@implementation(
    "transformers",
    kind=CacheManager,
    declaration=DECLARATION,
    package=PACKAGE,
    install=INSTALL,
)
class TransformersManager(InPieces):
    """Requests and the calls that the scheduler would make for them."""

    shares = True

    def __init__(self, num_blocks: int, block_size: int) -> None:
        library = _library()
        self.num_blocks = num_blocks
        self.block_size = block_size
        with patch.object(library.cache, "get_device_and_memory_breakdown", library.memory):
            self.engine: Any = library.cache.PagedAttentionCache(
                library.model,
                library.ContinuousBatchingConfig(
                    page_size=block_size,
                    num_blocks=num_blocks,
                    max_batch_tokens=1,
                    max_memory_percent=1.0,
                    max_blocks_per_request=0,
                    allow_block_sharing=self.shares,
                ),
                "cpu",
                library.DistributedHelper(None, None),
                library.dtype,
            )
        self.allocator: Any = self.engine.cache_allocators[NAME]
        self._live: dict[str, _Live] = {}
        self._copies: list[tuple[int, int]] = []
        self._names = TokenNames(_LARGEST)

    # ------------------------------------------------------------------------------- operations

    def begin(self, request: str, key: CacheKey) -> int:
        state = _library().RequestState(request, self._ids(key.tokens), max_new_tokens=None)
        hit: int = self.engine.search_prefix_match(request, state.initial_tokens)
        state.position_offset = hit
        self._live[request] = _Live(state, hit)
        return hit

    def append(self, request: str, tokens: Sequence[int]) -> None:
        live = self._live[request]
        self._store(live, live.length + len(tokens))
        live.state.generated_tokens += self._ids(tokens)

    def commit(self, request: str, num_tokens: int) -> None:
        live = self._live[request]
        state, written = live.state, live.state.position_offset
        if not written < num_tokens <= live.length:
            raise ValueError(
                f"commit: expected {written} < num_tokens <= {live.length}, got {num_tokens}"
            )
        complete = self.engine.count_new_complete_blocks(state, num_tokens - written)
        state.position_offset = num_tokens
        self.engine.mark_complete_blocks(state, complete)

    def fork(self, parent: str, children: Sequence[str]) -> None:
        live = self._live[parent]
        if live.state.position_offset < live.length:
            raise ValueError(f"fork: expected {parent} to be written up to {live.length} tokens")
        copies: dict[str, tuple[list[int], list[int]]] = {NAME: ([], [])}
        forked = self.engine.prepare_fork_request(live.state, children, copies)
        if len(forked) < len(children) and self._make_room():
            rest = children[len(forked) :]
            forked += self.engine.prepare_fork_request(live.state, rest, copies)
        if len(forked) < len(children):
            for child in forked:
                self.engine.free_blocks(child)
            raise OutOfBlocks(f"{len(forked)} of {len(children)} children fit")
        for child in forked:
            self._live[child] = _Live(live.state.fork(child), live.length)
        # As the engine's scheduler does, before anything else is read or written.
        self.engine.perform_cache_copy(copies)
        self._copies += zip(*copies[NAME], strict=True)

    def take_copies(self) -> list[tuple[int, int]]:
        copies, self._copies = self._copies, []
        return copies

    def release(self, request: str, outcome: Outcome = Outcome.FINISHED) -> None:
        del self._live[request]
        self.engine.free_blocks(request)

    def evict(self, num_blocks: int) -> int:
        before = self._num_free()
        self._make_room()
        return self._num_free() - before

    def reset(self) -> None:
        if self._live:
            raise ValueError(f"reset: expected no live request, got {len(self._live)}")
        self.engine.reset()

    # ------------------------------------------------------------------------------ inspection

    def block_table(self, request: str) -> Sequence[int]:
        # Who hits nothing has no table yet.
        return tuple(self.allocator.block_table.get(request, ()))

    def can_admit(self, key: CacheKey) -> bool:
        newcomer = _library().RequestState("newcomer", [])
        fits: bool = self.engine.can_store_request_tokens(newcomer, len(key.tokens), dry_run=True)
        return fits

    def peek(self, key: CacheKey) -> int:
        return len(self.allocator.match_prefix_blocks(self._ids(key.tokens))) * self.block_size

    def counters(self) -> Counters:
        used = {block for table in self.allocator.block_table.values() for block in table}
        return Counters(
            free=self._num_free(), cached=len(self.allocator.ledger.cached_blocks), used=len(used)
        )

    def refcounts(self) -> Mapping[int, int]:
        # The ledger counts from two on: what it does not know has one holder.
        shared = self.allocator.ledger.shared_ref_counts
        held = {block for table in self.allocator.block_table.values() for block in table}
        return {block: shared.get(block, 1) for block in held}

    def _ids(self, tokens: Sequence[int]) -> list[int]:
        return list(self._names.ids(tokens))

    # --------------------------------------------------------------------------------- storage

    def write(self, group: int, slots: Sequence[int], tags: Sequence[int]) -> None:
        """Tags as the bits of keys and values, by the call that a forward pass ends in."""
        ints = _library().torch.tensor(tags, dtype=_library().torch.int32)
        words = ints[:, None, None].repeat(1, 1, _HEAD_DIM // 2).view(_library().dtype)
        for layer in range(_LAYERS):
            self.allocator.update(words, words, layer, self._rows([]), self._rows(slots))

    def read(self, group: int, slots: Sequence[int]) -> list[int]:
        """The tags that keys and values of all layers agree on, by the call that attention uses."""
        nothing = _library().torch.empty(0, 1, _HEAD_DIM, dtype=_library().dtype)
        rows, none = self._rows(slots), self._rows([])
        parts = [
            part.view(_library().torch.int32)[:, 0]
            for layer in range(_LAYERS)
            for part in self.allocator.update(nothing, nothing, layer, rows, none)
        ]
        words = _library().torch.cat(parts, dim=1)
        whole = (words == words[:, :1]).all(dim=1)
        tags: list[int] = words[:, 0].where(whole, TORN).tolist()
        return tags

    def _rows(self, slots: Sequence[int]) -> Any:
        """Where the engine's tensors have these slots, which its update shifts by layer."""
        stride, size = self.allocator.block_physical_stride, self.block_size
        rows = [slot // size * stride + slot % size for slot in slots]
        return _library().torch.tensor(rows, dtype=_library().torch.long)

    # ------------------------------------------------------------------------------------ room

    def _store(self, live: _Live, length: int) -> None:
        """Slots for the first `length` tokens, if need be in the place of what is cached."""
        state, missing = live.state, length - live.state.position_offset
        if not self.engine.can_store_request_tokens(state, missing):
            self._make_room()
            if not self.engine.can_store_request_tokens(state, missing):
                raise OutOfBlocks(f"{length} tokens do not fit {self._num_free()} free blocks")
        live.length = length

    def _make_room(self) -> bool:
        evicted: bool = self.engine.evict_cached_blocks()
        self.engine.pool.try_to_free_sectors()
        return evicted

    def _num_free(self) -> int:
        pool, allocator = self.engine.pool, self.allocator
        free: int = pool.num_free_sectors * allocator.blocks_per_sector
        return free + int(pool.count_free_blocks(allocator.index))


@implementation(
    "transformers-unshared",
    kind=CacheManager,
    declaration=UNSHARED,
    package=PACKAGE,
    install=INSTALL,
)
class UnsharedTransformersManager(TransformersManager):
    """The same, sharing no page."""

    shares = False
