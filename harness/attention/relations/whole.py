"""The commonest comparison: all rows of one version with all rows of the other."""

from __future__ import annotations

from collections.abc import Sequence

from kvassay.harness.attention.relations.law import Arranged
from kvassay.harness.attention.relations.problem import Problem, require
from kvassay.harness.attention.relations.view import View, joined


def same_rows(one: Problem, other: Problem) -> Arranged:
    """Row by row, in order."""
    require(one.case.num_tokens > 0, "batches with rows")
    return Arranged((one, other), _all_rows)


def _all_rows(views: Sequence[Sequence[View]]) -> tuple[View, View]:
    return joined(views[0]), joined(views[1])
