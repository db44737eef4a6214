"""No access outside the tensors (K13): each lies between pages that may not be touched.

The kernel runs in another process, which such an access ends; that is the verdict. Slots past a
sequence's end and spare table columns lie inside their tensors and may be read where tail=finite.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from dataclasses import replace
from random import Random

from kvassay.harness.attention.case import CacheLayout, Case, Placement, Scaling
from kvassay.harness.attention.check import Check, register
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.guarded import CONTROL, Fate, Guard
from kvassay.harness.attention.oracle_kernel import OracleKernel
from kvassay.harness.attention.probes.elsewhere import tried
from kvassay.harness.attention.probes.shapes import buffered, decode, lattice, taken
from kvassay.harness.attention.wrong import Anomaly, Refused, Wrong
from kvassay.harness.contract import AttentionBatch, AttentionResult, Capability, Declaration
from kvassay.harness.violation import Crash

NAME = "guard-pages"
EXPECTED = "no access outside the tensors given"


def judge(kernel: Kernel, case: Case) -> Wrong | None:
    """Forbidden pages after every tensor, then before it."""
    for guard in Guard:
        fate = tried(kernel, case, guard)
        if fate.outcome == "outside":
            return Wrong("K13", Anomaly.OUTSIDE, EXPECTED, f"an access {fate.text}")
        wrong = _other(fate)
        if wrong is not None:
            return wrong
    return None


def _other(fate: Fate) -> Wrong | None:
    """What else may become of a kernel; that it hangs may be the fork's fault."""
    if fate.outcome in ("refused", "hangs"):
        raise Refused(fate.text)
    if fate.outcome == "crash":
        raise Crash(fate.text)
    if fate.outcome == "killed":
        raise Crash(f"the process is ended by {fate.text}, with or without forbidden pages")
    if fate.outcome == "wrong":
        return Wrong("K13", Anomaly.FOOTPRINT, EXPECTED, fate.text)
    return None


def cases(kernel: Kernel, rng: Random) -> Iterable[Case]:
    """Blocks at both ends of the caches, full and not, at decode and in chunks."""
    base = buffered(kernel)
    if base is None:
        return
    size = base.block_size
    mixed = ((2 * size + 5, size + 1), (size, 1), (3, 3), (5, 0))
    for seqs in (decode(*lattice(size)), mixed):
        for placement in (Placement.REVERSED, Placement.IDENTITY):
            seed = rng.randrange(2**31)
            yield replace(base, seqs=seqs, placement=placement, seed=seed)
    yield from _variants(kernel, replace(base, placement=Placement.REVERSED), rng)


def _variants(kernel: Kernel, base: Case, rng: Random) -> Iterator[Case]:
    """What is read in another way: windows, layouts, scales, sinks."""
    size = base.block_size
    seqs = decode(size - 1, 2 * size + 1, 5 * size)
    changes: list[dict[str, object]] = [
        {"cache_layout": CacheLayout.HND},
        {"cache_layout": CacheLayout.PACKED},
    ]
    if kernel.has(Capability.WINDOW):
        changes.append({"window_left": size + 3, "evicted": True})
    if kernel.has(Capability.SCALES):
        token = Scaling.TOKEN
        changes.append({"cache_dtype": "float8_e4m3fn", "k_scale": token, "v_scale": token})
    if kernel.has(Capability.ALIBI, Capability.SINKS):
        changes.append({"alibi": True, "sinks": True})
    for change in changes:
        if taken(kernel, base, **change):
            yield replace(base, seqs=seqs, seed=rng.randrange(2**31), **change)  # type: ignore[arg-type]


class _Outsider(OracleKernel):
    """Reads the byte after the keys."""

    found_as = f"{CONTROL}{NAME}"

    def __init__(self, declaration: Declaration) -> None:
        super().__init__(declaration, spoil=_looks_outside)


def _looks_outside(batch: AttentionBatch, result: AttentionResult) -> AttentionResult:
    keys = batch.key_cache
    steps = zip(keys.shape, keys.stride(), strict=True)
    size = 1 + sum((count - 1) * stride for count, stride in steps)
    ctypes.string_at(keys.data_ptr() + size * keys.element_size(), 1)
    return result


register(
    Check(
        NAME,
        "no access outside the tensors given, found with forbidden pages around them",
        ("K13",),
        cases,
        judge,
        _Outsider,
    )
)
