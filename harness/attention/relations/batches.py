"""What else is in the batch, or was in the one before, does not matter (K14, K4).

The contents of other rows change no bit. Their number and shapes may, unless the kernel claims
determinism=batch; how it splits its work often depends on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch
from torch import Generator

from kvassay.harness.attention.case import Case, Contents
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.oracle_kernel import spoiled, twisted
from kvassay.harness.attention.relations.cases import DECODE, MIXED, recipe, recipes
from kvassay.harness.attention.relations.law import Arranged, Law
from kvassay.harness.attention.relations.mistakes import keeps_the_last_result, spills_over
from kvassay.harness.attention.relations.problem import Problem, Tokens, require
from kvassay.harness.attention.relations.relation import relation
from kvassay.harness.attention.relations.view import View, joined
from kvassay.harness.attention.wrong import Anomaly
from kvassay.harness.contract import Determinism

LONGER = 512
"""Keys that the neighbour has more than twice those of the longest sequence."""


def _twice(kernel: Kernel, case: Case) -> Arranged:
    """With something larger in between, which may leave its traces in a workspace."""
    problem = Problem.of(case)
    require(case.num_tokens > 0, "batches with rows")
    between = problem.having(
        each.edited(torch.ones(len(each.key), dtype=torch.bool), case.seed)
        for each in (*problem.tokens, *problem.tokens)
    )

    def sides(views: Sequence[Sequence[View]]) -> tuple[View, View]:
        return joined(views[0]), joined(views[2])

    return Arranged((problem, between, problem), sides)


def _longer_neighbour(kernel: Kernel, case: Case) -> Arranged:
    require(case.num_tokens > 0, "batches with rows")
    problem = Problem.of(case)
    neighbour = _drawn(case, 2 * max(keys for keys, _ in case.seqs) + LONGER)
    beside = problem.having((*problem.tokens, neighbour))

    def sides(views: Sequence[Sequence[View]]) -> tuple[View, View]:
        return joined(views[0]), joined(views[1][:-1])

    return Arranged((problem, beside), sides)


def _drawn(case: Case, keys: int) -> Tokens:
    """A sequence of so many keys, with one query."""
    generator = Generator().manual_seed(case.seed + 1)

    def normal(rows: int, heads: int, dim: int) -> torch.Tensor:
        return torch.randn(rows, heads, dim, generator=generator)

    return Tokens(
        normal(1, case.num_q_heads, case.head_dim),
        normal(keys, case.num_kv_heads, case.head_dim),
        normal(keys, case.num_kv_heads, case.head_dim_v),
    )


def _composition(kernel: Kernel, case: Case) -> Arranged:
    """One sequence by itself, and the others the other way round."""
    require(len(case.seqs) > 1, "batches of several sequences")
    problem = Problem.of(case)
    order = list(range(len(case.seqs)))
    alone = order.pop(Random(case.seed).randrange(len(order)))
    require(case.seqs[alone][1] > 0, "sequences with rows")
    single = problem.having([problem.tokens[alone]])
    others = problem.having(problem.tokens[index] for index in reversed(order))

    def sides(views: Sequence[Sequence[View]]) -> tuple[View, View]:
        whole = [views[0][alone], *(views[0][index] for index in reversed(order))]
        return joined(whole), joined([*views[1], *views[2]])

    return Arranged((problem, single, others), sides)


def _other_contents(kernel: Kernel, case: Case) -> Arranged:
    """The same batch with all tokens but those of one sequence replaced by loud ones."""
    require(len(case.seqs) > 1, "batches of several sequences")
    kept = Random(case.seed).randrange(len(case.seqs))
    require(case.seqs[kept][1] > 0, "sequences with rows")
    problem = Problem.of(case)
    loud = [
        each.edited(torch.ones(len(each.key), dtype=torch.bool), case.seed + index)
        for index, each in enumerate(problem.tokens)
    ]
    loud[kept] = problem.tokens[kept]

    def sides(views: Sequence[Sequence[View]]) -> tuple[View, View]:
        return views[0][kept], views[1][kept]

    return Arranged((problem, problem.having(loud)), sides)


def _without_empty(kernel: Kernel, case: Case) -> Arranged:
    kept = [index for index, (keys, rows) in enumerate(case.seqs) if keys and rows]
    require(0 < len(kept) < len(case.seqs), "some sequences without keys or rows, and some with")
    problem = Problem.of(case)
    fewer = problem.having(problem.tokens[index] for index in kept)

    def sides(views: Sequence[Sequence[View]]) -> tuple[View, View]:
        return joined(views[0]), joined([views[1][index] for index in kept])

    return Arranged((fewer, problem), sides)


relation(
    1,
    "run-twice",
    "the same call gives the same, whatever was computed in between",
    law=Law("K4", Anomaly.LEAK, "the same result as the first time", Determinism.RUN),
    arrange=_twice,
    cases=recipes(recipe(((33, 5), (20, 1))), recipe(DECODE)),
    control=keeps_the_last_result,
    further=("K14",),
)

relation(
    8,
    "longer-neighbour",
    "blocks of keys and splits that a longer sequence brings about do not matter",
    law=Law("K4", Anomaly.PARTITION, "the same result as without it", Determinism.BATCH),
    arrange=_longer_neighbour,
    cases=recipes(
        recipe(((50, 1),), contents=Contents.PEAKY),
        recipe(((47, 3), (21, 1)), contents=Contents.PEAKY),
    ),
    control=twisted("parts-in-base-2"),
)

relation(
    9,
    "batch-composition",
    "which sequences share the batch, and in what order, does not matter",
    law=Law("K14", Anomaly.LEAK, "the same rows in another batch", Determinism.BATCH),
    arrange=_composition,
    cases=recipes(recipe(MIXED), recipe(((37, 1), (50, 1), (9, 1)))),
    control=spoiled(spills_over),
)

relation(
    9,
    "other-contents",
    "what other sequences contain does not matter",
    law=Law("K14", Anomaly.LEAK, "the same rows beside others", Determinism.NONE, direct=True),
    arrange=_other_contents,
    cases=recipes(recipe(MIXED), recipe(DECODE)),
    control=twisted("one-query-scale"),
)

relation(
    10,
    "empty-sequences",
    "sequences without rows or keys do not matter",
    law=Law("K14", Anomaly.LEAK, "the same rows without them", Determinism.BATCH),
    arrange=_without_empty,
    cases=recipes(
        recipe(((33, 5), (7, 0), (48, 1))),
        recipe(((0, 0), (37, 1), (0, 0), (20, 1), (9, 0))),
        recipe(((33, 1), (0, 1), (21, 1))),
    ),
    control=twisted("first-at-row"),
    further=("K3",),
)
