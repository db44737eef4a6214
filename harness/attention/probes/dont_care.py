"""Garbage where nothing may be read changes no bit (K2).

Unused slots, free blocks, blocks that left the window, scales of nobody's tokens and spare table
columns hold garbage: large numbers, other ones, the largest there are, zeros. `wild-tail` puts NaN,
infinities and ids of no block there, for kernels that claim tail=any. An id of no block may be the
end of the process: where another process can find the kernel, it goes there first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import torch

from kvassay.harness.attention.case import Case, Garbage, Scaling
from kvassay.harness.attention.check import Check, register
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.oracle_kernel import spoiled, twisted
from kvassay.harness.attention.probes.bits import Law, Run, compared
from kvassay.harness.attention.probes.elsewhere import fatal
from kvassay.harness.attention.probes.likely import likelier
from kvassay.harness.attention.probes.shapes import buffered, decode, lattice, taken
from kvassay.harness.attention.wrong import Anomaly, Wrong
from kvassay.harness.contract import (
    AttentionBatch,
    AttentionResult,
    Capability,
    Declaration,
    Tail,
)
from kvassay.harness.violation import Crash

TAME = (Garbage.FINITE, Garbage.LARGEST, Garbage.ZERO)
WILD = (Garbage.NAN, Garbage.INF)
QUANTISED = ("float8_e4m3fn", "int8", "float8_e5m2")
WORDS = {
    Garbage.FINITE: "other garbage",
    Garbage.LARGEST: "the largest finite numbers",
    Garbage.ZERO: "zeros",
    Garbage.NAN: "NaN and ids of no block",
    Garbage.INF: "infinities and ids below 0",
}


# ---------------------------------------------------------------------------------------- judging


def judge_tame(kernel: Kernel, case: Case) -> Wrong | None:
    """The same bits with every other finite garbage."""
    other = [replace(case, garbage=kind) for kind in TAME if kind is not case.garbage]
    return _judged(kernel, case, [replace(case, garbage_seed=case.garbage_seed + 1), *other])


def judge_wild(kernel: Kernel, case: Case) -> Wrong | None:
    """The same bits with garbage that is no number, and with ids that are no block."""
    variants = [replace(case, garbage=kind) for kind in WILD]
    for variant in variants:
        death = fatal(kernel, variant, beside=case)
        if death is not None:
            return Wrong("K2", Anomaly.TAIL, _law(variant).expected, death)
    return _judged(kernel, case, variants)


def _judged(kernel: Kernel, case: Case, variants: list[Case]) -> Wrong | None:
    plain = Run.of(kernel, kernel.build(case))
    for variant in variants:
        wrong = _beside(kernel, plain, variant)
        if wrong is not None:
            return likelier(kernel, case, wrong)
    return None


def _beside(kernel: Kernel, plain: Run, variant: Case) -> Wrong | None:
    """The variant against the plain one, which the kernel got through."""
    law = _law(variant)
    try:
        return compared(kernel, plain, kernel.build(variant), law)
    except Crash as crash:
        return Wrong(law.invariant, law.anomaly, law.expected, crash.what)


def _law(variant: Case) -> Law:
    expected = f"the same result with {WORDS[variant.garbage]} where nothing may be read"
    return Law("K2", Anomaly.TAIL, expected)


# ------------------------------------------------------------------------------------------ cases


def cases(kernel: Kernel, rng: Random) -> Iterable[Case]:
    """Partly filled blocks, at decode and in chunks, windows with blocks gone, token scales."""
    base = buffered(kernel)
    if base is None:
        return
    size = base.block_size
    for seqs in (decode(*lattice(size)), ((2 * size + 5, 7), (5, 5), (size + 1, 1), (3, 0))):
        yield replace(base, seqs=seqs, seed=rng.randrange(2**31))
    if kernel.has(Capability.WINDOW):
        gone = replace(base, window_left=size + 3, evicted=True)
        yield replace(gone, seqs=decode(5 * size + 3, 3 * size, 7), seed=rng.randrange(2**31))
        yield replace(gone, seqs=((6 * size + 1, 5), (9, 9)), seed=rng.randrange(2**31))
    yield from _scaled(kernel, base, rng)


def _scaled(kernel: Kernel, base: Case, rng: Random) -> Iterator[Case]:
    """Scales per token, of which only those of live tokens may be read."""
    if not kernel.has(Capability.SCALES):
        return
    per_token: dict[str, Any] = {"k_scale": Scaling.TOKEN, "v_scale": Scaling.TOKEN}
    for cache in QUANTISED:
        if taken(kernel, base, cache_dtype=cache, **per_token):
            seqs = decode(*lattice(base.block_size))
            seed = rng.randrange(2**31)
            yield replace(base, seqs=seqs, seed=seed, cache_dtype=cache, **per_token)
            return


def _wild_claim(declaration: Declaration) -> str | None:
    return None if declaration.tail is Tail.ANY else "tail=finite"


def _nothing_times_tail(batch: AttentionBatch, result: AttentionResult) -> AttentionResult:
    """Adds 0 times the last slot of every block: nothing, unless it holds no number."""
    last = batch.value_cache[:, -1, :1].to(torch.float32).sum(dim=(0, 1))
    added = (0 * last).to(result.output.dtype)
    return AttentionResult(result.output.add_(added), result.lse)


register(
    Check(
        "dont-care",
        "no bit depends on finite garbage where nothing may be read",
        ("K2",),
        cases,
        judge_tame,
        twisted("whole-block"),
    )
)
register(
    Check(
        "wild-tail",
        "no bit depends on NaN, infinities and ids of no block where nothing may be read",
        ("K2",),
        cases,
        judge_wild,
        spoiled(_nothing_times_tail),
        claim=_wild_claim,
    )
)
