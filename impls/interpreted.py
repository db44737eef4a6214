"""The built-in Triton kernel by name, with what it declares.

On a machine without a GPU it runs in Triton's interpreter, some 10 ms per program: an assay takes
minutes. So it is assayed when it is asked for, and not by default.

Importing this file imports neither torch nor Triton; building a kernel does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvassay.harness.contract import (
    Capability,
    Declaration,
    Determinism,
    PagedAttention,
    Rounding,
    Tail,
)
from kvassay.harness.registry import implementation

if TYPE_CHECKING:
    from kvassay.impls.triton_plan import Tuning

CAPABILITIES = frozenset(
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
)


DECLARED = Declaration(
    capabilities=CAPABILITIES,
    rounding=Rounding.P,
    tail=Tail.ANY,
    determinism=Determinism.RUN,
)


def usual_tuning() -> Tuning:
    """Triton made ready for what is here, the GPU or the interpreter, and the tuning for it."""
    from kvassay.harness.interpreter import use_interpreter

    interpreted = use_interpreter()
    from kvassay.impls.triton_plan import SMALL, tuning_here

    return SMALL if interpreted else tuning_here()


def _build(batch_invariant: bool) -> PagedAttention:
    tuning = usual_tuning()
    from kvassay.impls.triton_attention import TritonAttention

    return TritonAttention(tuning, batch_invariant=batch_invariant)


@implementation("triton", kind=PagedAttention, package="triton", declaration=DECLARED)
def triton_attention() -> PagedAttention:
    """As many splits of the keys as fill the GPU."""
    return _build(batch_invariant=False)


@implementation(
    "triton-batch-invariant",
    kind=PagedAttention,
    package="triton",
    declaration=replace(DECLARED, determinism=Determinism.BATCH),
)
def batch_invariant_attention() -> PagedAttention:
    """Tiles and splits of fixed size, whatever the batch."""
    return _build(batch_invariant=True)
