"""The trial of an instrument: every act, the caches, the arrivals; a verdict per invariant."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from kvassay.harness.load.arriving import strangeness
from kvassay.harness.load.known import cached
from kvassay.harness.load.known.checks import judge
from kvassay.harness.load.known.instrument import Instrument
from kvassay.harness.load.known.law import KIND, METRIC_LAW, SUITE
from kvassay.harness.load.known.meeting import met_in
from kvassay.harness.load.known.met import Met
from kvassay.harness.load.known.scene import perform
from kvassay.harness.load.known.scenes import ACTS
from kvassay.harness.metrics.misread import Misread, misread
from kvassay.harness.metrics.run import Run
from kvassay.harness.metrics.timeline import Ending, Timeline
from kvassay.harness.serving.script import plain
from kvassay.harness.verdict import Status, Verdict

PROCESSES = ((4.0, 1.0), (0.5, 3.0), (64.0, 0.5))
"""Rates per second, and coefficients of variation of the gaps."""
ARRIVALS = 400
SEEDS = (0, 1)


@dataclass(frozen=True)
class Outcome:
    """What a trial found and met."""

    instrument: str
    findings: tuple[Misread, ...]
    met: dict[str, Counter[Met]]
    """By invariant."""
    seconds: float = 0.0
    error: str = ""
    """What it raised; nothing was tried after that."""

    @property
    def convicted(self) -> frozenset[str]:
        """The invariants that are broken."""
        return frozenset(finding.invariant for finding in self.findings)

    def verdict(self, invariant: str) -> Verdict:
        """The verdict on one invariant."""
        rule, met = METRIC_LAW[invariant], self.met.get(invariant, Counter())
        counts = {state.value: met[state] for state in rule.reached if met[state]}
        status, reason = Status.PASS, ""
        found = [finding for finding in self.findings if finding.invariant == invariant]
        if found:
            status, reason = Status.FAIL, str(found[0])
        elif self.error:
            status, reason = Status.ERROR, self.error
        elif missing := rule.missing(met):
            status, reason = Status.NOT_REACHED, "never met: " + "; ".join(missing)
        return Verdict(self.instrument, invariant, status, reason, counts)

    def as_run(self) -> dict[str, Any]:
        """Plain data for the summary at the end of a pytest run, and for records."""
        met = Counter[str]()
        for states in self.met.values():
            met.update({state.value: count for state, count in states.items()})
        return {
            "implementation": self.instrument,
            "kind": KIND,
            "version": _version(),
            "reference": self.instrument,
            "suite": SUITE,
            "seed": "derandomized",
            "options": {},
            "examples": len(ACTS),
            "operations": met[Met.STAMPS.value],
            "seconds": self.seconds,
            "effects": {},
            "met": dict(met),
            "declared": {},
            "stale_declarations": [],
            "stale_deviations": [],
            "findings": [],
            "health": f"health: {met[Met.STAMPS.value]} stamps compared for equality",
        }


def trial(instrument: Instrument) -> Outcome:
    """Try everything, until it raises."""
    began = time.monotonic()
    met: dict[str, Counter[Met]] = {name: Counter() for name in METRIC_LAW}
    findings: list[Misread] = []
    error = ""
    try:
        _try(instrument, met, findings)
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
    return Outcome(instrument.name, tuple(findings), met, time.monotonic() - began, error)


def _try(instrument: Instrument, met: dict[str, Counter[Met]], findings: list[Misread]) -> None:
    for act in ACTS:
        performed = perform(instrument, act.scene)
        findings += judge(act, performed)
        met[act.invariant] += met_in(act.scene, performed)
        met["M2"] += met_in(act.scene, performed)  # stamps are looked at in all of them
        met["M2"][Met.STAMPS] += sum(len(one.events) for one in performed.timelines)
    findings += cached.judge(instrument, met["M5"])
    findings += _arrivals(instrument, met["M4"])
    findings += _split(instrument, met["M1"])
    findings += _preempted(instrument, met["M7"])


def _arrivals(instrument: Instrument, met: Counter[Met]) -> Iterator[Misread]:
    for rate, cv in PROCESSES:
        for seed in SEEDS:
            times = instrument.arrivals(rate, cv, ARRIVALS, seed)
            met[Met.DRAWN] += len(times)
            for strange in strangeness(times, rate, cv):
                yield misread("M4", f"arrivals of seed {seed}", f"rate {rate}, cv {cv}", strange)


# ------------------------------------------------------- what no server tells, and a rig does

SPLIT = {"queue": 0.5, "lookup": 0.125, "reservation": 0.25, "prefill": 1.0}
REST = 0.125
UNKNOWN = Timeline("r0", 8, 0.0, 0.0, (), 4.0, Ending.FAILED, "none")


def _split(instrument: Instrument, met: Counter[Met]) -> Iterator[Misread]:
    """The time to the first token by stages, of a request whose stages are known and of another."""
    act = next(act for act in ACTS if act.invariant == "M1")
    call = replace(act.scene.calls[0], script=plain(sum(SPLIT.values()) + REST))
    run = perform(instrument, replace(act.scene, calls=(call,))).run
    known = Run(tuple(replace(one, stages=SPLIT) for one in run.timelines))
    expected = {f"ttft_{stage}": seconds for stage, seconds in SPLIT.items()}
    for tag, seconds in {**expected, "ttft_rest": REST}.items():
        for told, what in ((known, seconds), (run, None)):
            got = instrument.metrics[tag].measure(told).value
            if got != what:
                yield misread("M1", "stages", f"{tag} {what}", got)
    met[Met.SPLIT] += len(SPLIT)


def _preempted(instrument: Instrument, met: Counter[Met]) -> Iterator[Misread]:
    twice, never = replace(UNKNOWN, preemptions=2), replace(UNKNOWN, request="r1", preemptions=0)
    for timelines, expected in (
        ((twice, never), 2.0),
        ((never,), 0.0),
        ((twice, UNKNOWN), None),
        ((UNKNOWN,), None),
    ):
        got = instrument.metrics["preemptions"].measure(Run(timelines)).value
        if got != expected:
            yield misread("M7", "preemptions", expected, got)
    met[Met.PREEMPTED] += 4


def _version() -> str:
    try:
        return version("kvassay")
    except PackageNotFoundError:
        return "not installed"
