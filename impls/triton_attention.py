"""The Triton kernel as a PagedAttention: checks, a plan, one launch or two.

Without a GPU the kernels run in Triton's interpreter, on the CPU. Whoever imports this module there
must have called `kvassay.harness.interpreter.use_interpreter` before.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from kvassay.harness.contract import AttentionBatch, AttentionResult
from kvassay.impls import triton_kernels as kernels
from kvassay.impls.attention_inputs import check_batch
from kvassay.impls.triton_launch import Launch
from kvassay.impls.triton_plan import PATHS, Plan, Tuning, padded, plan

QUERY_TYPES = (torch.float16, torch.bfloat16, torch.float32)
CACHE_TYPES = (*QUERY_TYPES, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
LARGEST_HEAD = 576


class TritonAttention:
    """Paged attention by the kernels of `triton_kernels`.

    `batch_invariant`: what a row computes does not depend on the batch around it.
    """

    def __init__(self, tuning: Tuning | None = None, *, batch_invariant: bool = False) -> None:
        self.tuning = tuning or Tuning()
        self.batch_invariant = batch_invariant
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.time_limit = 60.0 if self.device == "cuda" else 300.0
        self.paths = Counter(dict.fromkeys(PATHS, 0))

    def __call__(self, batch: AttentionBatch) -> AttentionResult:
        """Raises `ValueError` for no batch, `NotImplementedError` for what is not offered."""
        check_batch(batch)
        _check_offer(batch)
        output, lse = _buffers(batch)
        cut = plan(batch, self.tuning, batch_invariant=self.batch_invariant)
        if batch.query.shape[0] > 0:
            self.paths[cut.path] += 1
            for launch in launches(batch, cut, output, lse):
                launch.start()
        return AttentionResult(output, lse)


def launches(batch: AttentionBatch, cut: Plan, output: Tensor, lse: Tensor) -> list[Launch]:
    """What computes a batch of at least one query into ``output`` and ``lse``."""
    if cut.num_splits == 1:
        return [_attention(batch, cut, output[None], lse[None])]
    parts = output.new_empty(cut.num_splits, *output.shape, dtype=torch.float32)
    part_lse = lse.new_empty(cut.num_splits, *lse.shape)
    return [
        _attention(batch, cut, parts, part_lse),
        _merge(batch, cut, parts, part_lse, output, lse),
    ]


def _check_offer(batch: AttentionBatch) -> None:
    """Refuse what the kernels do not compute."""
    for name, offered in (
        ("query", QUERY_TYPES),
        ("key_cache", CACHE_TYPES),
        ("value_cache", CACHE_TYPES),
    ):
        tensor = getattr(batch, name)
        if tensor.dtype not in offered:
            raise NotImplementedError(f"{name}: {tensor.dtype} is not offered")
        if tensor.is_cuda and not _has(tensor.dtype, torch.cuda.get_device_capability()):
            raise NotImplementedError(f"{name}: this GPU does not have {tensor.dtype}")
        if tensor.shape[-1] > LARGEST_HEAD:
            raise NotImplementedError(
                f"{name}: head sizes up to {LARGEST_HEAD} are offered, got {tensor.shape[-1]}"
            )
        if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            raise NotImplementedError(
                f"{name}: heads whose numbers lie side by side are offered, got strides "
                f"{tensor.stride()}"
            )
    if batch.output is not None and batch.output.stride(-1) != 1:
        raise NotImplementedError("output: heads whose numbers lie side by side are offered")
    if batch.lse is not None and batch.lse.stride(-1) != 1:
        raise NotImplementedError("lse: heads that lie side by side are offered")
    for name in ("block_table", "seq_lens", "query_start"):
        if not getattr(batch, name).is_contiguous():
            raise NotImplementedError(f"{name}: a contiguous tensor is offered")


def _has(dtype: torch.dtype, capability: tuple[int, int]) -> bool:
    """Whether Triton compiles a type for GPUs of a capability: one came with sm_89."""
    return dtype != torch.float8_e4m3fn or capability >= (8, 9)


def _buffers(batch: AttentionBatch) -> tuple[Tensor, Tensor]:
    query = batch.query
    shape = (*query.shape[:2], batch.value_cache.shape[3])
    output = query.new_empty(shape) if batch.output is None else batch.output
    lse = batch.lse
    if lse is None:
        lse = query.new_empty(query.shape[:2], dtype=torch.float32)
    return output, lse


class Scale:
    """A quantisation scale as the kernel takes it: a tensor, and over what it varies."""

    def __init__(self, scale: Any, device: torch.device) -> None:
        given = 1.0 if scale is None else scale
        tensor = torch.as_tensor(given, dtype=torch.float32, device=device)
        self.per_token = tensor.dim() == 3
        self.per_head = tensor.dim() == 1
        self.tensor = tensor if tensor.dim() == 3 else tensor.reshape(-1).contiguous()
        self.strides = tensor.stride() if tensor.dim() == 3 else (0, 0, int(self.per_head))


def _in_pairs(key: Tensor, value: Tensor, cut: Plan) -> bool:
    """Whether values of 8 bits are to be loaded two at a time, and can be.

    Where tiles are multiplied out of shared memory, values have been widened before they go there,
    and are copied 16 bytes at a time anyway.
    """
    places = (*value.stride()[:3], value.storage_offset(), value.shape[3], value.data_ptr())
    return (
        value.element_size() == 1
        and value.dtype == key.dtype
        and cut.tile.to_registers
        and all(place % 2 == 0 for place in places)
    )


def _attention(batch: AttentionBatch, cut: Plan, output: Tensor, lse: Tensor) -> Launch:
    """The attention kernel; output ``[splits, tokens, heads, dim]``, lse ``[splits, ..]``."""
    query, key, value = batch.query, batch.key_cache, batch.value_cache
    head_dim, head_dim_v = query.shape[2], value.shape[3]
    k_scale, v_scale = Scale(batch.k_scale, key.device), Scale(batch.v_scale, key.device)
    split = cut.num_splits > 1
    pairs = _in_pairs(key, value, cut)
    if pairs:
        value = value.view(torch.int16)
    unused = lse
    grid = (key.shape[2], cut.num_tiles, cut.num_splits)
    arguments = (
        output,
        lse,
        query,
        key,
        value,
        k_scale.tensor,
        v_scale.tensor,
        unused if batch.sinks is None else batch.sinks,
        unused if batch.alibi_slopes is None else batch.alibi_slopes,
        batch.block_table,
        batch.query_start,
        batch.seq_lens,
        cut.tile_ends,
        head_dim**-0.5 if batch.scale is None else float(batch.scale),
        1.0 if batch.softcap is None else float(batch.softcap),
        0 if batch.window_left is None else batch.window_left,
        batch.seq_lens.numel(),
        cut.split_size,
        *query.stride()[:2],
        *key.stride()[:3],
        *value.stride()[:3],
        *k_scale.strides,
        *v_scale.strides,
        batch.block_table.stride(0),
        *output.stride()[:3],
        *lse.stride()[:2],
    )
    constants = dict(
        GROUP=query.shape[1] // key.shape[2],
        HEAD_DIM=head_dim,
        HEAD_DIM_V=head_dim_v,
        DIM=cut.tile.dim,
        DIM_REST=cut.tile.dim_rest,
        DIM_V=cut.tile.dim_v,
        BLOCK_SIZE=key.shape[1],
        BLOCK_M=cut.tile.block_m,
        BLOCK_N=cut.tile.block_n,
        SEQS_PADDED=padded(batch.seq_lens.numel()),
        ONE_TILE=cut.one_tile,
        SPLIT=split,
        CAUSAL=batch.causal,
        WINDOW=batch.window_left is not None,
        SOFTCAP=batch.softcap is not None,
        ALIBI=batch.alibi_slopes is not None,
        SINKS=batch.sinks is not None,
        K_HEAD_SCALE=k_scale.per_head,
        V_HEAD_SCALE=v_scale.per_head,
        K_TOKEN_SCALE=k_scale.per_token,
        V_TOKEN_SCALE=v_scale.per_token,
        V_PAIRS=pairs,
        STAGES=cut.tile.num_stages,
    )
    options = dict(num_warps=cut.tile.num_warps, num_stages=cut.tile.num_stages)
    return Launch(kernels.paged_attention_kernel, grid, arguments, constants, options)


def _merge(
    batch: AttentionBatch, cut: Plan, parts: Tensor, part_lse: Tensor, output: Tensor, lse: Tensor
) -> Launch:
    """The parts of the splits into one."""
    arguments = (
        output,
        lse,
        parts,
        part_lse,
        lse if batch.sinks is None else batch.sinks,
        *output.stride()[:2],
        *parts.stride()[:3],
        lse.stride(0),
        *part_lse.stride()[:2],
    )
    constants = dict(
        HEAD_DIM_V=output.shape[2],
        DIM_V=padded(output.shape[2]),
        NUM_SPLITS=cut.num_splits,
        SPLITS_PADDED=padded(cut.num_splits),
        SINKS=batch.sinks is not None,
    )
    return Launch(
        kernels.merge_splits_kernel, output.shape[:2], arguments, constants, dict(num_warps=4)
    )
