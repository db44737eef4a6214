"""Verdicts on circumstances: what was not met is no pass, and a test ends as its check does."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

import pytest

from kvassay.harness.circumstances import Checked, CircumstanceAssay, Subject, parameters
from kvassay.harness.verdict import Status


class Met(StrEnum):
    ANSWER = "an answer"
    HIT = "a hit"


def checked(**found: object) -> Checked[Met]:
    return Checked("S1", "warm", met=Counter({Met.ANSWER: 3, Met.HIT: 0}), **found)  # type: ignore[arg-type]


def assay() -> CircumstanceAssay[Met]:
    whose = Subject("one", "1.0", "one", {})
    return CircumstanceAssay(whose, "Engine", "engines", answer=Met.ANSWER, operation=Met.HIT)


@pytest.mark.parametrize(
    ("found", "status", "reason"),
    [
        ({}, Status.PASS, ""),
        ({"missing": (Met.HIT,)}, Status.NOT_REACHED, "warm: never met: a hit"),
        ({"problem": "off", "missing": (Met.HIT,)}, Status.FAIL, "warm: off"),
        ({"problem": "off", "crashed": True}, Status.ERROR, "warm: off"),
        ({"unclaimed": "needs SALT"}, Status.NOT_CLAIMED, "warm: needs SALT"),
    ],
)
def test_a_verdict_is_what_was_found(found: dict[str, object], status: Status, reason: str) -> None:
    verdict = checked(**found).verdict("one")
    assert (verdict.status, verdict.reason) == (status, reason)
    assert verdict.met == {"an answer": 3}


def test_a_test_ends_as_its_check_does() -> None:
    asked = assay()
    asked.ask(checked)
    with pytest.raises(pytest.fail.Exception, match="S1 in one, warm: off"):
        asked.ask(lambda: checked(problem="off"))
    with pytest.raises(pytest.skip.Exception, match="not reached: warm: never met: a hit"):
        asked.ask(lambda: checked(missing=(Met.HIT,)))
    news = asked.take_news()
    assert [one["verdict"]["status"] for one in news[::2]] == ["pass", "fail", "not reached"]
    run = news[-1]["run"]
    assert (run["examples"], run["health"]) == (3, "3 circumstances, 9 answers judged")
    assert not asked.take_news()


def test_parameters_are_those_of_an_invariant() -> None:
    (parameter,) = parameters([checked(), Checked("S2", "cold")], "S1")
    assert parameter.id == "warm"
