"""Kernels: the checks of the attention suite, those first that vouch for what the fault breaks."""

from __future__ import annotations

from collections.abc import Callable

from kvassay.harness.attention import checks
from kvassay.harness.attention.campaign import Effort as KernelEffort
from kvassay.harness.attention.campaign import Finding, invariant_of, run, verdict_on
from kvassay.harness.attention.check import CHECKS, Check
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.wrong import Refused
from kvassay.harness.trial.found import Effort, Found, Judged
from kvassay.harness.trial.planted import Family, Planted

FRAGILE = frozenset({Family.TRITON})
"""A case that is made smaller may make such a kernel read anywhere, and end its process."""


def judge(planted: Planted, subject: Kernel, effort: Effort) -> Judged:
    """Check by check, until enough have convicted."""
    judged = Judged()
    most = KernelEffort(
        cases=effort.cases,
        seconds=effort.seconds,
        shrink_seconds=0.0 if planted.family in FRAGILE else effort.shrink_seconds,
    )
    for check in _asked(planted, subject, effort):
        outcome = run(check, subject, most, [])
        judged.examples += outcome.judged
        if outcome.finding is not None:
            judged.found.append(_found(check, outcome.finding))
            if len(judged.found) >= effort.enough:
                break
    return judged


def _asked(planted: Planted, subject: Kernel, effort: Effort) -> list[Check]:
    asked = [checks.find(name) for name in planted.checks] or list(CHECKS.values())
    asked = [check for check in asked if check.name not in effort.without]
    claimed = [check for check in asked if check.unclaimed(subject.declaration) is None]

    def far(check: Check) -> tuple[bool, bool]:
        return check.name != planted.first, not planted.accepted & {*check.invariants}

    return sorted(claimed, key=far)


def _found(check: Check, finding: Finding) -> Found:
    told, again = str(finding.verdict), _again(check, finding)
    return Found(check.name, finding.invariant, told, again, finding.cases, finder=check.name)


def _again(check: Check, finding: Finding) -> Callable[[Kernel], frozenset[str]]:
    def again(other: Kernel) -> frozenset[str]:
        try:
            verdict = verdict_on(check, other, finding.trial.case)
        except Refused:
            return frozenset()
        return frozenset() if verdict is None else frozenset({invariant_of(verdict)})

    return again
