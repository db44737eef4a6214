"""The trial convicts every planted fault, by what it breaks; the instrument and odd ones pass."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from kvassay.harness.load.known import trial as on_trial
from kvassay.harness.load.known.instrument import Instrument
from kvassay.harness.load.known.law import METRIC_LAW
from kvassay.harness.load.known.scenes import ACTS
from kvassay.harness.load.known.trial import Outcome, trial
from kvassay.harness.load.watching import Wanted, Watcher
from kvassay.harness.metrics.timeline import Timeline
from kvassay.harness.verdict import Status
from kvassay.impls.faulty.metrics import FAULTS
from kvassay.impls.faulty.metrics_controls import CONTROLS


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_convicted_by_what_it_breaks(name: str) -> None:
    fault = FAULTS[name]
    outcome = trial(fault.instrument)
    assert outcome.convicted, f"{name} passes: {fault.hides}"
    assert not outcome.error
    assert outcome.convicted <= fault.accepted, [str(finding) for finding in outcome.findings]
    for invariant in outcome.convicted:
        verdict = outcome.verdict(invariant)
        assert verdict.status is Status.FAIL
        assert "expected" in verdict.reason


@pytest.mark.parametrize("name", ["", *CONTROLS])
def test_a_correct_instrument_passes(name: str) -> None:
    outcome = trial(CONTROLS[name] if name else Instrument())
    assert not outcome.findings, [str(finding) for finding in outcome.findings]
    assert {outcome.verdict(invariant).status for invariant in METRIC_LAW} == {Status.PASS}


def test_every_invariant_is_broken_by_two_faults_that_break_no_other() -> None:
    alone = Counter(min(fault.accepted) for fault in FAULTS.values() if len(fault.accepted) == 1)
    assert {invariant for invariant in METRIC_LAW if alone[invariant] >= 2} == set(METRIC_LAW)


@pytest.mark.parametrize("invariant", ["M1", "M3", "M6"])
def test_what_was_not_played_is_not_reached(
    invariant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = tuple(act for act in ACTS if act.invariant != invariant)
    first = next(act for act in ACTS if act.invariant == "M1")
    bare = replace(first, scene=replace(first.scene, calls=first.scene.calls[-1:]))
    monkeypatch.setattr(on_trial, "ACTS", (bare, *others))
    outcome = trial(Instrument())
    verdict = outcome.verdict(invariant)
    assert verdict.status is Status.NOT_REACHED
    assert "never met" in verdict.reason


class Hanging(Watcher):
    """Waits for what nobody sends."""

    async def watch(self, wanted: Wanted) -> Timeline:
        await asyncio.Event().wait()
        raise AssertionError


def test_an_instrument_that_hangs_or_crashes_is_in_error() -> None:
    outcome = trial(replace(Instrument(), watcher=Hanging))
    verdicts = [outcome.verdict(invariant) for invariant in METRIC_LAW]
    assert {verdict.status for verdict in verdicts} == {Status.ERROR}
    assert "everything waits" in verdicts[0].reason
    crashed = trial(replace(Instrument(), metrics={}))
    assert crashed.verdict("M7").status is Status.ERROR


def test_nothing_met_is_no_pass() -> None:
    empty = Outcome("nobody", (), {})
    assert {empty.verdict(one).status for one in METRIC_LAW} == {Status.NOT_REACHED}
