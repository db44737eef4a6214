"""Runs the suites' campaigns on planted faults, for the tests of the engines."""

from __future__ import annotations

from dataclasses import replace

from kvassay.harness.campaign import CHECK, Campaign, Outcome
from kvassay.harness.contract import CacheManager
from kvassay.harness.generator import FOCUS
from kvassay.harness.index.law import SUITE
from kvassay.harness.registry import Registration, find
from kvassay.harness.session import without_inspection
from kvassay.harness.subjects import subject_of

SHORT = 8


def registered(module: str, name: str, *, blind: bool) -> Registration:
    """One registration of a module; a blind one claims nothing that only looks."""
    found = {entry.name: entry for entry in find(module)}[name]
    if not blind:
        return found
    return replace(found, declaration=without_inspection(found.declaration))


def convict(registration: Registration, accepted: frozenset[str], control: Registration) -> Outcome:
    """The first campaign that convicts under an accepted invariant.

    Fails the test if none does, or not with a short scenario, or if that convicts the `control`
    too.
    """
    found: set[str] = set()
    for focus in FOCUS if registration.kind is CacheManager else (SUITE,):
        outcome = Campaign(registration, focus, CHECK).run()
        found |= set(outcome.findings)
        hits = [finding.scenario for key, finding in outcome.findings.items() if key in accepted]
        if hits:
            shortest = min(hits, key=lambda scenario: scenario.num_counted)
            assert shortest.num_counted <= SHORT
            assert subject_of(control.kind).replay(control, shortest).verdict is None
            return outcome
    name = registration.name
    raise AssertionError(f"{name} is not convicted under {sorted(accepted)}, only {sorted(found)}")
