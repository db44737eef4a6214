"""SGLang's own classes, imported once, and a tree made of them.

What the two adapters of SGLang share: `sglang` drives its whole request path, `sglang_index` its
trees by themselves. Importing this file does not import SGLang, which takes seconds.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from kvassay.harness.contract import CacheKey
from kvassay.impls.engines import sglang_stub
from kvassay.impls.engines.quiet import quietly

PACKAGE = "sglang"
INSTALL = (
    "pip install torch==2.13.0 && pip install --no-deps -r impls/engines/sglang_requirements.txt"
)

TREES = ("radix", "unified-python", "unified-rust")


@lru_cache(maxsize=1)
def engine() -> SimpleNamespace:
    """The engine's own names, imported once."""
    sglang_stub.install()
    with quietly("sglang"), sglang_stub.without_triton():
        import torch
        from sglang.srt.disaggregation import kv_events
        from sglang.srt.managers import schedule_batch
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
        batch=schedule_batch,
        common=common,
        components=(ComponentType.FULL,),
        events=kv_events,
        sampling=SamplingParams(max_new_tokens=1),
        torch=torch,
    )


def radix_key(key: CacheKey, limit: int | None = None) -> Any:
    """A key of the trees; SGLang too puts the adapter's id into the extra key."""
    return engine().RadixKey(array("q", key.tokens), key.adapter, limit=limit, cache_salt=key.salt)


def new_tree(name: str, parameters: Any) -> Any:
    """One of `TREES`, on the pools that `parameters` names."""
    sglang = engine()
    if name == "radix":
        return sglang.RadixCache(parameters)
    parameters.tree_components = sglang.components
    parameters.tree_core_backend = name.removeprefix("unified-")
    return sglang.UnifiedRadixCache(parameters)
