"""Counters are exact, verdicts may not get worse, and what cannot be compared is not."""

from __future__ import annotations

import pytest

from kvassay.harness.environment import capture
from kvassay.harness.gate.comparable import obstacles, remarks
from kvassay.harness.gate.counted import compare
from kvassay.harness.gate.deciding import Decision
from kvassay.harness.gate.gate import Result
from kvassay.harness.gate.sides import Opened
from kvassay.harness.gate.thresholds import Thresholds
from kvassay.harness.gate.verdicts import changes
from kvassay.harness.record import Subject
from kvassay.harness.verdict import Status

PASS, FAIL, OPEN = Decision.PASS, Decision.FAIL, Decision.INCONCLUSIVE
EXACT = Thresholds(0.05)


@pytest.mark.parametrize(
    ("name", "base", "head", "decision", "why"),
    [
        ("hits", 7, 7, PASS, ""),
        ("hits", 7, 6, FAIL, "worse"),
        ("hits", 7, 8, PASS, "better"),
        ("evictions", 7, 8, FAIL, "worse"),
        ("evictions", 7, 6, PASS, "better"),
        ("something else", 7, 8, FAIL, "changed"),
        ("hits", 7, None, FAIL, "no longer counted"),
        ("hits", None, 7, PASS, "new"),
    ],
)
def test_a_counter(
    name: str, base: int | None, head: int | None, decision: Decision, why: str
) -> None:
    sides = [{} if count is None else {name: count} for count in (base, head)]
    (found,) = compare(sides[0], sides[1], EXACT)
    assert (found.decision, found.why) == (decision, why)


def test_a_free_counter_may_change() -> None:
    (found,) = compare({"hits": 7}, {"hits": 1}, Thresholds(0.05, free=frozenset({"hits"})))
    assert found.decision is PASS


@pytest.mark.parametrize(
    ("base", "head", "decision"),
    [
        (Status.PASS, Status.FAIL, FAIL),
        (Status.PASS, Status.ERROR, FAIL),
        (Status.NOT_REACHED, Status.FAIL, FAIL),
        (None, Status.FAIL, FAIL),
        (Status.PASS, Status.DEVIATION, FAIL),
        (Status.PASS, Status.NOT_CLAIMED, FAIL),
        (Status.PASS, Status.NOT_REACHED, OPEN),
        (Status.PASS, None, OPEN),
        (Status.FAIL, Status.FAIL, PASS),
        (Status.FAIL, Status.PASS, PASS),
        (Status.NOT_CLAIMED, Status.PASS, PASS),
        (Status.FAIL, Status.DEVIATION, PASS),
    ],
)
def test_a_verdict(base: Status | None, head: Status | None, decision: Decision) -> None:
    sides = [{} if status is None else {"A1": status} for status in (base, head)]
    (found,) = changes(sides[0], sides[1])
    assert found.decision is decision


def test_the_same_verdict_is_no_change() -> None:
    assert not list(changes({"A1": Status.PASS}, {"A1": Status.PASS}))


def opened(kind: str = "CacheManager", origin: str = "a.py", **environment: object) -> Opened:
    subject = Subject(name="x", kind=kind, version="1", reference="x", declaration={})
    return Opened(subject, capture("0").model_copy(update=environment), origin)


def test_other_kinds_and_other_machines_cannot_be_compared() -> None:
    assert not list(obstacles(opened(), opened()))
    assert list(obstacles(opened(), opened("PrefixIndex"))) == [
        "kind: CacheManager and PrefixIndex"
    ]
    assert [
        told.split(":")[0] for told in obstacles(opened(), opened(cores=96, python="3.13.0"))
    ] == [
        "cores",
        "python",
    ]


def test_what_must_be_known_is_said() -> None:
    assert list(remarks(opened(), opened())) == [
        "both sides run the same file, a.py: what differs is noise"
    ]
    other = opened(origin="b.py", packages={"torch": "0"})
    assert any("torch" in told for told in remarks(opened(), other))


def test_nothing_looked_at_is_no_pass() -> None:
    result = Result(opened(), opened())
    assert result.decision is OPEN
    result.judged = 1
    assert result.decision is PASS
    result.verdicts += changes({"A1": Status.PASS}, {"A1": Status.FAIL, "A2": Status.PASS})
    assert result.decision is FAIL
