"""vLLM's `KVCacheManager` by the stages of a scheduler step, to be timed (`harness.control`).

As its scheduler calls it, with the default hash (sha256) and no events. What is not the same: keys
are hashed in full blocks only, so that a hit ends at a block; blocks become findable as they are
reserved, and a generated token once it fills a block; there is no call for a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from kvassay.impls.engines.versions import accepted

_MAX_MODEL_LEN = 1 << 40


class VllmStages:
    """One manager."""

    def __init__(self, vllm: SimpleNamespace, config: Any, block_size: int) -> None:
        from vllm.utils.hashing import sha256

        vllm.utils.init_none_hash(sha256)
        self._hasher = vllm.utils.get_request_block_hasher(block_size, sha256)
        self._request, self._sampling = vllm.Request, vllm.sampling
        self._manager = vllm.KVCacheManager(
            config,
            max_model_len=_MAX_MODEL_LEN,
            hash_block_size=block_size,
            **accepted(vllm.KVCacheManager, scheduler_block_size=block_size),
        )

    def prepare(self, prompts: Sequence[tuple[str, list[int]]]) -> list[Any]:
        make, sampling, hasher = self._request, self._sampling, self._hasher
        return [make(name, tokens, sampling, None, block_hasher=hasher) for name, tokens in prompts]

    def look_up(self, handles: Sequence[Any]) -> list[int]:
        look_up, hits = self._manager.get_computed_blocks, []
        for request in handles:
            request.found = look_up(request)
            hits.append(request.found[1])
        return hits

    def reserve(self, handles: Sequence[Any]) -> None:
        allocate = self._manager.allocate_slots
        for request in handles:
            blocks, hit, *_ = request.found
            if allocate(request, request.num_tokens - hit, hit, blocks) is None:
                raise RuntimeError("OOM: the pool of the benchmark is too small")
            request.num_computed_tokens = request.num_tokens

    def publish(self, handles: Sequence[Any]) -> None:
        pass

    def append(self, handles: Sequence[Any], token: int) -> None:
        allocate = self._manager.allocate_slots
        for request in handles:
            request.append_output_token_ids(token)
            if allocate(request, 1) is None:
                raise RuntimeError("OOM: the pool of the benchmark is too small")
            request.num_computed_tokens += 1

    def release(self, handles: Sequence[Any]) -> None:
        free = self._manager.free
        for request in handles:
            free(request)
