"""Replaying a stored case on a kernel, and telling what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kvassay.harness.attention import checks
from kvassay.harness.attention.campaign import verdict_on
from kvassay.harness.attention.case import BadCase, Trial, load
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.wrong import Refused, Wrong
from kvassay.harness.explain import Told
from kvassay.harness.registry import Registration


def load_known(path: Path) -> Trial:
    """A trial of a check that exists; raises `BadCase`."""
    trial = load(path)
    try:
        checks.find(trial.check)
    except LookupError as error:
        raise BadCase(f"{path}: {error}") from None
    return trial


def explain(registration: Registration, trial: Trial, told: Told) -> Iterator[str]:
    """What the check says of the kernel on that case, line by line; the verdict goes to `told`."""
    check = checks.find(trial.check)
    yield f"{registration.name}: {check.name}: {check.title}"
    yield str(trial.case)
    kernel = Kernel.of(registration)
    try:
        verdict = verdict_on(check, kernel, trial.case)
    except Refused as refusal:
        yield f"refused: {refusal}"
        return
    told.verdict = verdict
    if isinstance(verdict, Wrong):
        yield from verdict.story
    yield "nothing wrong" if verdict is None else str(verdict)
