"""Instruments that measure servers: the trial of the metrics suite, against known answers."""

from __future__ import annotations

from kvassay.harness.load.known.instrument import Instrument
from kvassay.harness.load.known.law import SUITE
from kvassay.harness.load.known.trial import Outcome, trial
from kvassay.harness.trial.found import Effort, Found, Judged
from kvassay.harness.trial.planted import Planted

ERROR = "error"


def warm() -> None:
    """What a first trial computes and all others have."""
    trial(Instrument())


def judge(planted: Planted, subject: Instrument, effort: Effort) -> Judged:
    """Every act, the caches and the arrivals."""
    outcome = trial(subject)
    told = {finding.invariant: str(finding) for finding in reversed(outcome.findings)}
    if outcome.error:
        told[ERROR] = outcome.error
    found = [
        Found(SUITE, name, text, _again, finder=name)
        for name, text in sorted(told.items())
        if name not in effort.without
    ]
    return Judged(found, 1)


def _again(other: Instrument) -> frozenset[str]:
    return _broken(trial(other))


def _broken(outcome: Outcome) -> frozenset[str]:
    return outcome.convicted | ({ERROR} if outcome.error else set())
