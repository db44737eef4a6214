"""One check on one kernel: its cases, then its control on the same cases, then the shrinking.

The first case that is judged wrong ends the check: it is shrunk, explained and kept. If nothing is
wrong, the control must be convicted on what was judged, or the check has proved nothing.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random

from kvassay.harness.attention.case import Case, Trial
from kvassay.harness.attention.check import Check
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.reach import Reach, reached
from kvassay.harness.attention.shrink import shrink
from kvassay.harness.attention.wrong import Refused, Wrong
from kvassay.harness.deadline import Deadline
from kvassay.harness.violation import Crash

AT_LEAST = 3
"""Cases that are judged however slow the kernel is."""


@dataclass(frozen=True)
class Effort:
    """How much one check may take."""

    cases: int = 200
    seconds: float = 6.0
    """Of processor time."""
    seed: int = 0
    shrink_seconds: float = 15.0
    """For making a failing case smaller."""


def searching() -> Effort:
    """Other cases every time, as many as the time allows."""
    return Effort(cases=10**9, seconds=20.0, seed=secrets.randbits(32))


@dataclass
class Finding:
    """The smallest case that shows what is wrong."""

    trial: Trial
    verdict: Wrong | Crash
    cases: int
    """Cases until it was found."""
    known: bool = False
    """Whether it was a stored case."""

    @property
    def invariant(self) -> str:
        """The invariant broken, or ``error``."""
        return self.verdict.invariant if isinstance(self.verdict, Wrong) else "error"

    @property
    def how(self) -> str:
        """How it was found, in words."""
        return "replayed from a known case" if self.known else f"found after {self.cases} cases"


@dataclass
class Outcome:
    """What a check has judged and found."""

    check: Check
    judged: int = 0
    refused: int = 0
    refusal: str = ""
    """What the kernel said last when it refused."""
    finding: Finding | None = None
    control_seen: bool = False
    """Whether the check convicted its control on the cases judged."""
    met: Counter[Reach] = field(default_factory=Counter)
    """What the cases that were computed exercise; refused ones count nothing."""
    seconds: float = 0.0


def run(check: Check, kernel: Kernel, effort: Effort, known: list[Trial]) -> Outcome:
    """Known cases of this check first, then its own, within the effort."""
    start = time.monotonic()
    outcome = Outcome(check)
    judged = _judge_all(check, kernel, effort, known, outcome)
    if outcome.finding is None:
        outcome.control_seen = _sees_control(check, kernel, judged)
    elif not outcome.finding.known:
        _minimise(check, kernel, outcome.finding, effort)
    outcome.seconds = time.monotonic() - start
    return outcome


def _judge_all(
    check: Check, kernel: Kernel, effort: Effort, known: list[Trial], outcome: Outcome
) -> list[Case]:
    judged: list[Case] = []
    deadline = Deadline(effort.seconds)
    stored = [trial.case for trial in known if trial.check == check.name]
    known_ones = 0
    for number, case in enumerate(_cases(check, kernel, effort, stored)):
        if number == len(stored):
            # What is known takes its own time, and nothing of what the check would do anyway.
            known_ones, deadline = len(judged), Deadline(effort.seconds)
        if number >= len(stored) and len(judged) - known_ones >= AT_LEAST and deadline.passed:
            break
        try:
            verdict: Wrong | Crash | None = verdict_on(check, kernel, case)
        except Refused as refusal:
            outcome.refused += 1
            outcome.refusal = str(refusal)
            continue
        judged.append(case)
        if not check.only_if_refused:
            outcome.met.update(reached(case))
        if verdict is not None:
            trial = Trial(check.name, case)
            outcome.finding = Finding(trial, verdict, number + 1, known=number < len(stored))
            break
    outcome.judged = len(judged)
    return judged


def _cases(check: Check, kernel: Kernel, effort: Effort, stored: list[Case]) -> Iterator[Case]:
    yield from stored
    for number, case in enumerate(check.cases(kernel, Random(effort.seed))):
        if number >= effort.cases:
            return
        yield case


def verdict_on(check: Check, kernel: Kernel, case: Case) -> Wrong | Crash | None:
    """What is wrong with a kernel on a case; raises `Refused`."""
    try:
        return check.judge(kernel, case)
    except (Wrong, Crash) as verdict:
        return verdict


def _sees_control(check: Check, kernel: Kernel, judged: list[Case]) -> bool:
    """Whether a kernel with one fault planted in it is convicted on the cases judged."""
    control = Kernel(check.control(kernel.declaration), kernel.declaration, "control")
    for case in judged:
        try:
            if isinstance(verdict_on(check, control, case), Wrong):
                return True
        except Refused:
            continue
    return False


def _minimise(check: Check, kernel: Kernel, finding: Finding, effort: Effort) -> None:
    """Shrink the case, keeping its invariant and its explanation."""
    if isinstance(finding.verdict, Crash) and finding.verdict.hangs:
        return

    def fails(case: Case) -> bool:
        try:
            verdict = verdict_on(check, kernel, case)
        except Refused:
            return False
        return verdict is not None and _alike(finding.verdict, verdict)

    smallest = shrink(finding.trial.case, fails, Deadline(effort.shrink_seconds))
    verdict = verdict_on(check, kernel, smallest)
    if verdict is not None:
        finding.verdict = verdict
        finding.trial = replace(finding.trial, case=smallest)


def _alike(first: Wrong | Crash, other: Wrong | Crash) -> bool:
    """Whether two verdicts are about the same; what had no explanation may get one."""
    looks = first.looks if isinstance(first, Wrong) else ""
    same = not looks or (isinstance(other, Wrong) and other.looks == looks)
    return same and invariant_of(first) == invariant_of(other)


def invariant_of(verdict: Wrong | Crash) -> str:
    """The invariant that a verdict speaks of, or ``error``."""
    return verdict.invariant if isinstance(verdict, Wrong) else "error"
