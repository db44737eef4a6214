"""An assay of a pair in a rig: each check runs when its test asks, and tells its verdict."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from kvassay.harness.registry import Registration
from kvassay.harness.rig.checking import Checked, Met, Subject
from kvassay.harness.rig.conformance import Check
from kvassay.harness.rig.law import KIND, SUITE
from kvassay.harness.showing import declared_values
from kvassay.harness.verdict import Status, Verdict


@contextmanager
def _one_thread() -> Iterator[None]:
    """Of a model as small as here, every further thread only waits, and keeps others waiting."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class RigAssay:
    """What the tests of one pair ask."""

    def __init__(self, manager: Registration, kernel: Registration, subject: Subject) -> None:
        self.name = f"{manager.name}+{kernel.name}"
        self._halves = (manager, kernel)
        self._subject = subject
        self._news: list[dict[str, Any]] = []
        self._met: Counter[Met] = Counter()
        self._checks = 0
        self._seconds = 0.0

    def require(self, check: Check) -> None:
        """Pass, or end the test with what the check says."""
        start = time.perf_counter()
        with _one_thread():
            checked = check(self._subject)
        self._seconds += time.perf_counter() - start
        self._checks += 1
        self._met += checked.met
        verdict = self._judged(checked)
        self._tell(verdict)
        if verdict.status in (Status.FAIL, Status.ERROR):
            pytest.fail(f"{verdict.invariant} in {self.name}, {verdict.reason}", pytrace=False)
        if verdict.status is not Status.PASS:
            pytest.skip(f"{verdict.status}: {verdict.reason}")

    def _judged(self, checked: Checked) -> Verdict:
        where = checked.circumstance
        status, reason = Status.PASS, ""
        if checked.unclaimed is not None:
            status, reason = Status.NOT_CLAIMED, f"{where}: {checked.unclaimed}"
        elif checked.problem is not None:
            status = Status.ERROR if checked.crashed else Status.FAIL
            reason = f"{where}: {checked.problem}"
        elif checked.missing:
            status, reason = Status.NOT_REACHED, f"{where}: never met: {', '.join(checked.missing)}"
        met = {each.value: count for each, count in checked.met.items() if count}
        return Verdict(self.name, checked.invariant, status, reason, met)

    def _tell(self, verdict: Verdict) -> None:
        """The verdict, and the newest account of the run."""
        self._news.append({"verdict": verdict.as_dict(), "kind": KIND, "suite": SUITE})
        manager, kernel = self._halves
        answers = self._met[Met.ANSWER]
        self._news.append(
            {
                "run": {
                    "implementation": self.name,
                    "kind": KIND,
                    "version": " + ".join(dict.fromkeys((manager.version, kernel.version))),
                    "reference": f"{manager.reference} --impl {kernel.reference}",
                    "suite": SUITE,
                    "seed": "derandomized",
                    "options": {},
                    "examples": self._checks,
                    "operations": self._met[Met.STEP],
                    "seconds": self._seconds,
                    "effects": {},
                    "met": {met.value: count for met, count in self._met.items()},
                    "declared": self._declared(),
                    "stale_declarations": [],
                    "stale_deviations": [],
                    "health": f"{self._checks} circumstances, {answers} answers judged",
                    "findings": [],
                }
            }
        )

    def _declared(self) -> dict[str, str]:
        """What both halves declare beyond the defaults, capabilities apart."""
        return {
            f"{half} {name}": value
            for half, registration in zip(("manager", "kernel"), self._halves, strict=True)
            for name, value in declared_values(registration.declaration).items()
            if name != "capabilities"
        }

    def take_news(self) -> list[dict[str, Any]]:
        """What was not yet reported to the terminal."""
        news, self._news = self._news, []
        return news
