"""What a check of the exercise is, and what it says to somebody who wrote a first KV cache.

A check states one fact. When a solution does not show it, the `Problem` tells what was done, what
should have come of it, what came, and what to look at: no word of it needs the contract.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from textwrap import fill

from kvassay.harness.session import time_limit
from kvassay.harness.textbook import Exercise
from kvassay.harness.violation import Hang

PATIENCE = 5.0
"""Seconds for one check."""


@dataclass
class Problem(Exception):
    """A fact that a solution does not show."""

    expected: str
    got: str
    situation: str = ""
    fact: str = ""
    hint: str = ""

    def __str__(self) -> str:
        parts = {
            "after": self.situation,
            "expected": self.expected,
            "got": self.got,
            "hint": self.hint,
        }
        told = [_paragraph(label, text) for label, text in parts.items() if text]
        return "\n".join([self.fact, *told])


def _paragraph(label: str, text: str) -> str:
    start = f"  {label + ':':<10}"
    return fill(text, 96, initial_indent=start, subsequent_indent=" " * len(start))


@dataclass(frozen=True)
class Check:
    """One fact: the sentence that states it, what to look at if it fails, and the test of it."""

    fact: str
    hint: str
    run: Callable[[Exercise], None]
    beyond: bool = False
    """Whether the usual solution of the exercise does not show it, either."""

    def problem(self, exercise: Exercise) -> Problem | None:
        """What is wrong with a solution; None if it shows the fact."""
        try:
            with time_limit(PATIENCE):
                self.run(exercise)
        except Problem as problem:
            problem.fact, problem.hint = self.fact, problem.hint or self.hint
            return problem
        except Hang as hang:
            return Problem("an answer", str(hang), fact=self.fact, hint="a loop without end?")
        return None


def problems(checks: list[Check], exercise: Exercise, *, beyond: bool = False) -> list[Problem]:
    """What is wrong with a solution; `beyond` asks for more than the usual one does."""
    asked = [check for check in checks if beyond or not check.beyond]
    return [problem for check in asked if (problem := check.problem(exercise)) is not None]


def entered(
    checks: list[Check], fact: str, hint: str, *, beyond: bool = False
) -> Callable[[Callable[[Exercise], None]], Check]:
    """Make a function a check, and enter it in a list."""

    def enter(run: Callable[[Exercise], None]) -> Check:
        checks.append(Check(fact, hint, run, beyond))
        return checks[-1]

    return enter


class Trial:
    """Calls into a solution, remembered in words; whatever they raise becomes a `Problem`."""

    def __init__(self) -> None:
        self._steps: list[str] = []

    @contextmanager
    def doing(self, what: str, *, looking: bool = False) -> Iterator[None]:
        """One step; what only looks is told if it fails, and forgotten else."""
        self._steps.append(what)
        try:
            yield
        except Problem:
            raise
        except Exception as error:
            raise self.problem("no error", in_words(error)) from error
        if looking:
            self._steps.pop()

    def refuses(self, what: str, call: Callable[[], object]) -> None:
        """A step that must end with an error that says OOM."""
        self._steps.append(what)
        try:
            call()
        except Exception as error:
            if not isinstance(error, RuntimeError) or "OOM" not in str(error):
                raise self.problem('RuntimeError("OOM")', in_words(error)) from error
        else:
            raise self.problem('RuntimeError("OOM")', "no error")

    def problem(self, expected: str, got: str, hint: str = "") -> Problem:
        """What is wrong after the steps so far."""
        times = [(step, len(list(same))) for step, same in groupby(self._steps)]
        told = [step if count == 1 else f"{step} ({count} times)" for step, count in times]
        return Problem(expected, got, ", ".join(told), hint=hint)


def in_words(error: Exception) -> str:
    """An error, and the line of the solution that raised it."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    own = Path(where.filename).parent == Path(__file__).parent
    place = "" if own else f" (line {where.lineno} of {Path(where.filename).name})"
    return f"{type(error).__name__}: {error}{place}"


def counted(number: int, what: str) -> str:
    """``1 block``, ``2 blocks``."""
    return f"{number} {what}{'' if number == 1 else 's'}"
