"""What is linear stays linear, and powers of two are exact wherever they come in (K9, K10).

The numbers are small multiples of a power of two: what a relation adds or multiplies can be stored
without rounding, whatever the type.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import torch
from torch import Generator, Tensor

from kvassay.harness.attention.build import SPREAD
from kvassay.harness.attention.case import CACHE_DTYPES, Case, Scaling
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.oracle_kernel import spoiled, twisted
from kvassay.harness.attention.relations.cases import DECODE, MIXED, recipe, recipes
from kvassay.harness.attention.relations.law import Arranged, Law
from kvassay.harness.attention.relations.mistakes import starts_above_zero
from kvassay.harness.attention.relations.problem import Problem, Tokens, multiplied, require
from kvassay.harness.attention.relations.relation import relation
from kvassay.harness.attention.relations.view import View, joined
from kvassay.harness.attention.relations.whole import same_rows
from kvassay.harness.attention.wrong import Anomaly
from kvassay.harness.contract import Capability

LARGER = 8.0
"""Factor of the values."""
STEEPER = 4.0
"""Factor of the query, and divisor of the scale."""
GRID = 16.0
"""Parts of 1 that queries and values are multiples of."""
LEVELS = 3
"""Small values are multiples of `STEP` up to this one: three times that fits any type."""
STEP = 0.5
CONSTANT = 1.5
CODE = 8.0
"""Quantised keys and values are multiples of this code, so that an eighth of them is one too."""
MOST_CODES = 7


def _small(shape: Sequence[int], generator: Generator) -> Tensor:
    return STEP * torch.randint(-LEVELS, LEVELS + 1, tuple(shape), generator=generator)


# ------------------------------------------------------------------------------- 15, powers of two


def _powers(kernel: Kernel, case: Case) -> Arranged:
    require(case.num_tokens > 0, "batches with rows")
    require(case.softcap is None, "attention without soft cap")
    plain = Problem.of(case).changed(_on_grid)
    scale = case.head_dim**-0.5 if case.scale is None else case.scale
    larger = plain.changed(
        lambda each: replace(each, value=multiplied(each.value, LARGER, case.cache_dtype))
    )
    steep = plain.changed(
        lambda each: replace(each, query=multiplied(each.query, STEEPER, case.dtype))
    )

    def sides(views: Sequence[Sequence[View]]) -> tuple[View, View]:
        first, second, third = (joined(each) for each in views)
        return joined([first.times(LARGER), first]), joined([second, third])

    return Arranged((plain, larger, steep.laid_out(scale=scale / STEEPER)), sides)


def _on_grid(tokens: Tokens) -> Tokens:
    """Queries and values of few digits."""
    query, value = (torch.round(each * GRID) / GRID for each in (tokens.query, tokens.value))
    return replace(tokens, query=query, value=value)


def _scales(kernel: Kernel, case: Case) -> Arranged:
    """Keys and values divided, their scales multiplied, by a power of two for each head."""
    require(case.num_tokens > 0, "batches with rows")
    require(Scaling.NONE not in (case.k_scale, case.v_scale), "keys and values with scales")
    require(case.cache_dtype in CACHE_DTYPES, "types that can be stored")
    problem = _coded(Problem.of(case))
    keys, values = _divisors(case, case.k_scale, 0), _divisors(case, case.v_scale, 1)

    def divided(each: Tokens) -> Tokens:
        dtype = case.cache_dtype
        key = multiplied(each.key, 1 / keys[:, None], dtype)
        return replace(each, key=key, value=multiplied(each.value, 1 / values[:, None], dtype))

    k_scale = _times(problem.options["k_scale"], keys)
    v_scale = _times(problem.options["v_scale"], values)
    return same_rows(problem, problem.changed(divided).given(k_scale=k_scale, v_scale=v_scale))


def _coded(problem: Problem) -> Problem:
    """Keys and values whose codes have few digits."""
    generator = Generator().manual_seed(problem.case.seed)
    unit = CODE / SPREAD.get(problem.case.cache_dtype, CODE * MOST_CODES)

    def codes(like: Tensor) -> Tensor:
        drawn = torch.randint(-MOST_CODES, MOST_CODES + 1, like.shape, generator=generator)
        return unit * drawn.float()

    return problem.changed(lambda each: Tokens(each.query, codes(each.key), codes(each.value)))


def _divisors(case: Case, over: Scaling, number: int) -> Tensor:
    """2, 4 or 8 for each KV head; the same for all where there is one scale."""
    rng = Random(case.seed + number)
    divisors = [float(2 ** rng.randint(1, 3)) for _ in range(case.num_kv_heads)]
    if over is Scaling.TENSOR:
        divisors = divisors[:1] * case.num_kv_heads
    return torch.tensor(divisors)


def _times(scale: Any, factors: Tensor) -> Any:
    return scale * factors if isinstance(scale, Tensor) else float(scale * factors[0])


# ----------------------------------------------------------------------------------- 16, linearity


def _linear(kernel: Kernel, case: Case) -> Arranged:
    """Each sequence with other values: two, their sum, three times the first, a constant."""
    require(case.num_tokens > 0, "batches with rows")
    require(not case.sinks, "attention without sinks")
    require((case.k_scale, case.v_scale) == (Scaling.NONE, Scaling.NONE), "caches without scales")
    problem, generator = Problem.of(case), Generator().manual_seed(case.seed)
    require(all(keys >= rows for keys, rows in case.seqs), "rows that see a key")
    tokens = []
    for each in problem.tokens:
        one, other = (_small(each.value.shape, generator) for _ in range(2))
        constant = torch.full_like(one, CONSTANT)
        for values in (one, other, one + other, 3 * one, constant):
            multiplied(values, 1.0, case.cache_dtype)
            tokens.append(replace(each, value=values))

    def sides(views: Sequence[Sequence[View]]) -> tuple[View, View]:
        left, right = [], []
        for index in range(0, len(tokens), 5):
            one, other, both, thrice, constant = views[0][index : index + 5]
            still = View.bare(torch.full_like(one.output, CONSTANT), one.lse, one.names)
            left += [one.plus(other), one.times(3.0), replace(still, sigma_lse=one.sigma_lse)]
            right += [both, thrice, constant]
        return joined(left), joined(right)

    return Arranged((problem.having(tokens),), sides)


# ---------------------------------------------------------------------------- 27, scales of tokens


def _every_token(kernel: Kernel, case: Case) -> Arranged:
    require(case.num_tokens > 0, "batches with rows")
    require((case.k_scale, case.v_scale) == (Scaling.TENSOR, Scaling.TENSOR), "single scales")
    unit = 1 / SPREAD.get(case.cache_dtype, 1.0)
    problem = Problem.of(case).given(k_scale=2 * unit, v_scale=unit / 2)
    return same_rows(problem, problem.laid_out(k_scale=Scaling.TOKEN, v_scale=Scaling.TOKEN))


QUANTISED = ("float8_e4m3fn", "int8")


def _in_each(kinds: tuple[Scaling, ...]) -> Any:
    """Cases with quantised caches, and with one of the query's own type."""

    def cases(kernel: Kernel, rng: Random) -> Iterator[Case]:
        for number, kind in enumerate(kinds):
            seqs = DECODE if number % 2 == 0 else ((33, 5), (20, 1))
            plain = recipe(seqs, k_scale=kind, v_scale=kind).case(kernel, rng.randrange(2**31))
            for dtype in (*QUANTISED, plain.cache_dtype)[number:]:
                yield replace(plain, cache_dtype=dtype)

    return cases


relation(
    15,
    "powers-of-two",
    "values times 8 are an output times 8; a steeper query takes a smaller scale",
    law=Law("K9", Anomaly.SCORE, "the same but for the factor"),
    arrange=_powers,
    cases=recipes(recipe(MIXED), recipe(DECODE)),
    control=twisted("default-scale"),
)

relation(
    15,
    "powers-of-two-in-scales",
    "stored keys and values may be divided where their scales are multiplied",
    law=Law("K10", Anomaly.SCALE, "the same from smaller numbers with larger scales", direct=True),
    arrange=_scales,
    cases=_in_each((Scaling.TENSOR, Scaling.HEAD)),
    control=twisted("no-v-scale"),
    needs=(Capability.SCALES,),
)

relation(
    16,
    "linear-in-values",
    "the output of a sum of values is the sum of the outputs, and that of a constant is constant",
    law=Law("K9", Anomaly.OUTPUT, "outputs that add up as the values do"),
    arrange=_linear,
    cases=recipes(
        recipe(((37, 1),)), recipe(((25, 4),), optional={"window_left": 9, "alibi": True})
    ),
    control=spoiled(starts_above_zero),
)

relation(
    27,
    "scale-of-every-token",
    "one scale may as well be written to every token",
    law=Law("K10", Anomaly.SCALE, "the same as with one scale for all", direct=True),
    arrange=_every_token,
    cases=_in_each((Scaling.TENSOR, Scaling.TENSOR)),
    control=twisted("no-token-scale"),
    needs=(Capability.SCALES,),
)
