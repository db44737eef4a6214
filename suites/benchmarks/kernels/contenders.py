"""Who is timed: the Triton kernel, any registered kernel, and what torch does on dense memory.

A contender turns a batch into a call. What can be done once per scheduler step (checks, plans,
page tables, gathering into dense memory) is done before; the call is what every layer repeats.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kvassay.harness.contract import AttentionBatch, AttentionResult, Capability, PagedAttention
from kvassay.harness.registry import find
from kvassay.harness.timing import Call
from kvassay.impls.interpreted import usual_tuning
from kvassay.suites.benchmarks.kernels.batches import dense, with_buffers

Prepare = Callable[[AttentionBatch], Call]


class NotOffered(Exception):
    """This contender does not compute such a batch; says why."""


def triton(tuning: Any = None, *, batch_invariant: bool = False) -> Prepare:
    """The built-in kernel, planned before; `tuning` as in `impls.triton_plan`, or its default."""
    usual = usual_tuning()
    from kvassay.impls.triton_attention import launches
    from kvassay.impls.triton_plan import plan

    chosen = tuning or usual

    def prepare(batch: AttentionBatch) -> Call:
        own = with_buffers(batch)
        cut = plan(own, chosen, batch_invariant=batch_invariant)
        assert own.output is not None
        assert own.lse is not None
        result = AttentionResult(own.output, own.lse)
        steps = launches(own, cut, own.output, own.lse)

        def call() -> AttentionResult:
            for step in steps:
                step.start()
            return result

        return call

    return prepare


def registered(name: str) -> Prepare:
    """A registered kernel as its users call it, with whatever it does in Python."""
    (registration,) = (each for each in find(name) if each.kind is PagedAttention)
    kernel = registration.build()
    buffers = registration.declaration.has(Capability.OUTPUT)

    def prepare(batch: AttentionBatch) -> Call:
        own = with_buffers(batch) if buffers else batch
        try:
            kernel(own)
        except (ValueError, NotImplementedError) as refusal:
            raise NotOffered(str(refusal)) from None
        return lambda: kernel(own)

    return prepare


def contiguous(batch: AttentionBatch) -> Call:
    """torch's scaled dot product attention on dense memory, its flash kernel where there is one."""
    try:
        query, key, value = dense(batch)
    except ValueError as error:
        raise NotOffered(str(error)) from None
    rows, keys = query.shape[2], key.shape[2]
    if batch.window_left is not None or rows not in (1, keys):
        raise NotOffered("decode rows or whole prompts, without a window")
    causal = rows > 1 and batch.causal
    backends = [SDPBackend.FLASH_ATTENTION]
    if query.device.type != "cuda":
        backends.append(SDPBackend.MATH)

    def call() -> object:
        with sdpa_kernel(backends):
            return scaled_dot_product_attention(
                query, key, value, is_causal=causal, enable_gqa=True
            )

    return call


def flex(batch: AttentionBatch) -> Call:
    """torch's FlexAttention, compiled, on dense memory with the causal mask as a block mask."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    try:
        query, key, value = dense(batch)
    except ValueError as error:
        raise NotOffered(str(error)) from None
    if query.device.type != "cuda":
        raise NotOffered("compiled for a GPU only")
    rows, keys = query.shape[2], key.shape[2]
    left = keys if batch.window_left is None else batch.window_left

    def visible(_batch: Any, _head: Any, row: Any, key: Any) -> Any:
        position = row + keys - rows
        return (key <= position) & (key >= position - left)

    mask = create_block_mask(visible, None, None, rows, keys, device="cuda")
    compiled = torch.compile(flex_attention)
    return lambda: compiled(query, key, value, block_mask=mask, enable_gqa=True)


DENSE: dict[str, Prepare] = {"sdpa-contiguous": contiguous, "flex": flex}
"""What torch brings along, by name."""


def contender(name: str) -> Prepare:
    """By name: of `DENSE`, the Triton kernel, or whatever is registered."""
    if name in DENSE:
        return DENSE[name]
    if name in ("triton", "triton-batch-invariant"):
        return triton(batch_invariant=name != "triton")
    return registered(name)
