"""Modifiers that have no effect, and sinks as the keys that they stand for (K9, K6).

Never to the bit: a modifier that is switched on is another variant of the code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import torch
from torch import Tensor

from kvassay.harness.attention.case import Case, Scaling
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.oracle_kernel import twisted
from kvassay.harness.attention.relations.cases import DECODE, recipe, recipes
from kvassay.harness.attention.relations.law import Arranged, Law
from kvassay.harness.attention.relations.mistakes import slips_with_modifiers
from kvassay.harness.attention.relations.problem import Problem, Tokens, require
from kvassay.harness.attention.relations.relation import relation
from kvassay.harness.attention.relations.view import View, joined
from kvassay.harness.attention.relations.whole import same_rows
from kvassay.harness.attention.wrong import Anomaly
from kvassay.harness.contract import Capability, Declaration

NO_SINK = -1e30
SINK_LOGITS = (2.0, 3.0, 4.0)
"""About the logits of the keys that sinks stand for."""
WIDE_CAP = 1e4
"""A soft cap that bends nothing: the logits stay below ten."""
NEUTRAL = {
    Capability.ALIBI: "alibi",
    Capability.WINDOW: "window_left",
    Capability.SOFTCAP: "softcap",
}


# ------------------------------------------------------------------------------- 23, sinks are keys


def _sink_as_key(kernel: Kernel, case: Case) -> Arranged:
    """Without sinks, with sinks that weigh nothing, and with such as a key of value 0 would be."""
    group = case.num_q_heads // case.num_kv_heads
    require(case.sinks, "attention with sinks")
    require(bool(case.seqs) and all(q == 1 <= n for n, q in case.seqs), "decode")
    require(not case.alibi and case.window_left is None, "rows that see all keys")
    require(case.softcap is None and case.k_scale is Scaling.NONE, "logits as they come")
    require(group < case.head_dim, "more axes than heads of a group")
    scale = case.head_dim**-0.5 if case.scale is None else case.scale
    require(scale > 0, "scales above 0")
    level = [round(SINK_LOGITS[g % len(SINK_LOGITS)] / scale) for g in range(group)]
    require(max(level) <= 256, "sinks that a key can stand for")
    problem = Problem.of(case).changed(lambda each: _own_axes(each, group))
    longer = [_with_key(each, level) for each in problem.tokens]
    sinks = scale * torch.tensor(level, dtype=torch.float32).repeat(case.num_kv_heads)
    count = len(problem.tokens)
    bare = problem.having([*problem.tokens, *longer]).given(sinks=None)
    weightless = problem.given(sinks=torch.full_like(sinks, NO_SINK))

    def sides(views: Sequence[Sequence[View]]) -> tuple[View, View]:
        bare_rows, longer_rows = views[0][:count], views[0][count:]
        return joined([*bare_rows, *longer_rows]), joined([*views[1], *views[2]])

    return Arranged((bare, weightless, problem.given(sinks=sinks)), sides)


def _own_axes(tokens: Tokens, group: int) -> Tokens:
    """The last axes: one for each query head of a group, on which no key lies."""
    query, key = tokens.query.clone(), tokens.key.clone()
    key[..., -group:] = 0.0
    heads = torch.arange(query.shape[1])
    query[..., -group:] = 0.0
    query[:, heads, query.shape[2] - group + heads % group] = 1.0
    return replace(tokens, query=query, key=key)


def _with_key(tokens: Tokens, level: Sequence[float]) -> Tokens:
    """A key more, which lies on those axes alone, and whose value is 0."""
    key: Tensor = torch.zeros_like(tokens.key[:1])
    key[..., -len(level) :] = torch.tensor(level)
    value = torch.zeros_like(tokens.value[:1])
    return replace(tokens, key=torch.cat([tokens.key, key]), value=torch.cat([tokens.value, value]))


# --------------------------------------------------------------------- 24, modifiers without effect


def _neutral(kernel: Kernel, case: Case) -> Arranged:
    on = {name: getattr(case, name) not in (None, False) for name in NEUTRAL.values()}
    require(any(on.values()), "attention with ALiBi, a window or a soft cap")
    longest = max((keys for keys, _ in case.seqs), default=0)
    plain = Problem.of(case).laid_out(alibi=False, window_left=None, softcap=None, evicted=False)
    neutral = plain.laid_out(
        window_left=max(0, longest - 1) if on["window_left"] else None,
        softcap=WIDE_CAP if on["softcap"] else None,
    )
    slopes = torch.zeros(case.num_q_heads) if on["alibi"] else None
    return same_rows(plain.given(alibi_slopes=None), neutral.given(alibi_slopes=slopes))


def _one_by_one(kernel: Kernel, rng: Random) -> Iterator[Case]:
    """Each modifier that is claimed by itself: first all in a mixed batch, then at decode."""
    claimed = [name for capability, name in NEUTRAL.items() if kernel.has(capability)]
    for seqs in (((33, 5), (48, 1)), DECODE):
        for name in claimed:
            value: Any = True if name == "alibi" else 8
            yield recipe(seqs, **{name: value}).case(kernel, rng.randrange(2**31))


def _any_modifier(declaration: Declaration) -> str | None:
    if any(declaration.has(capability) for capability in NEUTRAL):
        return None
    return "needs ALIBI or SOFTCAP or WINDOW"


relation(
    23,
    "sink-as-key",
    "a sink is a key whose value is 0, and one of -1e30 is none",
    law=Law("K9", Anomaly.SCORE, "the same with a key in place of the sink"),
    arrange=_sink_as_key,
    cases=recipes(recipe(DECODE, sinks=True)),
    control=twisted("no-sinks"),
    needs=(Capability.SINKS,),
)

relation(
    24,
    "neutral-modifiers",
    "slopes of 0, a window as long as the sequence and a soft cap of 10,000 change nothing",
    law=Law("K9", Anomaly.SCORE, "the same as without the modifier"),
    arrange=_neutral,
    cases=_one_by_one,
    control=slips_with_modifiers,
    further=("K6",),
    claim=_any_modifier,
)
