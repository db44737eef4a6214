"""Heads have no numbers of their own: they may change places, and KV heads may be copied (K7).

Never to the bit: a head that moves in its tile, or a group of another size, may be computed by
other instructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from torch import Tensor

from kvassay.harness.attention.case import Case, Scaling
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.oracle_kernel import twisted
from kvassay.harness.attention.relations.cases import DECODE, MIXED, recipe, recipes
from kvassay.harness.attention.relations.law import Arranged, Law
from kvassay.harness.attention.relations.problem import Problem, require
from kvassay.harness.attention.relations.relation import relation
from kvassay.harness.attention.relations.view import View, joined
from kvassay.harness.attention.relations.whole import same_rows
from kvassay.harness.attention.wrong import Anomaly

PER_QUERY_HEAD = ("alibi_slopes", "sinks")
PER_KV_HEAD = ("k_scale", "v_scale")


def _permuted(kernel: Kernel, case: Case) -> Arranged:
    """All KV heads change places, and the query heads within the first group."""
    require(case.num_tokens > 0 and case.num_q_heads > 1, "several heads")
    problem, rng = Problem.of(case), Random(case.seed)
    kv = _other_order(case.num_kv_heads, rng)
    group = case.num_q_heads // case.num_kv_heads
    members = [_other_order(group, rng), *[list(range(group))] * (len(kv) - 1)]
    query = [head * group + each for head, own in zip(kv, members, strict=True) for each in own]
    moved = problem.changed(lambda each: each.heads(query, kv))
    options = {name: _picked(problem.options[name], query) for name in PER_QUERY_HEAD}
    options |= {name: _picked(problem.options[name], kv) for name in PER_KV_HEAD}

    def sides(views: Sequence[Sequence[View]]) -> tuple[View, View]:
        return joined(views[0]).heads(query), joined(views[1])

    return Arranged((problem, moved.given(**options)), sides)


def _other_order(count: int, rng: Random) -> list[int]:
    """A permutation of the numbers below `count`, another one than theirs if there is one."""
    order = list(range(count))
    while count > 1 and order == sorted(order):
        rng.shuffle(order)
    return order


def _picked(per_head: Any, heads: Sequence[int]) -> Any:
    several = isinstance(per_head, Tensor) and per_head.dim() == 1
    return per_head[list(heads)] if several else per_head


def _replicated(kernel: Kernel, case: Case) -> Arranged:
    group = case.num_q_heads // case.num_kv_heads
    require(group > 1 and case.num_tokens > 0, "several query heads for each KV head")
    problem = Problem.of(case)
    query = range(case.num_q_heads)
    kv = [head // group for head in query]
    copied = problem.changed(lambda each: each.heads(list(query), kv))
    options = {name: _picked(problem.options[name], kv) for name in PER_KV_HEAD}
    case = replace(copied.case, num_kv_heads=case.num_q_heads)
    return same_rows(problem, replace(copied, case=case).given(**options))


relation(
    13,
    "permuted-heads",
    "KV heads with their groups, and the heads of a group, may change places",
    law=Law("K7", Anomaly.HEAD, "the same heads in other places"),
    arrange=_permuted,
    cases=recipes(
        recipe(MIXED),
        recipe(
            DECODE,
            optional={"alibi": True, "k_scale": Scaling.HEAD, "v_scale": Scaling.HEAD},
        ),
        recipe(((25, 3),), optional={"sinks": True}),
    ),
    control=twisted("modulo-heads"),
    further=("K9", "K10"),
)

relation(
    14,
    "copied-kv-heads",
    "a group of heads may read copies of its KV head",
    law=Law("K7", Anomaly.HEAD, "the same with one KV head for each query head"),
    arrange=_replicated,
    cases=recipes(
        recipe(DECODE, optional={"k_scale": Scaling.HEAD, "v_scale": Scaling.HEAD}),
        recipe(((33, 5), (20, 1))),
    ),
    control=twisted("modulo-heads"),
)
