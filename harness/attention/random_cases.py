"""Mixed batches without end: every factor drawn anew, most features off, most sizes small."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from kvassay.harness.attention.case import BadCase, Case, Placement
from kvassay.harness.attention.lengths import Length, Phase, mark_of, seqs_of
from kvassay.harness.attention.offers import Offers, Value

PLAIN = 0.6
"""How often a feature is left at its plainest."""
FEATURES = ("window", "softcap", "alibi", "sinks", "scale", "shared", "evicted", "buffers")
MOST_PAIRS = 600_000
"""Query-key pairs of a case: what the oracle does in a fraction of a second."""
LONG = 0.02
HIGH = 0.01
TRIES = 50


def random_cases(offers: Offers, rng: Random) -> Iterator[Case]:
    """Cases as they come; what makes none is drawn again."""
    while True:
        case = draw(offers, rng)
        if case is not None and case.num_pairs <= MOST_PAIRS:
            yield case


def draw(offers: Offers, rng: Random) -> Case | None:
    """One case, or None where the values drawn make none."""
    chosen: dict[str, Value] = {}
    for name in offers.values:
        value = _value(offers, name, chosen, rng)
        if value is None:
            return None
        chosen[name] = value
    try:
        return _varied(offers.case(chosen, rng), chosen, rng)
    except BadCase:
        return None


def _value(offers: Offers, name: str, chosen: dict[str, Value], rng: Random) -> Value | None:
    """A value that fits those already chosen."""
    for _ in range(TRIES):
        plain = name in FEATURES and rng.random() < PLAIN
        value = offers.values[name][0] if plain else rng.choice(offers.values[name])
        if not any(offers.forbidden((each, (name, value))) for each in chosen.items()):
            return value
    return None


def _varied(case: Case, chosen: dict[str, Value], rng: Random) -> Case:
    """More sequences, sometimes a long one, sometimes high block ids; a seed of its own."""
    case = replace(case, seed=rng.randrange(2**31))
    if chosen["phase"].name != Phase.MIXED:
        return case
    seqs = list(case.seqs)
    for _ in range(rng.choice((0, 0, 1, 3))):
        length = Length(rng.choice(list(Length)))
        seqs += seqs_of(Phase.DECODE, length, case.block_size, rng)[:1]
    if rng.random() < LONG:
        seqs.append((rng.randint(1000, 4100), 1))
    rng.shuffle(seqs)
    case = _remarked(replace(case, seqs=tuple(seqs)), rng)
    small = case.block_size * case.num_kv_heads * case.head_dim <= 256
    if small and rng.random() < HIGH:
        case = replace(case, placement=Placement.HIGH)
    return case


def _remarked(case: Case, rng: Random) -> Case:
    return replace(case, mark=mark_of(case.seqs, case.block_size, case.window_left, rng))
