"""From what a campaign found and met to one verdict per invariant."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from kvassay.harness.campaign import ERROR, Outcome
from kvassay.harness.contract import Declaration
from kvassay.harness.deviations import Deviation
from kvassay.harness.invariants import Invariant


class Status(StrEnum):
    """The verdict on one invariant; everything but `pass` is counted apart."""

    PASS = "pass"
    FAIL = "fail"
    DEVIATION = "deviation"
    NOT_CLAIMED = "not claimed"
    NOT_REACHED = "not reached"
    ERROR = "error"


SEVERITY = (
    Status.FAIL,
    Status.ERROR,
    Status.DEVIATION,
    Status.NOT_REACHED,
    Status.PASS,
    Status.NOT_CLAIMED,
)
"""What stands when several suites speak of one invariant: the first of these."""


@dataclass(frozen=True)
class Verdict:
    """What is known about one implementation and one invariant."""

    implementation: str
    invariant: str
    status: Status
    reason: str = ""
    """Why: the anomaly, the capability that is missing, what was not met, the link."""
    met: dict[str, int] = field(default_factory=dict)
    """How often the states that the invariant speaks of were met."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for reports that cross process boundaries."""
        return {**asdict(self), "status": self.status.value}


def judge(
    name: str,
    declaration: Declaration,
    invariant: Invariant,
    outcome: Outcome,
    deviations: list[Deviation],
) -> Verdict:
    """The verdict of one campaign on one invariant."""
    met = {
        seen.value: outcome.met[seen]
        for group in invariant.demands(declaration)
        for seen in group
        if outcome.met[seen]
    }

    def verdict(status: Status, reason: str = "") -> Verdict:
        return Verdict(name, invariant.id, status, reason, met)

    finding = outcome.findings.get(invariant.id)
    if finding is not None:
        known = next((entry for entry in deviations if entry.covers(finding.verdict)), None)
        if known is not None:
            return verdict(Status.DEVIATION, f"{known.reason} ({known.link})")
        return verdict(Status.FAIL, str(finding.verdict))
    unclaimed = invariant.claim(declaration)
    if unclaimed is not None:
        return verdict(Status.NOT_CLAIMED, unclaimed)
    if ERROR in outcome.findings:
        return verdict(Status.ERROR, str(outcome.findings[ERROR].verdict))
    missing = invariant.missing(outcome.met, declaration)
    if missing:
        return verdict(Status.NOT_REACHED, "never met: " + "; ".join(missing))
    return verdict(Status.PASS)


def worst(statuses: list[Status]) -> Status:
    """The status that stands when several suites judged one invariant."""
    return min(statuses, key=SEVERITY.index)
