"""The built-in attention kernels by name, with what they declare.

A kernel is imported when it is built, not when it is listed: PyTorch takes seconds to import, and
nobody who assays a cache manager needs it. The contiguous baseline is registered in `contiguous`,
beside the managers that it belongs to.
"""

from __future__ import annotations

from kvassay.harness.contract import (
    Capability,
    Declaration,
    Determinism,
    PagedAttention,
    Rounding,
    Tail,
)
from kvassay.harness.registry import implementation


@implementation(
    "torch",
    kind=PagedAttention,
    declaration=Declaration(
        capabilities=frozenset(
            {
                Capability.CAUSAL,
                Capability.WINDOW,
                Capability.SOFTCAP,
                Capability.ALIBI,
                Capability.SINKS,
                Capability.SCALES,
                Capability.LSE,
                Capability.OUTPUT,
                Capability.VALIDATES_INPUT,
            }
        ),
        rounding=Rounding.P,
        tail=Tail.ANY,
        determinism=Determinism.BATCH,
    ),
)
def torch_attention() -> PagedAttention:
    """The kernel in plain PyTorch."""
    from kvassay.impls.torch_attention import TorchAttention

    return TorchAttention()
