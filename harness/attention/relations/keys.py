"""Attention is a softmax over a set of keys: order, copies and a common shift (K1, K9, K12).

Page order can be seen only where positions matter: causal rows, windows, ALiBi, the end of the last
block. Elsewhere whole blocks that are read in another order are the same set, and nobody is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Generator, Tensor

from kvassay.harness.attention.build import dtype_of
from kvassay.harness.attention.case import Case, Contents, Scaling
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.oracle_kernel import spoiled, twisted
from kvassay.harness.attention.relations.cases import DECODE, recipe, recipes
from kvassay.harness.attention.relations.law import Arranged, Law
from kvassay.harness.attention.relations.mistakes import starts_above_zero
from kvassay.harness.attention.relations.problem import Problem, Tokens, require
from kvassay.harness.attention.relations.relation import relation
from kvassay.harness.attention.relations.view import View, joined
from kvassay.harness.attention.wrong import Anomaly
from kvassay.harness.contract import Capability, Declaration, PagedAttention

SHIFT = 120.0
"""By how much logits are shifted at least: e to its power is no float32."""
GROWTH = (1, 2, 3, 5, 9, 16, 17, 33)


def _is_a_set(case: Case) -> bool:
    """Whether every row sees all keys, and none for where it stands."""
    everything = not case.causal or all(q <= 1 for _, q in case.seqs)
    return everything and not case.alibi and case.window_left is None


def _paired(problem: Problem, others: Sequence[Tokens], raised: float = 0.0) -> Arranged:
    """Every sequence beside another version of it, in one batch."""
    require(problem.case.num_tokens > 0, "batches with rows")
    count = len(problem.tokens)

    def sides(views: Sequence[Sequence[View]]) -> tuple[View, View]:
        (all_views,) = views
        return joined(all_views[:count]).raised(raised), joined(all_views[count:])

    return Arranged((problem.having([*problem.tokens, *others]),), sides)


def _shifted(kernel: Kernel, case: Case) -> Arranged:
    """The last axis is one to every query: what is added to the keys there shifts all logits."""
    require(case.num_tokens > 0, "batches with rows")
    require(not case.sinks and case.softcap is None, "attention without soft cap and sinks")
    require(case.k_scale is Scaling.NONE and case.head_dim > 1, "keys that have no scale")
    require(all(keys >= rows for keys, rows in case.seqs), "rows that see a key")
    scale = case.head_dim**-0.5 if case.scale is None else case.scale
    step = 2.0 ** math.ceil(math.log2(SHIFT / abs(scale))) if scale else math.inf
    require(step <= torch.finfo(torch.float16).max, "a shift that can be stored")
    problem = Problem.of(case).changed(lambda each: _on_last_axis(each, 0.0))
    shifts = (step, -step)
    moved = [_on_last_axis(each, shift) for shift in shifts for each in problem.tokens]
    count = len(problem.tokens)

    def sides(views: Sequence[Sequence[View]]) -> tuple[View, View]:
        plain = joined(views[0][:count])
        return joined([plain.raised(scale * shift) for shift in shifts]), joined(views[0][count:])

    return Arranged((problem.having([*problem.tokens, *moved]),), sides)


def _on_last_axis(tokens: Tokens, shift: float) -> Tokens:
    query, key = tokens.query.clone(), tokens.key.clone()
    query[..., -1], key[..., -1] = 1.0, shift
    return replace(tokens, query=query, key=key)


def _permuted(kernel: Kernel, case: Case) -> Arranged:
    require(_is_a_set(case), "rows that see all keys, wherever they stand")
    problem, generator = Problem.of(case), Generator().manual_seed(case.seed)
    orders = [torch.randperm(len(each.key), generator=generator) for each in problem.tokens]
    return _paired(
        problem,
        [each.keys_at(order) for each, order in zip(problem.tokens, orders, strict=True)],
    )


def _repeated(kernel: Kernel, case: Case) -> Arranged:
    require(_is_a_set(case) and not case.sinks, "rows that see all keys and no sink")
    require(all(keys >= rows for keys, rows in case.seqs), "rows that see a key")
    problem = Problem.of(case)
    twice = [each.keys_at(torch.arange(len(each.key)).repeat(2)) for each in problem.tokens]
    return _paired(problem, twice, math.log(2.0))


def _drops_some(declaration: Declaration) -> PagedAttention:
    """A base that repeats do not survive; without LSE, a share of the keys."""
    name = "base-2" if declaration.has(Capability.LSE) else "last-part"
    return twisted(name)(declaration)


# -------------------------------------------------------------------------- 25, one key after other


def _growing(kernel: Kernel, case: Case) -> Arranged:
    """One row over more and more keys: its LSE never falls, its output stays among the values."""
    require(_is_a_set(case) and not case.sinks, "rows that see all keys and no sink")
    require((case.k_scale, case.v_scale) == (Scaling.NONE, Scaling.NONE), "caches without scales")
    problem = Problem.of(case)
    require(bool(case.seqs) and case.seqs[0][1] > 0, "a row")
    whole = problem.tokens[0].last(1)
    lengths = sorted({length for length in (*GROWTH, len(whole.key)) if length <= len(whole.key)})
    require(bool(lengths), "a key")
    grown = problem.having(whole.keys_at(slice(length)) for length in lengths)
    stored = whole.value.to(dtype_of(case.cache_dtype)).double()
    group = case.num_q_heads // case.num_kv_heads

    def sides(views: Sequence[Sequence[View]]) -> tuple[View, View]:
        rows = joined(views[0])
        lowest, highest = (_hull(stored, lengths, group, least) for least in (True, False))
        within = rows.output.clamp(lowest, highest)
        bounds = replace(rows, output=within, sigma=torch.zeros_like(rows.sigma))
        if rows.lse is None:
            return rows, bounds
        before = torch.cat([rows.lse[:1], rows.lse[:-1]])
        sigma = torch.cat([rows.sigma_lse[:1], rows.sigma_lse[:-1]])
        return rows, replace(bounds, lse=torch.maximum(rows.lse, before), sigma_lse=sigma)

    return Arranged((grown,), sides)


def _hull(values: Tensor, lengths: Sequence[int], group: int, least: bool) -> Tensor:
    """The least or largest value among the first keys: ``[len(lengths), num_q_heads, d]``."""
    pick = torch.amin if least else torch.amax
    rows = torch.stack([pick(values[:length], dim=0) for length in lengths])
    return rows.repeat_interleave(group, dim=1)


relation(
    17,
    "shifted-keys",
    "what is common to all logits cancels, however large",
    law=Law("K12", Anomaly.RANGE, "the same output, and an LSE that is shifted alike"),
    arrange=_shifted,
    cases=recipes(recipe(((37, 1),)), recipe(((21, 4),), optional={"window_left": 7})),
    control=twisted("maximum-from-zero"),
    further=("K9",),
)

relation(
    18,
    "permuted-keys",
    "keys may come in any order where positions do not count",
    law=Law("K1", Anomaly.OUTPUT, "the same from keys in another order"),
    arrange=_permuted,
    cases=recipes(
        recipe(DECODE, optional={"sinks": True}), recipe(((29, 4), (20, 1)), causal=False)
    ),
    control=twisted("last-key"),
)

relation(
    19,
    "repeated-keys",
    "keys that come twice change the LSE by ln 2, and nothing else",
    law=Law("K1", Anomaly.OUTPUT, "the same output, and an LSE larger by ln 2"),
    arrange=_repeated,
    cases=recipes(
        recipe(DECODE), recipe(((29, 4), (18, 1)), causal=False, optional={"softcap": 2.0})
    ),
    control=_drops_some,
)

relation(
    25,
    "one-key-more",
    "a further key never lowers the LSE, and no output leaves the range of the values",
    law=Law("K1", Anomaly.OUTPUT, "an LSE that rises, and outputs among the values"),
    arrange=_growing,
    cases=recipes(
        recipe(((37, 1),)), recipe(((37, 1),), contents=Contents.PEAKY, optional={"softcap": 2.0})
    ),
    control=spoiled(starts_above_zero),
)
