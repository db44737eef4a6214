"""What the checks of running engines come to, circumstance by circumstance, and the verdicts.

A check brings a subject into one circumstance, and has passed only if that was met (`missing`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

import pytest

from kvassay.harness.verdict import Status, Verdict

Met = TypeVar("Met", bound=StrEnum)
"""What can be met."""


@dataclass
class Checked(Generic[Met]):
    """What came of a check."""

    invariant: str
    circumstance: str
    problem: str | None = None
    met: Counter[Met] = field(default_factory=Counter)
    missing: tuple[Met, ...] = ()
    """What should have been met, and was not."""
    unclaimed: str | None = None
    """Why the subject cannot come into these circumstances."""
    crashed: bool = False
    """Whether the problem is an exception that nobody expected."""

    @property
    def passed(self) -> bool:
        """Met everything, and found nothing."""
        return self.problem is None and not self.missing and self.unclaimed is None

    def verdict(self, implementation: str) -> Verdict:
        """On whoever was checked."""
        where, status, reason = self.circumstance, Status.PASS, ""
        if self.unclaimed is not None:
            status, reason = Status.NOT_CLAIMED, f"{where}: {self.unclaimed}"
        elif self.problem is not None:
            status = Status.ERROR if self.crashed else Status.FAIL
            reason = f"{where}: {self.problem}"
        elif self.missing:
            status, reason = Status.NOT_REACHED, f"{where}: never met: {', '.join(self.missing)}"
        met = {each.value: count for each, count in self.met.items() if count}
        return Verdict(implementation, self.invariant, status, reason, met)


class Circumstance(Protocol):
    """A check, as far as its test has to know it."""

    @property
    def invariant(self) -> str:
        """The id of what it is about."""
        ...

    @property
    def circumstance(self) -> str:
        """What it brings about."""
        ...


def parameters(checks: Iterable[Circumstance], invariant: str) -> list[Any]:
    """The checks of an invariant as parameters of a test, by what they bring about."""
    return [
        pytest.param(check, id=check.circumstance.replace(" ", "-"))
        for check in checks
        if check.invariant == invariant
    ]


@dataclass(frozen=True)
class Subject:
    """Who is assayed, as records have it."""

    name: str
    version: str
    reference: str
    declared: dict[str, str]


class CircumstanceAssay(Generic[Met]):
    """What the tests of one subject ask: a check runs when its test does, and tells its verdict."""

    def __init__(
        self, subject: Subject, kind: str, suite: str, *, answer: Met, operation: Met
    ) -> None:
        """`answer` and `operation` are what is counted as such in the account of the run."""
        self.name = subject.name
        self._whose = subject
        self._tags = {"kind": kind, "suite": suite}
        self._answer, self._operation = answer, operation
        self._news: list[dict[str, Any]] = []
        self._met: Counter[Met] = Counter()
        self._checks = 0
        self._seconds = 0.0

    def ask(self, run: Callable[[], Checked[Met]]) -> None:
        """Pass, or end the test with what the check says."""
        start = time.perf_counter()
        checked = run()
        self._seconds += time.perf_counter() - start
        self._checks += 1
        self._met += checked.met
        verdict = checked.verdict(self.name)
        self._tell(verdict)
        if verdict.status in (Status.FAIL, Status.ERROR):
            pytest.fail(f"{verdict.invariant} in {self.name}, {verdict.reason}", pytrace=False)
        if verdict.status is not Status.PASS:
            pytest.skip(f"{verdict.status}: {verdict.reason}")

    def _tell(self, verdict: Verdict) -> None:
        """The verdict, and the newest account of the run."""
        self._news.append({"verdict": verdict.as_dict(), **self._tags})
        self._news.append(
            {
                "run": {
                    "implementation": self.name,
                    "version": self._whose.version,
                    "reference": self._whose.reference,
                    **self._tags,
                    "seed": "derandomized",
                    "options": {},
                    "examples": self._checks,
                    "operations": self._met[self._operation],
                    "seconds": self._seconds,
                    "effects": {},
                    "met": {met.value: count for met, count in self._met.items()},
                    "declared": self._whose.declared,
                    "stale_declarations": [],
                    "stale_deviations": [],
                    "health": f"{self._checks} circumstances, "
                    f"{self._met[self._answer]} answers judged",
                    "findings": [],
                }
            }
        )

    def take_news(self) -> list[dict[str, Any]]:
        """What was not yet reported to the terminal."""
        news, self._news = self._news, []
        return news
