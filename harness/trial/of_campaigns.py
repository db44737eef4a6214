"""Managers and prefix indexes: the assay of each suite, known scenarios first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from kvassay.harness.assay import Assay, Plan, corpus_folder
from kvassay.harness.campaign import CHECK, Finding, invariant_of, load_known
from kvassay.harness.contract import CacheManager
from kvassay.harness.registry import Registration
from kvassay.harness.session import without_inspection
from kvassay.harness.subjects import subject_of
from kvassay.harness.trial.found import Effort, Found, Judged
from kvassay.harness.trial.planted import Planted
from kvassay.harness.trial.without import without

SUITES: dict[type, tuple[str, ...]] = {CacheManager: ("allocator", "cow", "prefix", "events")}
"""The suites of managers; an index has one."""
ELSE = ("index",)


def warm() -> None:
    """Reading scenarios for the first time makes what reads them."""
    load_known([corpus_folder()])


def judge(planted: Planted, subject: Registration, effort: Effort) -> Judged:
    """Suite by suite, until one convicts."""
    judged = Judged()
    for suite in SUITES.get(subject.kind, ELSE):
        assay = _assay(subject, suite, effort)
        judged.examples += assay.outcome.examples
        judged.found += [
            _found(suite, each, effort.without) for each in assay.outcome.findings.values()
        ]
        if judged.found:
            break
    return judged


def _assay(subject: Registration, suite: str, effort: Effort) -> Assay:
    """With no counterexamples from before."""
    budget = replace(CHECK, examples=effort.examples)
    with TemporaryDirectory() as folder, without(effort.without):
        plan = Plan(budget=budget, counterexamples=Path(folder), inspection=not effort.blind)
        return Assay(subject, suite, plan)


def _found(suite: str, finding: Finding, muted: frozenset[str]) -> Found:
    return Found(
        suite,
        finding.invariant,
        str(finding.verdict),
        _again(finding, muted),
        finding.examples,
        finding.scenario.num_counted,
        getattr(finding.verdict, "place", "error"),
    )


def _again(finding: Finding, muted: frozenset[str]) -> Callable[[Registration], frozenset[str]]:
    def again(other: Registration) -> frozenset[str]:
        declared = other.declaration
        if not finding.inspected:
            other = replace(other, declaration=without_inspection(declared))
        with without(muted):
            verdict = subject_of(other.kind).replay(other, finding.scenario).verdict
        return frozenset() if verdict is None else frozenset({invariant_of(verdict)})

    return again
