"""Launches of the Triton kernel that are right and slow, one for each way that a gate can object.

Each names the gate of `harness.ahead` that must object to it. A fault is an edit of the kernel, or
another constant, or tensors that lie badly.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from kvassay.impls import triton_kernels
from kvassay.impls.faulty.edits import replaced_once
from kvassay.impls.faulty.triton_edits import KERNELS, loaded
from kvassay.impls.triton_shipped import Shipped, configuration

CARRIED = "block_ids = _load_block_ids(table, keys + BLOCK_N, low, high, BLOCK_SIZE)\n"
USED = "block = block_ids.to(tl.int64)\n"
SCORES = 'scores = tl.dot(query, key.to(query.dtype), input_precision="ieee")'
SUM = 'acc = tl.dot(weights, value.to(query.dtype), acc, input_precision="ieee")'


def slow(target: str) -> Iterator[Shipped]:
    """The launches for one target; a name begins with the gate, then a colon."""
    prefill, small = "prefill and decode", "decode D=64 G=8 window sinks"
    yield _named("fits: registers", _with(prefill, target, BLOCK_N=128, num_warps=4))
    yield _named("copies: strides", _strided("decode", target))
    sums = _edited(
        _with(small, target, BLOCK_N=16),
        (SCORES, "scores = tl.sum(query[:, :, None].to(tl.float32) * key[None, :, :], 1)"),
        (SUM, "acc += tl.sum(weights[:, :, None].to(tl.float32) * value[None, :, :], 1)"),
    )
    yield _named("products: sums", sums)
    if target == "sm_90":
        yield _named("fits: memory", _with(prefill, target, STAGES=7, num_stages=7))
        yield _named("products: small tiles", _with(prefill, target, BLOCK_M=16, num_warps=4))
        lookup = (USED, CARRIED.replace("keys + BLOCK_N", "keys") + " " * 8 + USED)
        inside = _edited(configuration("decode", target), (CARRIED, ""), lookup)
        yield _named("in flight: table", inside)


def _named(name: str, one: Shipped) -> Shipped:
    return replace(one, name=name)


def _with(name: str, target: str, **constants: int) -> Shipped:
    """A configuration with other constants; what is no constant is an option."""
    one = configuration(name, target)
    launch = one.launch
    options = {**launch.options, **{k: v for k, v in constants.items() if k.islower()}}
    changed = {**launch.constants, **{k: v for k, v in constants.items() if k.isupper()}}
    tile_bytes = one.tile_bytes * changed["BLOCK_N"] // launch.constants["BLOCK_N"]
    return replace(
        one, launch=replace(launch, constants=changed, options=options), tile_bytes=tile_bytes
    )


def _edited(one: Shipped, *edits: tuple[str, str]) -> Shipped:
    """The kernel with text replaced that must occur once."""
    source = inspect.getsource(triton_kernels)
    for old, new in edits:
        source = replaced_once(source, old, new, where=KERNELS)
    kernel: Any = loaded(KERNELS, source).paged_attention_kernel
    return replace(one, launch=replace(one.launch, kernel=kernel))


def _strided(name: str, target: str) -> Shipped:
    """Heads of an odd number of numbers, of which the last is not used."""

    def widen(cache: torch.Tensor) -> torch.Tensor:
        return cache.new_empty(*cache.shape[:3], cache.shape[3] + 1)[..., :-1]

    return configuration(
        name,
        target,
        lambda batch: replace(
            batch, key_cache=widen(batch.key_cache), value_cache=widen(batch.value_cache)
        ),
    )
