"""Correct kernels with unusual but declared habits: nothing may convict them.

Importing this module registers each as ``kernel-control-<name>``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

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
from kvassay.impls.faulty.tiled_attention import LN2, Habits, TiledAttention

ALL = frozenset(
    {
        Capability.CAUSAL,
        Capability.WINDOW,
        Capability.SOFTCAP,
        Capability.ALIBI,
        Capability.SINKS,
        Capability.SCALES,
        Capability.LSE,
        Capability.OUTPUT,
    }
)
USUAL = Declaration(capabilities=ALL, tail=Tail.ANY, determinism=Determinism.RUN)


@dataclass(frozen=True)
class Control:
    """One correct kernel."""

    name: str
    why: str
    """What a careless check would convict it for."""
    build: Callable[[], PagedAttention]
    declaration: Declaration = USUAL


CONTROLS: dict[str, Control] = {}


def control(
    name: str, why: str, build: Callable[[], PagedAttention], declaration: Declaration = USUAL
) -> None:
    """Enter a control and register it."""
    CONTROLS[name] = Control(name, why, build, declaration)
    implementation(f"kernel-control-{name}", kind=PagedAttention, declaration=declaration)(build)


def _declared(**changes: object) -> Declaration:
    fields = {name: getattr(USUAL, name) for name in Declaration.__dataclass_fields__}
    return Declaration(**{**fields, **changes})  # type: ignore[arg-type]


class Only:
    """Another kernel that refuses most of what it is asked."""

    def __init__(self, kernel: PagedAttention, offers: Callable[[AttentionBatch], bool]) -> None:
        self.kernel, self.offers = kernel, offers

    def __call__(self, batch: AttentionBatch) -> AttentionResult:
        if not self.offers(batch):
            raise NotImplementedError("not among what this kernel offers")
        return self.kernel(batch)


class InBaseTwo(TiledAttention):
    """Tells the LSE to base 2, as kernels that compute with powers of two have it."""

    def __call__(self, batch: AttentionBatch) -> AttentionResult:
        result = super().__call__(replace(batch, lse=None))
        return AttentionResult(result.output, result.lse / LN2)


class Converted:
    """The adapter of a kernel that tells the LSE to base 2."""

    def __init__(self, kernel: PagedAttention) -> None:
        self.kernel = kernel

    def __call__(self, batch: AttentionBatch) -> AttentionResult:
        result = self.kernel(batch)
        lse = result.lse * LN2
        return AttentionResult(result.output, lse if batch.lse is None else batch.lse.copy_(lse))


def _decodes(batch: AttentionBatch) -> bool:
    starts = batch.query_start
    return bool((starts[1:] - starts[:-1] <= 1).all())


def _fits_tensor_cores(batch: AttentionBatch) -> bool:
    return (
        batch.query.element_size() == 2
        and batch.key_cache.dtype == batch.query.dtype
        and batch.query.shape[2] in (64, 128)
        and batch.value_cache.shape[3] == batch.query.shape[2]
        and batch.key_cache.shape[1] == 16
        and batch.key_cache.stride(3) == 1
    )


control("tile-16", "other sums than the oracle's", lambda: TiledAttention(Habits(tile=16)))
control(
    "reverse",
    "keys are added from the last to the first",
    lambda: TiledAttention(Habits(tile=16, order="reverse", round_weights=False)),
)
control(
    "splits",
    "seven splits, some of them empty",
    lambda: TiledAttention(Habits(tile=16, splits=7)),
)
control(
    "splits-in-16-bit",
    "splits stored in the query's type",
    lambda: TiledAttention(Habits(tile=16, splits=4, round_parts=True)),
    _declared(rounding=Rounding.P_PART),
)
control(
    "another-order-each-time",
    "two runs differ in bits, as with atomics",
    lambda: TiledAttention(Habits(tile=8, order="random")),
    _declared(determinism=Determinism.NONE),
)
control(
    "scores-rounded",
    "scores in 16 bit, as an eager implementation has them",
    lambda: TiledAttention(Habits(round_scores=True)),
    _declared(rounding=Rounding.S),
)
control(
    "query-scaled-first",
    "the scaled query is rounded",
    lambda: TiledAttention(Habits(scale_query=True)),
    _declared(rounding=Rounding.Q_PRE),
)
control(
    "whole-blocks",
    "reads slots past the end, and masks them",
    lambda: TiledAttention(Habits(tile=32, whole_blocks=True)),
    _declared(tail=Tail.FINITE),
)
control(
    "base-2-converted", "its LSE has base 2 inside", lambda: Converted(InBaseTwo(Habits(tile=16)))
)
control(
    "same-in-any-batch",
    "claims that a row does not depend on what it is batched with",
    lambda: TiledAttention(Habits(tile=16, splits=2)),
    _declared(determinism=Determinism.BATCH),
)
control("doubles", "computes in float64", lambda: TiledAttention(Habits(doubles=True)))
control(
    "empty-nan",
    "an empty row is NaN",
    lambda: TiledAttention(Habits(empty_row=EmptyRow.NAN)),
    _declared(empty_row=EmptyRow.NAN),
)
control(
    "empty-untouched",
    "an empty row is not written",
    lambda: TiledAttention(Habits(empty_row=EmptyRow.UNTOUCHED)),
    _declared(empty_row=EmptyRow.UNTOUCHED),
)
control(
    "decode-only",
    "refuses every prefill",
    lambda: Only(TiledAttention(), _decodes),
)
control(
    "few-sizes",
    "16 bit, head sizes 64 and 128 and blocks of 16 only",
    lambda: Only(TiledAttention(), _fits_tensor_cores),
)
control(
    "bare",
    "claims nothing: plain attention without a mask",
    lambda: Only(TiledAttention(), lambda batch: not batch.causal),
    Declaration(),
)
