"""vLLM's Triton kernel for prompts with a context: `prefix_prefill`, in Triton's interpreter.

The keys before a sequence's queries come from the cache, whose memory is passed in the order in
which this kernel wants its numbers (keys in groups of 16 bytes), as a view. Those of the queries
themselves are passed apart, as the model has them; here they are taken from the cache.

* Probabilities are rounded to the query's type; products of float32 are exact here, and TF32 on a
  GPU: rounding=P.
* A weight 0 is multiplied by the values of every key left of the window: tail=finite. In blocks
  left of all windows vLLM has its null block, block 0, and so has the table that is passed.
* A tile reads the block table up to one column past the last that a sequence needs, which may be
  the end of the table, and does not use what it finds.
* A program is one sequence, one head and 128 queries, whatever the batch: determinism=batch.
* Each query has a key of its own: other batches are refused, so no row is empty.

Block sizes are free. Caches are of the query's type, or float8 with one scale each. With ALiBi
there is another kernel, which has neither sinks nor a window (it takes one and ignores it), for
causal batches and slopes that are not negative. There is no soft cap and no LSE.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from kvassay.harness.contract import (
    AttentionBatch,
    AttentionResult,
    Capability,
    Declaration,
    Determinism,
    PagedAttention,
    Rounding,
    Tail,
)
from kvassay.harness.registry import implementation
from kvassay.impls.engines.vllm_triton import (
    INSTALL,
    PACKAGE,
    engine,
    null_blocks,
    refuse_shapes,
)
from kvassay.impls.engines.wheel_kernels import CALL_LIMIT

GROUP_BYTES = 16
"""Of a key: what lies together in the engine's layout."""


@implementation(
    "vllm-triton-prefix",
    kind=PagedAttention,
    package=PACKAGE,
    install=INSTALL,
    declaration=Declaration(
        capabilities=frozenset(
            {
                Capability.CAUSAL,
                Capability.WINDOW,
                Capability.ALIBI,
                Capability.SINKS,
                Capability.SCALES,
                Capability.OUTPUT,
            }
        ),
        rounding=Rounding.P,
        tail=Tail.FINITE,
        determinism=Determinism.BATCH,
    ),
)
class VllmPrefixAttention:
    """One call of the kernel per batch."""

    device = "cpu"

    def __init__(self, engine_of: Callable[[], SimpleNamespace] = engine) -> None:
        self._vllm = engine_of()
        self._cache_types = {
            self._vllm.torch.float8_e4m3fn: "fp8_e4m3",
            self._vllm.torch.float8_e5m2: "fp8_e5m2",
        }
        self.time_limit = CALL_LIMIT
        self.paths = Counter({"plain": 0, "ALiBi": 0})

    def __call__(self, batch: AttentionBatch) -> AttentionResult:
        self._refuse(batch)
        output = batch.output
        if output is None:
            output = batch.query.new_empty(batch.query.shape)
        if batch.query.shape[0]:
            self.paths["plain" if batch.alibi_slopes is None else "ALiBi"] += 1
            self._attend(batch, output)
        return AttentionResult(output)

    def _attend(self, batch: AttentionBatch, output: Any) -> None:
        cache_type = self._cache_types.get(batch.key_cache.dtype, "auto")
        group = GROUP_BYTES // batch.key_cache.element_size()
        key, value = batch.key_cache, batch.value_cache
        if cache_type != "auto":
            key, value = (cache.view(self._vllm.torch.uint8) for cache in (key, value))
        self._vllm.prefix.context_attention_fwd(
            batch.query,
            self._new(batch, batch.key_cache, batch.k_scale),
            self._new(batch, batch.value_cache, batch.v_scale),
            output,
            cache_type,
            key.unflatten(3, (-1, group)).permute(0, 2, 3, 1, 4),
            value.permute(0, 2, 3, 1),
            null_blocks(batch),
            batch.query_start,
            batch.seq_lens,
            int(batch.seq_lens.max()),
            int(batch.query_start.diff().max()),
            self._one(batch.k_scale),
            self._one(batch.v_scale),
            alibi_slopes=batch.alibi_slopes,
            sliding_window=None if batch.window_left is None else batch.window_left + 1,
            sm_scale=batch.query.shape[2] ** -0.5 if batch.scale is None else batch.scale,
            sinks=batch.sinks,
            causal=batch.causal,
        )

    def _new(self, batch: AttentionBatch, cache: Any, scale: Any) -> Any:
        """Keys or values of the queries' own tokens: ``[num_tokens, num_kv_heads, head_dim]``."""
        torch = self._vllm.torch
        size = cache.shape[1]
        rows = batch.query_start.diff().long()
        sequence = torch.arange(len(rows)).repeat_interleave(rows)
        after = batch.query_start[1:].long()[sequence] - torch.arange(len(sequence))
        position = batch.seq_lens.long()[sequence] - after
        stored = cache[batch.block_table[sequence, position // size].long(), position % size]
        if stored.dtype == batch.query.dtype:
            return stored
        return (stored.float() * (1.0 if scale is None else float(scale))).to(batch.query.dtype)

    def _one(self, scale: Any) -> Any:
        return self._vllm.torch.tensor([1.0 if scale is None else float(scale)])

    # ---------------------------------------------------------------------------------- refusals

    def _refuse(self, batch: AttentionBatch) -> None:
        """Raise `NotImplementedError` for what the kernel cannot."""
        refuse_shapes(batch, "vLLM's prefix kernel")
        if bool((batch.seq_lens < batch.query_start.diff()).any()):
            raise NotImplementedError("seq_lens: vLLM's prefix kernel needs a key for each query")
        if batch.softcap is not None:
            raise NotImplementedError("softcap: vLLM's prefix kernel has none")
        self._refuse_types(batch)
        if batch.alibi_slopes is None:
            return
        if batch.window_left is not None or batch.sinks is not None or not batch.causal:
            raise NotImplementedError(
                "alibi_slopes: vLLM's prefix kernel has them neither with a window nor with sinks "
                "nor without a causal mask"
            )
        if bool((batch.alibi_slopes < 0).any()):
            raise NotImplementedError("alibi_slopes: vLLM's prefix kernel masks negative ones")

    def _refuse_types(self, batch: AttentionBatch) -> None:
        stored = batch.key_cache.dtype
        float8 = stored in self._cache_types
        if stored != batch.query.dtype and not float8:
            raise NotImplementedError(
                "vLLM's prefix kernel needs a cache of the query's type or float8, "
                f"got {batch.query.dtype} and {stored}"
            )
        for name in ("k_scale", "v_scale"):
            scale = getattr(batch, name)
            if scale is not None and (not float8 or getattr(scale, "ndim", 0)):
                raise NotImplementedError(
                    f"{name}: vLLM's prefix kernel has one number, of a float8 cache"
                )
        group = GROUP_BYTES // batch.key_cache.element_size()
        if batch.query.shape[2] % group:
            raise NotImplementedError(
                f"vLLM's prefix kernel needs head sizes of a multiple of {group}, "
                f"got {batch.query.shape[2]}"
            )
