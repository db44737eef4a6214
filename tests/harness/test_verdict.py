"""Verdicts: every status has its cause, and the most telling one stands."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import pytest

from kvassay.harness.campaign import ERROR, Finding, Outcome
from kvassay.harness.contract import Declaration
from kvassay.harness.deviations import Deviation
from kvassay.harness.evidence import Seen
from kvassay.harness.invariants import LAW
from kvassay.harness.scenario import Scenario
from kvassay.harness.verdict import SEVERITY, Status, Verdict, judge, worst
from kvassay.harness.violation import Anomaly, Crash, Violation

EVICTS = Declaration(["evict"])
WRONG = Violation("P9", Anomaly.EVICT_AMOUNT, "1", "2")
KNOWN = Deviation("P9", "wrong amount evicted", "segments", "https://example.org/1")
OTHER = Deviation("P9", "answer out of contract", "none", "https://example.org/2")


def outcome(*verdicts: Violation | Crash, met: bool = True) -> Outcome:
    found = Outcome(met=Counter({Seen.EVICTED_ON_DEMAND: 7 if met else 0}))
    for verdict in verdicts:
        name = verdict.invariant if isinstance(verdict, Violation) else ERROR
        found.findings[name] = Finding(name, Scenario(1, 1, ()), verdict, 1, 0.0)
    return found


@pytest.mark.parametrize(
    ("declaration", "found", "deviations", "status", "reason"),
    [
        (EVICTS, outcome(), [], Status.PASS, ""),
        (EVICTS, outcome(), [KNOWN], Status.PASS, ""),
        (EVICTS, outcome(WRONG), [], Status.FAIL, "wrong amount evicted"),
        (EVICTS, outcome(WRONG), [OTHER], Status.FAIL, "expected 1; got 2"),
        (EVICTS, outcome(WRONG), [OTHER, KNOWN], Status.DEVIATION, "segments (https://example"),
        (EVICTS, outcome(met=False), [], Status.NOT_REACHED, "never met: evict freed blocks"),
        (Declaration(), outcome(), [], Status.NOT_CLAIMED, "needs EVICT"),
        (Declaration(), outcome(Crash("boom")), [], Status.NOT_CLAIMED, "needs EVICT"),
        (Declaration(), outcome(WRONG), [], Status.FAIL, "wrong amount evicted"),
        (EVICTS, outcome(Crash("boom")), [], Status.ERROR, "boom"),
        (EVICTS, outcome(Crash("boom"), met=False), [], Status.ERROR, "boom"),
        (EVICTS, outcome(Crash("boom"), WRONG), [], Status.FAIL, "wrong amount evicted"),
    ],
)
def test_a_campaign_is_judged(
    declaration: Declaration,
    found: Outcome,
    deviations: list[Deviation],
    status: Status,
    reason: str,
) -> None:
    verdict = judge("mine", declaration, LAW["P9"], found, deviations)
    assert (verdict.implementation, verdict.invariant) == ("mine", "P9")
    assert verdict.status is status
    assert reason in verdict.reason
    assert bool(verdict.reason) is bool(reason)


def test_every_status_can_be_reached() -> None:
    cases = test_a_campaign_is_judged.pytestmark[0].args[1]
    assert {case[3] for case in cases} == set(Status)


def test_another_invariants_finding_does_not_fail_this_one() -> None:
    verdict = judge("mine", EVICTS, LAW["A2"], outcome(WRONG), [])
    assert verdict.status is Status.NOT_REACHED
    assert judge("mine", EVICTS, LAW["P9"], outcome(WRONG), []).status is Status.FAIL


def test_a_verdict_says_how_often_its_states_were_met_and_travels_as_plain_data() -> None:
    verdict = judge("mine", EVICTS, LAW["P9"], outcome(), [])
    assert verdict.met == {"evict freed blocks": 7}
    assert verdict.as_dict() == {
        "implementation": "mine",
        "invariant": "P9",
        "status": "pass",
        "reason": "",
        "met": {"evict freed blocks": 7},
    }
    assert type(verdict.as_dict()["status"]) is str
    assert Verdict(**{**verdict.as_dict(), "status": Status("pass")}) == verdict


def test_the_worst_status_stands_whatever_the_order() -> None:
    assert set(SEVERITY) == set(Status)
    for one, other in permutations(Status, 2):
        expected = min((one, other), key=SEVERITY.index)
        assert worst([one, other]) is expected
    assert worst([Status.PASS, Status.NOT_REACHED]) is Status.NOT_REACHED
    assert worst([Status.NOT_CLAIMED, Status.PASS]) is Status.PASS
    assert worst([Status.DEVIATION, Status.ERROR, Status.FAIL]) is Status.FAIL
