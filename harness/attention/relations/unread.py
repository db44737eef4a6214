"""What lies where nothing may be read has no effect: garbage, blocks long gone, buffers (K2, K13).

The first two hold to the bit for any finite garbage: a weight of 0 times a finite number adds
nothing to a sum. For NaN, Inf and ids of no block they hold where the kernel claims tail=any.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from kvassay.harness.attention.build import gone
from kvassay.harness.attention.case import Case, Garbage, RowLayout
from kvassay.harness.attention.check import Cases
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.oracle_kernel import spoiled, twisted
from kvassay.harness.attention.relations.cases import DECODE, MIXED, Recipe, recipe, recipes
from kvassay.harness.attention.relations.law import Arranged, Law
from kvassay.harness.attention.relations.mistakes import leaves_the_last_row
from kvassay.harness.attention.relations.problem import Problem, require
from kvassay.harness.attention.relations.relation import relation
from kvassay.harness.attention.relations.whole import same_rows
from kvassay.harness.attention.wrong import Anomaly
from kvassay.harness.contract import Capability, Determinism, Tail


def _with_garbage(*given: Recipe) -> Cases:
    """Finite garbage for all, the worse kinds for who claims to stand them."""
    finite = recipes(*given)

    def cases(kernel: Kernel, rng: Random) -> Iterator[Case]:
        yield from finite(kernel, rng)
        if kernel.declaration.tail is Tail.ANY:
            kinds = (Garbage.NAN, Garbage.INF)
            for kind, case in zip(kinds, finite(kernel, rng), strict=False):
                yield replace(case, garbage=kind)

    return cases


def _clean(kernel: Kernel, case: Case) -> Arranged:
    other = Garbage.ZERO if case.garbage is not Garbage.ZERO else Garbage.FINITE
    problem = Problem.of(case)
    return same_rows(problem.laid_out(garbage=other), problem)


def _all_there(kernel: Kernel, case: Case) -> Arranged:
    require(
        case.evicted and any(gone(case, index) for index in range(len(case.seqs))),
        "blocks that have left the window",
    )
    problem = Problem.of(case)
    whole = problem.laid_out(evicted=False, garbage=Garbage.ZERO)
    return same_rows(whole, problem)


def _own_buffers(kernel: Kernel, case: Case) -> Arranged:
    require(case.buffers, "buffers that are given")
    problem = Problem.of(case)
    return same_rows(problem.laid_out(buffers=False), problem)


relation(
    3,
    "other-garbage",
    "unused slots, free blocks and spare table columns do not matter",
    law=Law("K2", Anomaly.TAIL, "the same result with zeros there", Determinism.NONE, direct=True),
    arrange=_clean,
    cases=_with_garbage(recipe(MIXED), recipe(DECODE)),
    control=twisted("extra-key"),
)

relation(
    4,
    "evicted-blocks",
    "blocks left of every window may be gone",
    law=Law("K2", Anomaly.TAIL, "the same result as with them", Determinism.NONE, direct=True),
    arrange=_all_there,
    cases=_with_garbage(
        recipe(((60, 1), (39, 1)), window_left=17, evicted=True),
        recipe(((60, 5), (39, 1)), window_left=11, evicted=True),
    ),
    control=twisted("no-window"),
    further=("K6",),
    needs=(Capability.WINDOW,),
)

relation(
    28,
    "given-buffers",
    "buffers full of NaN come back written whole, and nothing else does",
    law=Law("K13", Anomaly.FOOTPRINT, "the same result as without buffers"),
    arrange=_own_buffers,
    cases=recipes(
        recipe(DECODE, buffers=True), recipe(MIXED, buffers=True, row_layout=RowLayout.PADDED)
    ),
    control=spoiled(leaves_the_last_row),
    needs=(Capability.OUTPUT,),
)
