"""Runs the suites' campaigns on planted faults, for the tests of the engines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvassay.harness.campaign import CHECK, Campaign, Outcome
from kvassay.harness.generator import FOCUS
from kvassay.harness.registry import find
from kvassay.harness.session import without_inspection

SHORT = 8


def convict(module: str, name: str, accepted: frozenset[str], *, blind: bool) -> Outcome:
    """The first campaign that convicts `name` under an accepted invariant.

    Fails the test if none does, or not with a short scenario.
    """
    registration: Any = {entry.name: entry for entry in find(module)}[name]
    if blind:
        declaration = without_inspection(registration.declaration)
        registration = replace(registration, declaration=declaration)
    found: set[str] = set()
    for focus in FOCUS:
        outcome = Campaign(registration, focus, CHECK).run()
        found |= set(outcome.findings)
        hits = [finding for key, finding in outcome.findings.items() if key in accepted]
        if hits:
            assert min(finding.scenario.num_counted for finding in hits) <= SHORT
            return outcome
    raise AssertionError(f"{name} is not convicted under {sorted(accepted)}, only {sorted(found)}")
