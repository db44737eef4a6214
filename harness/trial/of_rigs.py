"""Running engines: the checks of the rig suite, on a subject with a tagged device."""

from __future__ import annotations

from collections.abc import Callable

from kvassay.harness.circumstances import Checked
from kvassay.harness.rig.checking import Met, Subject
from kvassay.harness.rig.conformance import CHECKS, Check
from kvassay.harness.trial.found import Effort, Found, Judged
from kvassay.harness.trial.planted import Planted

ERROR = "error"


def judge(planted: Planted, subject: Subject, effort: Effort) -> Judged:
    """All checks: they take milliseconds."""
    judged = Judged()
    for check in CHECKS:
        if check.circumstance in effort.without:
            continue
        checked = check(subject)
        judged.examples += 1
        if checked.problem is not None:
            judged.found.append(_found(check, checked))
    return judged


def _found(check: Check, checked: Checked[Met]) -> Found:
    name, told = check.circumstance, checked.problem or ""
    return Found(name, _broken(checked), told, _again(check), finder=name)


def _broken(checked: Checked[Met]) -> str:
    return ERROR if checked.crashed else checked.invariant


def _again(check: Check) -> Callable[[Subject], frozenset[str]]:
    def again(other: Subject) -> frozenset[str]:
        checked = check(other)
        return frozenset() if checked.problem is None else frozenset({_broken(checked)})

    return again
