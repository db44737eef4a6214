"""How a sequence is cut does not matter: rows, chunks, parts that are merged (K4, K5).

To the bit only where the kernel claims determinism=chunk. Merged parts never are: the merge is
ours, of outputs that were rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random

from kvassay.harness.attention.case import Case, Contents
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.oracle_kernel import twisted
from kvassay.harness.attention.relations.cases import recipe, recipes
from kvassay.harness.attention.relations.law import Arranged, Law
from kvassay.harness.attention.relations.problem import Problem, Tokens, require
from kvassay.harness.attention.relations.relation import relation
from kvassay.harness.attention.relations.view import View, joined, merged
from kvassay.harness.attention.wrong import Anomaly
from kvassay.harness.contract import Capability, Determinism

PARTS = 3


def _last_rows(kernel: Kernel, case: Case) -> Arranged:
    """The last row of each sequence by itself, and about half of its rows."""
    cut = [(index, r) for index, (_, q) in enumerate(case.seqs) for r in _fewer(q)]
    require(bool(cut), "sequences of several rows")
    problem = Problem.of(case)
    parts = problem.having(problem.tokens[index].last(rows) for index, rows in cut)

    def sides(views: Sequence[Sequence[View]]) -> tuple[View, View]:
        whole = [views[0][index].rows(slice(-rows, None)) for index, rows in cut]
        return joined(whole), joined(views[1])

    return Arranged((problem, parts), sides)


def _fewer(rows: int) -> list[int]:
    return sorted({1, rows // 2 + 1} - {0, rows}) if rows > 1 else []


def _chunks(kernel: Kernel, case: Case) -> Arranged:
    """Each chunk as a sequence of its own, with the keys that there were then."""
    require(case.causal, "causal attention")
    require(any(q > 1 for _, q in case.seqs), "sequences of several rows")
    require(all(q <= n for n, q in case.seqs), "rows that have a position")
    problem = Problem.of(case)
    rng = Random(case.seed)
    cuts = [_cuts(each, rng) for each in problem.tokens]
    chunked = problem.having(
        each.chunk(start, stop)
        for each, stops in zip(problem.tokens, cuts, strict=True)
        for start, stop in pairwise(stops)
    )

    def sides(views: Sequence[Sequence[View]]) -> tuple[View, View]:
        return joined(views[0]), joined(views[1])

    return Arranged((problem, chunked), sides)


def _cuts(tokens: Tokens, rng: Random) -> list[int]:
    """Where chunks start, and the end; the last row is one by itself."""
    first, keys = tokens.first, len(tokens.key)
    inner = range(first + 1, keys)
    drawn = rng.sample(inner, min(2, len(inner)))
    return sorted({first, *drawn, *inner[-1:], keys}) if keys > first else []


def _merged(kernel: Kernel, case: Case) -> Arranged:
    """The context of each sequence in parts, and what follows it; the parts are not causal."""
    require(not (case.sinks or case.alibi), "attention without sinks and ALiBi")
    require(case.window_left is None, "attention without window")
    require(bool(case.seqs), "batches with rows")
    require(all(0 < q < n for n, q in case.seqs), "rows with a context")
    problem, rng = Problem.of(case), Random(case.seed)
    cuts = [_parts(each, rng) for each in problem.tokens]
    pieces = [
        each.keys_at(slice(start, stop))
        for each, stops in zip(problem.tokens, cuts, strict=True)
        for start, stop in pairwise(stops)
    ]
    rests = [
        each.keys_at(slice(stops[-1], None))
        for each, stops in zip(problem.tokens, cuts, strict=True)
    ]
    decode = all(q == 1 for _, q in case.seqs)
    contexts = problem.having(pieces).laid_out(causal=case.causal and decode)

    def sides(views: Sequence[Sequence[View]]) -> tuple[View, View]:
        parts = iter(views[1])
        whole = []
        for rest, stops in zip(views[2], cuts, strict=True):
            whole.append(merged([*(next(parts) for _ in stops[1:]), rest]))
        return joined(views[0]), joined(whole)

    return Arranged((problem, contexts, problem.having(rests)), sides)


def _parts(tokens: Tokens, rng: Random) -> list[int]:
    """Where the parts of a context start, and where the last one ends."""
    ends = sorted(rng.sample(range(1, tokens.first + 1), min(PARTS - 1, tokens.first)))
    return [0, *ends]


relation(
    7,
    "last-rows",
    "rows do not depend on how many others of their sequence there are",
    law=Law("K4", Anomaly.PARTITION, "the same rows by themselves", Determinism.CHUNK),
    arrange=_last_rows,
    cases=recipes(recipe(((50, 20), (21, 1))), recipe(((40, 40),), optional={"window_left": 12})),
    control=twisted("mask-of-a-tile"),
    further=("K5",),
    needs=(Capability.CAUSAL,),
)

relation(
    11,
    "chunked-prefill",
    "a prefill may come in any chunks, of which decode is the last",
    law=Law("K4", Anomaly.PARTITION, "the same rows as in one piece", Determinism.CHUNK),
    arrange=_chunks,
    cases=recipes(
        recipe(((37, 37),)),
        recipe(((50, 20), (18, 3)), optional={"alibi": True}),
        recipe(((41, 30),), optional={"window_left": 19, "sinks": True}),
    ),
    control=twisted("top-left"),
    further=("K5",),
    needs=(Capability.CAUSAL,),
)

relation(
    20,
    "merged-parts",
    "parts of the keys, merged by their LSE, are the whole",
    law=Law("K4", Anomaly.LSE, "the merge of its parts"),
    arrange=_merged,
    cases=recipes(
        recipe(((50, 1), (21, 1)), contents=Contents.PEAKY),
        recipe(((60, 5),), contents=Contents.PEAKY),
    ),
    control=twisted("base-2"),
    needs=(Capability.LSE,),
)
