"""An assay of an engine: each check runs when its test asks, and tells its verdict."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from kvassay.harness.engines.checks import Check, Checked, Met
from kvassay.harness.engines.subject import EngineSubject
from kvassay.harness.showing import declared_values
from kvassay.harness.verdict import Status, Verdict

KIND = "Engine"
SUITE = "engines"


class EngineAssay:
    """What the tests of one engine ask."""

    def __init__(self, subject: EngineSubject) -> None:
        self._subject = subject
        self._registration = subject.registration
        self._news: list[dict[str, Any]] = []
        self._met: Counter[Met] = Counter()
        self._checks = 0
        self._seconds = 0.0

    def require(self, check: Check) -> None:
        """Pass, or end the test with what the check says."""
        start = time.perf_counter()
        checked = check(self._subject)
        self._seconds += time.perf_counter() - start
        self._checks += 1
        self._met += checked.met
        verdict = self._judged(checked)
        self._tell(verdict)
        if verdict.status in (Status.FAIL, Status.ERROR):
            name = self._registration.name
            pytest.fail(f"{verdict.invariant} in {name}, {verdict.reason}", pytrace=False)
        if verdict.status is not Status.PASS:
            pytest.skip(f"{verdict.status}: {verdict.reason}")

    def close(self) -> None:
        """Let go of the engines."""
        self._subject.drop()

    def _judged(self, checked: Checked) -> Verdict:
        where, status, reason = checked.circumstance, Status.PASS, ""
        if checked.unclaimed is not None:
            status, reason = Status.NOT_CLAIMED, f"{where}: {checked.unclaimed}"
        elif checked.problem is not None:
            status = Status.ERROR if checked.crashed else Status.FAIL
            reason = f"{where}: {checked.problem}"
        elif checked.missing:
            status, reason = Status.NOT_REACHED, f"{where}: never met: {', '.join(checked.missing)}"
        met = {each.value: count for each, count in checked.met.items() if count}
        return Verdict(self._registration.name, checked.invariant, status, reason, met)

    def _tell(self, verdict: Verdict) -> None:
        """The verdict, and the newest account of the run."""
        self._news.append({"verdict": verdict.as_dict(), "kind": KIND, "suite": SUITE})
        declared = declared_values(self._registration.declaration)
        answers, tokens = self._met[Met.ANSWER], self._met[Met.TOKEN]
        self._news.append(
            {
                "run": {
                    "implementation": self._registration.name,
                    "kind": KIND,
                    "version": self._registration.version,
                    "reference": self._registration.reference,
                    "suite": SUITE,
                    "seed": "derandomized",
                    "options": {},
                    "examples": self._checks,
                    "operations": tokens,
                    "seconds": self._seconds,
                    "effects": {},
                    "met": {met.value: count for met, count in self._met.items()},
                    "declared": declared,
                    "stale_declarations": [],
                    "stale_deviations": [],
                    "health": f"{self._checks} circumstances, {answers} answers judged",
                    "findings": [],
                }
            }
        )

    def take_news(self) -> list[dict[str, Any]]:
        """What was not yet reported to the terminal."""
        news, self._news = self._news, []
        return news
