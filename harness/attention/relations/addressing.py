"""Where blocks lie does not matter: ids, layout, block size, and who shares them (K8, K4).

That a result is the same to the bit is asked only of kernels that claim it: one that goes through
the pool in its own order, or loads other layouts in another way, is right without it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvassay.harness.attention.case import CacheLayout, Case, Placement, RowLayout, Scaling
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.oracle_kernel import twisted
from kvassay.harness.attention.relations.cases import DECODE, MIXED, recipe, recipes
from kvassay.harness.attention.relations.law import Arranged, Law
from kvassay.harness.attention.relations.problem import Problem, require
from kvassay.harness.attention.relations.relation import relation
from kvassay.harness.attention.relations.whole import same_rows
from kvassay.harness.attention.wrong import Anomaly
from kvassay.harness.contract import Capability, Determinism

BLOCK_SIZES = (16, 32, 64, 128, 256, 8, 5, 1)
"""What a problem is laid out in beside the block size of its case: the first that is accepted."""
SIZES = (
    "num_q_heads",
    "num_kv_heads",
    "head_dim",
    "head_dim_v",
    "block_size",
    "dtype",
    "cache_dtype",
    "causal",
)


def _other_ids(kernel: Kernel, case: Case) -> Arranged:
    other = Placement.IDENTITY if case.placement is not Placement.IDENTITY else Placement.REVERSED
    problem = Problem.of(case)
    return same_rows(problem, problem.laid_out(placement=other))


def _dense(kernel: Kernel, case: Case) -> Arranged:
    usual = [layout for layout in (CacheLayout.NHD, CacheLayout.HND) if layout != case.cache_layout]
    if case.row_layout is not RowLayout.DENSE and len(usual) == 1:
        usual = [case.cache_layout]
    dense = _first_accepted(kernel, case, [{"cache_layout": layout} for layout in usual])
    require(dense is not None, "two layouts, of which the kernel accepts the other")
    problem = Problem.of(case)
    return same_rows(problem.laid_out(row_layout=RowLayout.DENSE, **(dense or {})), problem)


def _other_block_size(kernel: Kernel, case: Case) -> Arranged:
    sizes = [{"block_size": size} for size in BLOCK_SIZES if size != case.block_size]
    other = _first_accepted(kernel, case, sizes)
    require(other is not None, "two block sizes, of which the kernel accepts the other")
    problem = Problem.of(case)
    return same_rows(problem.laid_out(**(other or {})), problem)


def _first_accepted(
    kernel: Kernel, case: Case, options: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """The first change to a case of a few keys that the kernel accepts."""
    least = Case(
        ((5, 1),),
        **{name: getattr(case, name) for name in SIZES},
    )
    return next((each for each in options if kernel.accepts(replace(least, **each))), None)


def _private_copies(kernel: Kernel, case: Case) -> Arranged:
    require(case.shared_blocks > 0 and len(case.seqs) > 1, "sequences that share blocks")
    private = Problem.of(case)
    return same_rows(private, private.laid_out(shared_blocks=case.shared_blocks))


relation(
    2,
    "other-block-ids",
    "physical blocks may be numbered in any way",
    law=Law("K8", Anomaly.ADDRESS, "the same result with other block ids", Determinism.BATCH),
    arrange=_other_ids,
    cases=recipes(
        recipe(MIXED, optional={"sinks": True}),
        recipe(DECODE, optional={"alibi": True}),
        recipe(DECODE, k_scale=Scaling.TOKEN, v_scale=Scaling.TOKEN, needs=[Capability.SCALES]),
    ),
    control=twisted("contiguous-blocks"),
)

relation(
    5,
    "other-layout",
    "strides, gaps and neighbours in memory do not matter",
    law=Law("K8", Anomaly.ADDRESS, "the same result as from dense NHD caches"),
    arrange=_dense,
    cases=recipes(
        recipe(DECODE, cache_layout=CacheLayout.HND),
        recipe(MIXED, cache_layout=CacheLayout.INTERLEAVED),
        recipe(DECODE, row_layout=RowLayout.FUSED),
        recipe(DECODE, cache_layout=CacheLayout.PACKED),
        recipe(DECODE, cache_layout=CacheLayout.PADDED, row_layout=RowLayout.PADDED),
    ),
    control=twisted("dense-caches"),
)

relation(
    6,
    "other-block-size",
    "the block size does not matter",
    law=Law("K8", Anomaly.ADDRESS, "the same result with another block size"),
    arrange=_other_block_size,
    cases=recipes(
        recipe(MIXED, block_size=5),
        recipe(DECODE),
        recipe(DECODE, block_size=1),
    ),
    control=twisted("blocks-of-16"),
)

relation(
    22,
    "shared-blocks",
    "blocks that sequences share are as good as copies",
    law=Law("K4", Anomaly.PARTITION, "the same as from private copies", Determinism.PREFIX),
    arrange=_private_copies,
    cases=recipes(
        recipe(((40, 1), (50, 1), (33, 1)), shared_blocks=2),
        recipe(((40, 4), (50, 1)), shared_blocks=1),
    ),
    control=twisted("shared-twice"),
    further=("K8",),
)
