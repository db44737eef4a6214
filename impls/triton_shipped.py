"""The launches of the Triton kernels that matter, for compiling them ahead of time.

Shapes are those of models that are served; the plan and the launch are made by what makes them on a
GPU. Tensors have no memory (torch's device ``meta``) except lengths, which the plan reads. Caches
are larger than 2 GiB where they would be, since the AMD compiler asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvassay.harness.contract import AttentionBatch
from kvassay.impls.triton_attention import launches
from kvassay.impls.triton_cache import write_launch
from kvassay.impls.triton_launch import Launch
from kvassay.impls.triton_plan import TUNINGS, plan

BLOCKS, BLOCK_SIZE, CONTEXT = 1 << 17, 16, 4096
LONG = 64
"""Queries of a sequence from which on it is prefill."""
EXCLUDED = {
    "float32": "products in full precision go without tensor cores: right, and slow, everywhere",
    "float8_e4m3fn on sm_80": "the type came with sm_89; float8_e5m2 is compiled instead",
}
"""What is offered, or asked for, but not held to the gates, and why."""


@dataclass(frozen=True)
class Shipped:
    """A launch by name, and what its binary is held to (see `harness.ahead`)."""

    name: str
    launch: Launch
    phase: str
    tile_bytes: int = 0
    narrow: tuple[int, ...] = ()


def shipped(target: str) -> Iterator[Shipped]:
    """The configurations for one of `TUNINGS`."""
    for name, batch in batches(target).items():
        yield from _launched(name, batch, target)
    yield _write("write", torch.bfloat16, None)
    yield _write("write 8-bit token scales", _byte(target), _floats(BLOCKS, BLOCK_SIZE, 8))


def configuration(
    name: str, target: str, change: Callable[[AttentionBatch], AttentionBatch] | None = None
) -> Shipped:
    """One launch of attention by name, of its batch or of a changed one."""
    batch = batches(target)[name]
    return next(_launched(name, change(batch) if change else batch, target))


def batches(target: str) -> dict[str, AttentionBatch]:
    """What is computed, by name. Every feature of the kernel is in one of them."""
    many, few = [1] * 64, [1] * 8
    per_token = _floats(BLOCKS, BLOCK_SIZE, 8)
    narrow = {"dims": (64, 64), "heads": (64, 8), "window_left": 127, "sinks": _floats(64)}
    wide = {"dims": (256, 256), "heads": (16, 8), "softcap": 50.0}
    byte = {"cache": _byte(target)}
    return {
        "decode": _batch(many),
        "decode batch-invariant": _batch(many),
        "decode D=64 G=8 window sinks": _batch(many, **narrow),
        "decode MQA float16 split": _batch(few, heads=(8, 1), dtype=torch.float16),
        "decode D=80 G=7 split": _batch(few, heads=(28, 4), dims=(80, 80)),
        "decode D=256 G=2 softcap": _batch(many, **wide),
        "decode G=1 ALiBi": _batch(many, heads=(32, 32), alibi_slopes=_floats(32)),
        "decode 8-bit": _batch(many, **byte, k_scale=0.5, v_scale=0.5),
        "decode 8-bit token scales": _batch(many, **byte, k_scale=per_token, v_scale=per_token),
        "decode MLA 576/512": _batch(many, heads=(128, 1), dims=(576, 512), latent=True),
        "verify 5": _batch([5] * 64),
        "prefill and decode": _batch([2048] + [1] * 63),
        "prefill D=64 window sinks": _batch([CONTEXT], **narrow),
        "prefill D=192/128": _batch([CONTEXT], heads=(16, 16), dims=(192, 128)),
        "prefill D=256 softcap": _batch([CONTEXT], **wide),
        "prefill 8-bit head scales": _batch(
            [CONTEXT], **byte, k_scale=_floats(8), v_scale=_floats(8)
        ),
    }


def _byte(target: str) -> torch.dtype:
    return torch.float8_e5m2 if target == "sm_80" else torch.float8_e4m3fn


def _launched(name: str, batch: AttentionBatch, target: str) -> Iterator[Shipped]:
    """The launches of a batch: attention, and the merge of its splits."""
    cut = plan(batch, TUNINGS[target], batch_invariant="invariant" in name)
    query = batch.query
    output = query.new_empty(*query.shape[:2], batch.value_cache.shape[3])
    lse = query.new_empty(query.shape[:2], dtype=torch.float32)
    first, *rest = launches(batch, cut, output, lse)
    key, value = batch.key_cache, batch.value_cache
    row = (cut.tile.dim + cut.tile.dim_rest) * key.element_size()
    row += cut.tile.dim_v * value.element_size()
    tokens = batch.query_start[1:] - batch.query_start[:-1]
    per_token = isinstance(batch.k_scale, Tensor) and batch.k_scale.dim() == 3
    yield Shipped(
        name,
        first,
        phase="prefill" if int(tokens.max()) >= LONG else "decode",
        tile_bytes=cut.tile.block_n * row,
        narrow=(4,) if per_token else (),
    )
    for launch in rest:
        yield Shipped(f"{name}: merge", launch, phase="other")


def _write(name: str, cache: torch.dtype, scale: Any) -> Shipped:
    rows = _empty(2048, 8, 128, dtype=torch.bfloat16)
    into = _empty(BLOCKS, BLOCK_SIZE, 8, 128, dtype=cache)
    slots = _empty(2048, dtype=torch.int64)
    return Shipped(name, write_launch(rows, rows, into, into, slots, scale, scale), phase="other")


def _batch(
    queries: Sequence[int],
    heads: tuple[int, int] = (32, 8),
    dims: tuple[int, int] = (128, 128),
    dtype: torch.dtype = torch.bfloat16,
    cache: torch.dtype | None = None,
    latent: bool = False,
    **features: Any,
) -> AttentionBatch:
    """Sequences of CONTEXT keys and so many queries; `latent`: values are a part of the keys."""
    number = len(queries)
    key = _empty(BLOCKS, BLOCK_SIZE, heads[1], dims[0], dtype=cache or dtype)
    value = _empty(BLOCKS, BLOCK_SIZE, heads[1], dims[1], dtype=cache or dtype)
    return AttentionBatch(
        query=_empty(sum(queries), heads[0], dims[0], dtype=dtype),
        key_cache=key,
        value_cache=key[..., : dims[1]] if latent else value,
        block_table=_empty(number, CONTEXT // BLOCK_SIZE, dtype=torch.int32),
        seq_lens=torch.full((number,), CONTEXT, dtype=torch.int32),
        query_start=torch.tensor([0, *queries]).cumsum(0).to(torch.int32),
        **features,
    )


def _floats(*shape: int) -> Tensor:
    return _empty(*shape, dtype=torch.float32)


def _empty(*shape: int, dtype: torch.dtype) -> Tensor:
    """A tensor without memory; its address is 0, aligned as torch aligns memory."""
    return torch.empty(shape, dtype=dtype, device="meta")
