"""Writing keys and values into their slots, quantised where the cache is, in Triton."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvassay.impls.triton_attention import Scale
from kvassay.impls.triton_launch import Launch
from kvassay.impls.triton_plan import padded

LARGEST_CODE = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}


@triton.jit
def _quantised(row, scale, cache, LARGEST: tl.constexpr, WHOLE: tl.constexpr):
    """A row divided by its scale, cut off at the largest code, rounded to nearest even."""
    if LARGEST > 0.0:
        row = row.to(tl.float32) / scale
        row = tl.clamp(row, -LARGEST, LARGEST)
        if WHOLE:
            # Adding and taking away 1.5 * 2**23 rounds a float32 to a whole number.
            row = (row + 12582912.0) - 12582912.0
    return row.to(cache.dtype.element_ty)


@triton.jit
def write_cache_kernel(
    key,
    value,
    key_cache,
    value_cache,
    slots,
    k_scale,
    v_scale,
    k_token: tl.int64,
    k_from_head,
    v_token: tl.int64,
    v_from_head,
    k_block: tl.int64,
    k_slot,
    k_head,
    v_block: tl.int64,
    v_slot,
    v_head,
    ks_block: tl.int64,
    ks_slot,
    ks_head,
    vs_block: tl.int64,
    vs_slot,
    vs_head,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_V: tl.constexpr,
    DIM: tl.constexpr,
    DIM_V: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    K_LARGEST: tl.constexpr,
    V_LARGEST: tl.constexpr,
    K_WHOLE: tl.constexpr,
    V_WHOLE: tl.constexpr,
):
    """Grid ``(num_tokens, num_kv_heads)``: one row of keys and one of values into their slot."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slots + token).to(tl.int64)
    if slot < 0:
        return
    block = slot // BLOCK_SIZE
    slot = slot % BLOCK_SIZE
    dims = tl.arange(0, DIM)
    from_row = key + token * k_token + head * k_from_head + dims
    row = tl.load(from_row, mask=dims < HEAD_DIM, other=0.0)
    scale = tl.load(k_scale + block * ks_block + slot * ks_slot + head * ks_head)
    to_row = key_cache + block * k_block + slot * k_slot + head * k_head + dims
    tl.store(to_row, _quantised(row, scale, key_cache, K_LARGEST, K_WHOLE), mask=dims < HEAD_DIM)
    dims_v = tl.arange(0, DIM_V)
    from_row = value + token * v_token + head * v_from_head + dims_v
    row = tl.load(from_row, mask=dims_v < HEAD_DIM_V, other=0.0)
    scale = tl.load(v_scale + block * vs_block + slot * vs_slot + head * vs_head)
    to_row = value_cache + block * v_block + slot * v_slot + head * v_head + dims_v
    tl.store(
        to_row, _quantised(row, scale, value_cache, V_LARGEST, V_WHOLE), mask=dims_v < HEAD_DIM_V
    )


def write_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
    k_scale: Any = None,
    v_scale: Any = None,
) -> None:
    """Write keys and values ``[num_tokens, num_kv_heads, dim]`` into their slots.

    ``slots int64 [num_tokens]`` is block times block size plus slot within it; a negative one is
    left out. Scales as in `AttentionBatch`: stored is ``x / scale``, cut off at the largest code.
    """
    write_launch(key, value, key_cache, value_cache, slots, k_scale, v_scale).start()


def write_launch(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
    k_scale: Any = None,
    v_scale: Any = None,
) -> Launch:
    """What `write_cache` launches."""
    k, v = Scale(k_scale, key.device), Scale(v_scale, key.device)
    arguments = (
        key,
        value,
        key_cache,
        value_cache,
        slots,
        k.tensor,
        v.tensor,
        *key.stride()[:2],
        *value.stride()[:2],
        *key_cache.stride()[:3],
        *value_cache.stride()[:3],
        *k.strides,
        *v.strides,
    )
    constants = dict(
        HEAD_DIM=key.shape[2],
        HEAD_DIM_V=value.shape[2],
        DIM=padded(key.shape[2]),
        DIM_V=padded(value.shape[2]),
        BLOCK_SIZE=key_cache.shape[1],
        K_LARGEST=LARGEST_CODE.get(key_cache.dtype, 0.0),
        V_LARGEST=LARGEST_CODE.get(value_cache.dtype, 0.0),
        K_WHOLE=key_cache.dtype == torch.int8,
        V_WHOLE=value_cache.dtype == torch.int8,
    )
    return Launch(write_cache_kernel, key.shape[:2], arguments, constants, {})
