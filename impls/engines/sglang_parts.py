"""SGLang's own classes, imported once, and a tree made of them.

What the two adapters of SGLang share: `sglang` drives its whole request path, `sglang_index` its
trees by themselves. Importing this file does not import SGLang, which takes seconds.

What differs between releases is here too, and in `sglang_requests`. Before 0.5.22 a tree has no
``lock``, its match brings slots instead of a length, and the scheduler takes its requests another
way.
"""

from __future__ import annotations

import inspect
import os
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from kvassay.harness.contract import CacheKey, ContractError
from kvassay.impls.engines import sglang_kernels, sglang_stub
from kvassay.impls.engines.quiet import quietly
from kvassay.impls.engines.sglang_requests import Current, Earlier, Requests
from kvassay.impls.engines.versions import Call, at_least, importing, require

PACKAGE = "sglang"
INSTALL = (
    "pip install torch==2.13.0 && pip install --no-deps -r impls/engines/sglang_requirements.txt"
)

VERIFIED = ("0.5.23", "0.5.22", "0.5.21", "0.5.20", "0.5.19")
"""Releases that were run."""
TREES = ("radix", "unified-python", "unified-rust")


@lru_cache(maxsize=1)
def engine() -> SimpleNamespace:
    """The engine's own names, imported once."""
    sglang_stub.install()
    with _importing():
        import torch
        from sglang.srt.disaggregation import kv_events
        from sglang.srt.mem_cache import allocator, base_prefix_cache, common
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.cpp_utils import native_hash
        from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
        from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey
        from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
        from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
        from sglang.srt.sampling.sampling_params import SamplingParams

        # Compiled at its first use, which takes ten seconds where no earlier build is kept: that
        # is part of importing the engine, and no operation is to be taken for a hang by it.
        native_hash._load_native_hash_module()
        if not at_least(PACKAGE, "0.5.22"):
            sglang_kernels.stand_in(import_module("sglang.srt.mem_cache.allocator.paged"))

    _require_trees(base_prefix_cache, RadixKey, (RadixCache, UnifiedRadixCache))
    sglang_stub.publish(
        {"spec": {"speculative_algorithm": None}, "serving": {"strip_thinking_cache": False}}
    )
    return SimpleNamespace(
        CacheInitParams=CacheInitParams,
        EvictParams=base_prefix_cache.EvictParams,
        InsertParams=base_prefix_cache.InsertParams,
        MatchPrefixParams=base_prefix_cache.MatchPrefixParams,
        RadixCache=RadixCache,
        RadixKey=RadixKey,
        ReqToTokenPool=ReqToTokenPool,
        UnifiedRadixCache=UnifiedRadixCache,
        allocator=allocator,
        common=common,
        components=(ComponentType.FULL,),
        events=kv_events,
        sampling=SamplingParams(max_new_tokens=1),
        torch=torch,
    )


def radix_key(key: CacheKey, limit: int | None = None) -> Any:
    """A key of the trees; SGLang too puts the adapter's id into the extra key."""
    return engine().RadixKey(array("q", key.tokens), key.adapter, limit=limit, cache_salt=key.salt)


def _require_trees(parts: Any, key: type, trees: tuple[type, ...]) -> None:
    """Raise `ContractError` for what the trees of this release do not take."""
    of_all = [
        Call(parts.EvictParams, "__init__", 0, ("num_tokens",)),
        Call(parts.InsertParams, "__init__", 0, ("key", "value")),
        Call(parts.MatchPrefixParams, "__init__", 0, ("key",)),
        Call(key, "__init__", 2, ("limit", "cache_salt")),
    ]
    require(PACKAGE, VERIFIED, of_all)
    once = (("__init__", 1), ("match_prefix", 1), ("insert", 1), ("evict", 1), ("reset", 0))
    sizes = (("evictable_size", 0), ("protected_size", 0), ("total_size", 0))
    for tree in trees:
        locks = (("lock", 1), ("unlock", 1)) if hasattr(tree, "lock") else _REFERENCES
        calls = [Call(tree, name, count) for name, count in (*once, *sizes, *locks)]
        require(PACKAGE, VERIFIED, calls)


@lru_cache(maxsize=1)
def scheduling() -> Any:
    """SGLang's module of requests; `ContractError` where a release takes them another way."""
    sglang = engine()
    token, paged = (getattr(sglang.allocator, name) for name in ALLOCATORS)
    calls = [
        Call(sglang.common, "evict_from_tree_cache", 2),
        Call(sglang.ReqToTokenPool, "__init__", 4),
        Call(sglang.ReqToTokenPool, "alloc", 1),
        Call(sglang.ReqToTokenPool, "free", 1),
        Call(token, "alloc", 1),
        Call(paged, "alloc_extend", 6),
        Call(paged, "alloc_decode", 3),
    ]
    require(PACKAGE, VERIFIED, calls)
    with _importing():
        from sglang.srt.managers import schedule_batch
    require(PACKAGE, VERIFIED, [Call(schedule_batch.Req, "__init__", 4, ("lora_id", "cache_salt"))])
    return schedule_batch


@lru_cache(maxsize=1)
def requests() -> Requests:
    """How this release's scheduler takes a request; `ContractError` if it is neither way."""
    common, req = engine().common, scheduling().Req
    if hasattr(common, "match_kv_cache"):
        require(
            PACKAGE,
            VERIFIED,
            [
                Call(common, "match_kv_cache", 2, ("max_prefix_len",)),
                Call(common, "checkpoint_kv_cache", 2),
                Call(common, "release_kv_cache", 2, ("checkpoint",)),
            ],
        )
        return Current(common)
    trees = (engine().RadixCache, engine().UnifiedRadixCache)
    require(
        PACKAGE,
        VERIFIED,
        [
            Call(common, "release_kv_cache", 2, ("is_insert",)),
            Call(req, "init_next_round_input", 1),
            Call(req, "set_extend_range", 2),
            # Before 0.5.19 the row of a request was not kept there.
            Call(scheduling().ReqKvInfo, "__init__", 0, ("req_pool_idx",)),
            *(Call(tree, "cache_unfinished_req", 1) for tree in trees),
        ],
    )
    return Earlier(common)


@contextmanager
def _importing() -> Iterator[None]:
    with quietly("sglang"), importing(PACKAGE, VERIFIED), sglang_stub.standing_in():
        yield


def largest_token() -> int:
    """Token ids up to this one can be hashed; before 0.5.23 events hashed unsigned 32-bit ones."""
    return (1 << 63) - 1 if at_least(PACKAGE, "0.5.23") else 1 << 31


ALLOCATORS = ("TokenToKVPoolAllocator", "PagedTokenToKVPoolAllocator")
_REFERENCES = (("inc_lock_ref", 1), ("dec_lock_ref", 2))


def new_tree(name: str, parameters: Any) -> Any:
    """One of `TREES`, on the pools that `parameters` names."""
    sglang = engine()
    if name == "radix":
        return sglang.RadixCache(parameters)
    parameters.tree_components = sglang.components
    core = name.removeprefix("unified-")
    tree = _unified(parameters, core)
    there = "rust" if "rust_tree_core" in type(tree.tree_core).__module__ else "python"
    if there != core:
        raise ContractError(f"{name}: expected the {core} core, got the {there} one")
    return tree


def _unified(parameters: Any, core: str) -> Any:
    sglang = engine()
    if "tree_core_backend" in inspect.signature(sglang.CacheInitParams).parameters:
        parameters.tree_core_backend = core
        return sglang.UnifiedRadixCache(parameters)
    # Up to 0.5.20 the environment chooses the core.
    before = os.environ.get(_CORE)
    os.environ[_CORE] = core
    try:
        return sglang.UnifiedRadixCache(parameters)
    finally:
        os.environ.pop(_CORE)
        if before is not None:
            os.environ[_CORE] = before


_CORE = "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"


def naming_adapters(parameters: Any) -> Callable[[Any, str | None], None]:
    """What gives a request's adapter its name in events, once the tree has these parameters."""
    if getattr(parameters, "kv_event_lora_names", None) is not None:
        register: Callable[[Any, str | None], None] = parameters.kv_event_lora_names.register
        return register
    events = import_module("sglang.srt.mem_cache.events")
    if not hasattr(events, "LoRANameTable"):
        # Before 0.5.22 no event says whose adapter it is of.
        return lambda req, adapter: None
    # Before 0.5.23 the events of this format alone have names, out of a table of the server's.
    table = events.LoRANameTable()
    parameters.kv_event_lora_names, parameters.dynamo_kv_event_format = table, True

    def name(req: Any, adapter: str | None) -> None:
        if adapter is not None:
            table.register(lora_id=adapter, lora_name=adapter)

    return name


def salt(event: Any) -> str | None:
    """The salt of what an event says was stored; up to 0.5.19 beside the other fields."""
    there = event if hasattr(event, "cache_salt") else getattr(event, "metadata", None)
    return getattr(there, "cache_salt", None)


def length(match: Any) -> int:
    """How many tokens a match has found."""
    if hasattr(match, "device_prefix_len"):
        return int(match.device_prefix_len)
    return len(match.device_indices)


def slots(tree: Any, match: Any) -> list[int]:
    """Where those tokens are."""
    if hasattr(match, "device_prefix_len"):
        path = tree.path_device_indices(match.last_device_node)
        return list(path[: match.device_prefix_len].tolist())
    return list(match.device_indices.tolist())


def lock(tree: Any, node: Any) -> Any:
    """Protect a path; the receipt that `unlock` takes back."""
    if hasattr(tree, "lock"):
        return tree.lock(node)
    return node, tree.inc_lock_ref(node).to_dec_params()


def unlock(tree: Any, receipt: Any) -> None:
    """Give up what `lock` protected."""
    if hasattr(tree, "unlock"):
        tree.unlock(receipt)
    else:
        tree.dec_lock_ref(*receipt)
