"""Managers and kernels in pairs: the assay of the integration suite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from traceback import walk_tb
from typing import Any
from unittest.mock import patch

from kvassay.harness.assay import Plan
from kvassay.harness.attention import driver
from kvassay.harness.campaign import CHECK
from kvassay.harness.pairs.assay import PairAssay
from kvassay.harness.pairs.attending import Eyes, Looked
from kvassay.harness.pairs.campaign import Finding
from kvassay.harness.pairs.law import SUITE
from kvassay.harness.pairs.session import Pair
from kvassay.harness.registry import Registration
from kvassay.harness.trial.found import Effort, Found, Judged
from kvassay.harness.trial.planted import Planted
from kvassay.harness.trial.without import without
from kvassay.harness.violation import Crash, Violation

ERROR = "error"
ATTENDED, FOOTPRINT = "pairs.attending.judged", "attention.driver._check_footprint"
Halves = tuple[Registration, Registration]
"""A manager and a kernel."""


def judge(planted: Planted, subject: Halves, effort: Effort) -> Judged:
    """One campaign; a control must also have been attended to, and have shown its own controls."""
    budget = replace(CHECK, examples=effort.pairs)
    with TemporaryDirectory() as folder, _without(effort.without):
        plan = Plan(budget=budget, examples=effort.pairs, counterexamples=Path(folder))
        outcome = PairAssay(*subject, plan).outcome
    finding = outcome.finding
    if finding is None and outcome.blind is not None and ATTENDED not in effort.without:
        raise RuntimeError(f"the campaign is blind: {outcome.blind}")
    found = [] if finding is None else [_found(finding, subject, effort.without)]
    return Judged(found, outcome.examples)


@contextmanager
def _without(checks: frozenset[str]) -> Iterator[None]:
    """With these taken out: what a worker and a driver object to, what is attended to."""
    with ExitStack() as stack:
        stack.enter_context(without(checks))
        if FOOTPRINT in checks:
            stack.enter_context(patch.object(driver, "_check_footprint", lambda built: None))
        if ATTENDED in checks:
            stack.enter_context(patch.object(Eyes, "judged", _approving(Eyes.judged)))
        yield


def _approving(judged: Callable[..., Looked]) -> Callable[..., Looked]:
    return lambda *arguments: replace(judged(*arguments), wrong=[])


def _finder(finding: Finding, subject: Halves) -> str:
    """The check that found it; in brief, what a worker cannot do keeps its own name."""
    convicted = Pair(*subject).replay(finding.scenario, brief=True).verdict
    verdict: Any = finding.verdict.verdict if convicted is None else convicted.verdict
    if isinstance(verdict, Crash):
        return ERROR
    if isinstance(verdict, Violation) and verdict.place:
        return verdict.place
    passed = {frame.f_code.co_name for frame, _ in walk_tb(verdict.__traceback__)}
    return FOOTPRINT if "_check_footprint" in passed else ATTENDED


def _found(finding: Finding, subject: Halves, muted: frozenset[str]) -> Found:
    examples = 0 if finding.known else finding.examples
    with _without(muted):
        finder = _finder(finding, subject)
    return Found(
        SUITE,
        finding.verdict.invariant,
        str(finding.verdict),
        _again(finding, muted),
        examples,
        finding.scenario.num_counted,
        finder,
    )


def _again(finding: Finding, muted: frozenset[str]) -> Callable[[Halves], frozenset[str]]:
    def again(other: Halves) -> frozenset[str]:
        with _without(muted):
            verdict = Pair(*other).replay(finding.scenario).verdict
        return frozenset() if verdict is None else frozenset({verdict.invariant})

    return again
