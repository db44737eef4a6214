"""Where blocks and rows lie changes nothing: ids, strides, gaps, distances (K8).

Each case is compared with the same problem in the plainest place: blocks in order, dense caches,
dense rows. Block ids alone must change no bit where the kernel claims determinism=batch or more (a
request's ids depend on its batch); with other strides, or a weaker claim, the result has to be
right within the rounding budget. Ids on both sides of 2**15 and 2**16, and blocks more than 2**31
elements apart, show addresses that are computed in too few bits; as those may end the process, or
not, by what happens to lie there, another one judges them where it can.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

from kvassay.harness.attention.case import CacheLayout, Case, Garbage, Placement, RowLayout
from kvassay.harness.attention.check import Check, register
from kvassay.harness.attention.compare import compare
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.lengths import Seqs
from kvassay.harness.attention.oracle_kernel import twisted
from kvassay.harness.attention.probes.bits import Law, Run, compared
from kvassay.harness.attention.probes.elsewhere import Untold, judged
from kvassay.harness.attention.probes.shapes import BLOCK_SIZES, HALF_FIRST, buffered, taken
from kvassay.harness.attention.wrong import Anomaly, Wrong
from kvassay.harness.contract import Determinism

LAW = Law("K8", Anomaly.ADDRESS, "the same result wherever blocks and rows lie")
HERE = f"{__name__}:judge_here"
BLIND = (Determinism.NONE, Determinism.RUN)
"""Claims that say nothing about other ids."""
SMALLEST = (16, 32, 64, 128, 256)
SMALL_BLOCKS = (1, 16, *BLOCK_SIZES[1:])
"""For the cases that need tens of thousands of blocks."""


def judge(kernel: Kernel, case: Case) -> Wrong | None:
    """The same as in the plainest place."""
    if case.cache_layout is CacheLayout.V_IN_K:
        return _by_itself(kernel, case)
    if case.placement is Placement.HIGH or case.cache_layout is CacheLayout.FAR:
        try:
            found = judged(kernel, case, HERE, beside=_plain(case))
        except Untold:
            return judge_here(kernel, case)
        if isinstance(found, str):
            return Wrong(LAW.invariant, LAW.anomaly, LAW.expected, found)
        return found
    return judge_here(kernel, case)


def judge_here(kernel: Kernel, case: Case) -> Wrong | None:
    """The same, in this process."""
    plain = _plain(case)
    exact = replace(plain, placement=case.placement) == case
    return compared(
        kernel,
        Run.of(kernel, kernel.build(plain)),
        kernel.build(case),
        LAW,
        exact=exact and kernel.declaration.determinism not in BLIND,
    )


def _plain(case: Case) -> Case:
    return replace(
        case,
        placement=Placement.IDENTITY,
        cache_layout=CacheLayout.NHD,
        row_layout=RowLayout.DENSE,
    )


def _by_itself(kernel: Kernel, case: Case) -> Wrong | None:
    """Values inside the keys are another problem: it has to be right, if its neighbour is."""
    seen = compare(kernel, case)
    if seen.right or not compare(kernel, replace(case, cache_layout=CacheLayout.NHD)).right:
        return None
    return Wrong(LAW.invariant, LAW.anomaly, LAW.expected, str(seen.judgement.problem))


def cases(kernel: Kernel, rng: Random) -> Iterable[Case]:
    """Shuffled ids, far and high ones, then other layouts of caches and of rows."""
    base = buffered(kernel, garbage=Garbage.ZERO)
    if base is None:
        return
    size = base.block_size
    decode: Seqs = ((3 * size + 1, 1), (size, 1), (5, 1))
    mixed: Seqs = ((2 * size + 3, 5), (size + 1, 1), (4, 4))
    first, *others = _changes()
    yield from _changed(kernel, base, first, (decode, mixed), rng)
    far = buffered(kernel, dtypes=HALF_FIRST, garbage=Garbage.ZERO)
    if far is not None:
        layout = CacheLayout.FAR
        yield replace(far, seqs=decode, cache_layout=layout, seed=rng.randrange(2**31))
    high = buffered(
        kernel,
        head_dims=SMALLEST,
        block_sizes=SMALL_BLOCKS,
        heads=((1, 1), (2, 1), (4, 2), (2, 2)),
        garbage=Garbage.ZERO,
    )
    if high is not None:
        seqs = ((5 * high.block_size + 1, 1), (2 * high.block_size, 1))
        yield replace(high, seqs=seqs, placement=Placement.HIGH, seed=rng.randrange(2**31))
    for change in others:
        yield from _changed(kernel, base, change, (decode, mixed), rng)


def _changed(
    kernel: Kernel, base: Case, change: dict[str, Any], batches: tuple[Seqs, ...], rng: Random
) -> Iterator[Case]:
    """The batches with a change, if the kernel takes it."""
    if taken(kernel, base, **change):
        for seqs in batches:
            yield replace(base, seqs=seqs, seed=rng.randrange(2**31), **change)


def _changes() -> Iterator[dict[str, Any]]:
    yield {"placement": Placement.SHUFFLED}
    yield {"placement": Placement.REVERSED}
    for layout in CacheLayout:
        if layout not in (CacheLayout.NHD, CacheLayout.FAR):
            yield {"cache_layout": layout}
    yield {"row_layout": RowLayout.PADDED}
    yield {"row_layout": RowLayout.FUSED}


register(
    Check(
        "addressing",
        "results do not depend on block ids, strides, gaps and distances",
        ("K8",),
        cases,
        judge,
        twisted("contiguous-blocks"),
    )
)
