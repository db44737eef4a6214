"""A row sees what it may see: finite edits of everything else change no bit of it (K5, K6, K8).

Edits of later tokens show a causal mask that lets them through, edits of earlier ones a window that
is too wide, and edits of whole blocks also blocks that are read in the wrong order.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch
from torch import Tensor

from kvassay.harness.attention.case import Case
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.oracle_kernel import twisted
from kvassay.harness.attention.relations.cases import recipe, recipes
from kvassay.harness.attention.relations.law import Arranged, Law
from kvassay.harness.attention.relations.problem import Problem, Tokens, require
from kvassay.harness.attention.relations.relation import relation
from kvassay.harness.attention.relations.view import View, joined
from kvassay.harness.attention.wrong import Anomaly
from kvassay.harness.contract import Capability, Declaration, Determinism

Edit = tuple[Tensor, slice] | None
"""Positions to edit, bool ``[n]``, and the rows that may not change; None for neither."""


def _edited(case: Case, edits: Sequence[Edit]) -> Arranged:
    require(any(edit is not None for edit in edits), "rows that do not see all of their sequence")
    problem = Problem.of(case)
    tokens = [
        each if edit is None else each.edited(edit[0], case.seed + index)
        for index, (each, edit) in enumerate(zip(problem.tokens, edits, strict=True))
    ]
    kept = [(index, edit[1]) for index, edit in enumerate(edits) if edit is not None]

    def sides(views: Sequence[Sequence[View]]) -> tuple[View, View]:
        before, after = ([each[i].rows(rows) for i, rows in kept] for each in views)
        return joined(before), joined(after)

    return Arranged((problem, problem.having(tokens)), sides)


def _later_tokens(kernel: Kernel, case: Case) -> Arranged:
    require(case.causal, "causal attention")
    rng = Random(case.seed)
    return _edited(case, [_after(each, 1, rng) for each in Problem.of(case).tokens])


def _after(tokens: Tokens, step: int, rng: Random) -> Edit:
    """All that comes after one of the rows, which ends a block of `step` tokens."""
    first, keys = max(tokens.first, 0), len(tokens.key)
    ends = [end for end in range(first + 1, keys) if end % step == 0]
    if not ends or not len(tokens.query):
        return None
    end = rng.choice(ends)
    return torch.arange(keys) >= end, slice(0, end - tokens.first)


def _left_of_window(kernel: Kernel, case: Case) -> Arranged:
    require(case.window_left is not None, "attention with a window")
    rng = Random(case.seed)
    window = case.window_left or 0
    return _edited(case, [_before(each, window, 1, rng) for each in Problem.of(case).tokens])


def _before(tokens: Tokens, window: int, step: int, rng: Random) -> Edit:
    """All left of the window of one of the rows, or whole blocks of it."""
    keys = len(tokens.key)
    edges = {row: tokens.first + row - window for row in range(len(tokens.query))}
    found = [row for row, edge in edges.items() if edge // step > 0]
    if not found:
        return None
    row = rng.choice(found)
    return torch.arange(keys) < edges[row] // step * step, slice(row, None)


def _whole_blocks(kernel: Kernel, case: Case) -> Arranged:
    rng, size = Random(case.seed), case.block_size
    tokens = Problem.of(case).tokens
    if case.window_left is not None:
        return _edited(case, [_before(each, case.window_left, size, rng) for each in tokens])
    require(case.causal, "attention that is causal or has a window")
    return _edited(case, [_after(each, size, rng) for each in tokens])


def _positions_count(declaration: Declaration) -> str | None:
    if declaration.has(Capability.CAUSAL) or declaration.has(Capability.WINDOW):
        return None
    return "needs CAUSAL or WINDOW: without them the order of blocks has no effect"


relation(
    21,
    "later-tokens",
    "rows do not see the tokens after them",
    law=Law(
        "K5", Anomaly.CAUSAL, "the same rows before other later tokens", Determinism.NONE, "K14"
    ),
    arrange=_later_tokens,
    cases=recipes(
        recipe(((37, 37),)),
        recipe(((50, 20), (18, 3)), optional={"softcap": 2.0, "alibi": True}),
    ),
    control=twisted("not-causal"),
    further=("K14",),
    needs=(Capability.CAUSAL,),
)

relation(
    21,
    "tokens-left-of-window",
    "rows do not see the tokens left of their window",
    law=Law(
        "K6", Anomaly.WINDOW, "the same rows after other tokens", Determinism.NONE, "K14", True
    ),
    arrange=_left_of_window,
    cases=recipes(
        recipe(((50, 1), (35, 1)), window_left=17),
        recipe(((45, 12), (20, 3)), window_left=15, optional={"sinks": True}),
    ),
    control=twisted("wide-window"),
    needs=(Capability.WINDOW,),
)

relation(
    21,
    "other-blocks",
    "rows do not see whole blocks after them or left of their window, in the order of the table",
    law=Law(
        "K8", Anomaly.ADDRESS, "the same rows beside other blocks", Determinism.NONE, "K14", True
    ),
    arrange=_whole_blocks,
    cases=recipes(
        recipe(((48, 48),), needs=[Capability.CAUSAL]),
        recipe(((70, 1), (53, 1)), window_left=20, needs=[Capability.WINDOW]),
    ),
    control=twisted("page-order"),
    claim=_positions_count,
)
