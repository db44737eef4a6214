"""Correct pairs pass, however unusual, and what a verdict rests on was attended to."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvassay.harness.assay import corpus_folder
from kvassay.harness.attention.oracle_kernel import OracleKernel
from kvassay.harness.contract import Capability, Declaration, Tail
from kvassay.harness.pairs.campaign import Campaign, Effort, Outcome
from kvassay.harness.pairs.evidence import Met
from kvassay.harness.pairs.law import PAIR_LAW
from kvassay.harness.pairs.session import Pair
from kvassay.harness.scenario import load
from kvassay.impls.faulty import controls

CORPUS = [load(path) for path in sorted(corpus_folder().glob("*.json"))]
CONTROLS = (
    "bump",
    "null-block",
    "sparse-ids",
    "watermark",
    "lookahead",
    "row-limit",
    "may-evict",
    "head-first",
    "evict-all",
    "remap",
    "first-copy",
    "publish-at-finish",
    "drafts-at-release",
    "drop-one",
    "copy-published",
)


def campaign(pair: Pair, examples: int) -> Outcome:
    outcome = Campaign(pair, Effort(examples, seconds=60.0), known=CORPUS).run()
    assert outcome.finding is None, outcome.finding
    assert outcome.blind is None
    assert outcome.attended > 100
    assert outcome.controls > 3
    return outcome


@pytest.mark.parametrize("kernel", ["torch", "contiguous"])
@pytest.mark.parametrize("manager", ["paged", "radix", "contiguous"])
def test_built_in_pairs_are_right_and_reach_everything(
    make: Callable[..., Pair], manager: str, kernel: str
) -> None:
    pair = make(manager, kernel)
    outcome = campaign(pair, 25)
    offered = pair.manager.declaration.capabilities | {Capability.CAUSAL}
    for rule in PAIR_LAW.values():
        if rule.unclaimed(pair.manager.declaration) is None:
            assert not rule.missing(offered, outcome.met), rule.id


@pytest.mark.parametrize("name", CONTROLS)
def test_unusual_managers_are_not_convicted(make: Callable[..., Pair], name: str) -> None:
    assert controls  # imported for what it registers
    campaign(make(f"control-{name}"), 8)


@pytest.mark.parametrize("tail", list(Tail))
def test_a_kernel_that_claims_little_is_not_convicted(
    make: Callable[..., Pair], tail: Tail
) -> None:
    """No causal mask, so rows that need none; no LSE."""
    declared = Declaration(tail=tail)
    pair = make("radix", lambda: OracleKernel(declared), attending=declared)
    outcome = campaign(pair, 8)
    assert not outcome.met[Met.CHUNK] + outcome.met[Met.PROMPT]
    garbage = Met.NAN_TAIL if tail is Tail.ANY else Met.LOUD_TAIL
    assert outcome.met[garbage]
    assert outcome.met[Met.STALE_TAIL]


def test_the_same_campaign_twice_is_the_same(make: Callable[..., Pair]) -> None:
    one, other = (campaign(make("radix"), 4) for _ in range(2))
    assert (one.met, one.effects, one.attended) == (other.met, other.effects, other.attended)
