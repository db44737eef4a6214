"""Managers and kernels in pairs: the assay of the integration suite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from kvassay.harness.assay import Plan
from kvassay.harness.campaign import CHECK
from kvassay.harness.pairs.assay import PairAssay
from kvassay.harness.pairs.campaign import Finding
from kvassay.harness.pairs.law import SUITE
from kvassay.harness.pairs.session import Pair
from kvassay.harness.registry import Registration
from kvassay.harness.trial.found import Effort, Found, Judged
from kvassay.harness.trial.planted import Planted

Halves = tuple[Registration, Registration]
"""A manager and a kernel."""


def judge(planted: Planted, subject: Halves, effort: Effort) -> Judged:
    """One campaign; a control must also have been attended to, and have shown its own controls."""
    budget = replace(CHECK, examples=effort.pairs)
    with TemporaryDirectory() as folder:
        plan = Plan(budget=budget, examples=effort.pairs, counterexamples=Path(folder))
        outcome = PairAssay(*subject, plan).outcome
    finding = outcome.finding
    if finding is None and outcome.blind is not None:
        raise RuntimeError(f"the campaign is blind: {outcome.blind}")
    return Judged([] if finding is None else [_found(finding)], outcome.examples)


def _found(finding: Finding) -> Found:
    examples = 0 if finding.known else finding.examples
    return Found(
        SUITE,
        finding.verdict.invariant,
        str(finding.verdict),
        _again(finding),
        examples,
        finding.scenario.num_counted,
    )


def _again(finding: Finding) -> Callable[[Halves], frozenset[str]]:
    def again(other: Halves) -> frozenset[str]:
        verdict = Pair(*other).replay(finding.scenario).verdict
        return frozenset() if verdict is None else frozenset({verdict.invariant})

    return again
