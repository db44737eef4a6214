"""One fault or control, tried: convicted by what, for what reason, and was it the fault at all?

A conviction counts if the counterexample shows the same invariant once more, runs corrupted code
while it does, and shows nothing on the host, which is the same without the fault.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from kvassay.harness.trial.fate import Ended, Fate, ended
from kvassay.harness.trial.found import Effort, Found, Judged
from kvassay.harness.trial.judging import judge_of
from kvassay.harness.trial.marks import watched
from kvassay.harness.trial.planted import Family, Planted

LOOKED_AT = 30
"""Examples in which it is seen whether the code of a survivor is ever run: watching is slow."""

ELSEWHERE = frozenset({Family.TRITON})
"""Families of which a counterexample may be run in a process of its own, where nobody watches: it
has to do that the code is run in the cases before it."""
GUARDED = "guard-pages"
"""A check that runs all of its cases so."""


def attempt(planted: Planted, effort: Effort) -> Ended:
    """Try it; whatever the trial itself raises is told as `Fate.BROKEN`."""
    try:
        return _attempt(planted, effort)
    except Exception as error:
        return ended(planted, Fate.BROKEN, f"{type(error).__name__}: {error}")


def _attempt(planted: Planted, effort: Effort) -> Ended:
    start = time.process_time()
    judged = judge_of(planted.family)(planted, planted.subject(), effort)
    seconds = time.process_time() - start
    if planted.is_fault:
        return _fault(planted, judged, seconds, effort)
    if not judged.found:
        return ended(planted, Fate.ACQUITTED, examples=judged.examples, seconds=seconds)
    return ended(
        planted, Fate.CONVICTED, judged.found[0].told, **_figures(planted, judged, seconds)
    )


def _fault(planted: Planted, judged: Judged, seconds: float, effort: Effort) -> Ended:
    if not judged.found:
        return _survivor(planted, judged, seconds, effort)
    first = judged.nearest(planted.accepted)
    figures = _figures(planted, judged, seconds)
    with watched(planted.marks()) as watch:
        shown = first.again(planted.subject())
    calls = watch.calls
    if not calls and (planted.family in ELSEWHERE or first.check == GUARDED):
        calls = _calls(planted, effort)
    figures["reached"] = calls > 0
    if not calls:
        return ended(planted, Fate.DEAD, "its code is not run in the counterexample", **figures)
    if not shown & {first.invariant, *planted.accepted}:
        told = f"{first.told}; again, the counterexample shows {sorted(shown) or 'nothing'}"
        return ended(planted, Fate.BROKEN, told, **figures)
    assert planted.host is not None
    of_host = first.again(planted.host())
    if of_host:
        told = f"without the fault the counterexample shows {', '.join(sorted(of_host))} too"
        return ended(planted, Fate.DEAD, told, **figures)
    wrong = first.invariant not in planted.accepted
    return ended(planted, Fate.WRONG if wrong else Fate.KILLED, first.told, **figures)


def _survivor(planted: Planted, judged: Judged, seconds: float, effort: Effort) -> Ended:
    """Nothing was wrong: was it that nobody looked, or that the fault was never there?"""
    calls = _calls(planted, effort)
    fate = Fate.SURVIVED if calls else Fate.DEAD
    told = "" if calls else "its code was never run"
    figures = {"examples": judged.examples, "seconds": seconds, "reached": calls > 0}
    return ended(planted, fate, told, **figures)


def _calls(planted: Planted, effort: Effort) -> int:
    """How often corrupted code is run, whatever comes of it."""
    less = replace(effort, examples=min(effort.examples, LOOKED_AT), cases=LOOKED_AT)
    with watched(planted.marks()) as watch:
        judge_of(planted.family)(planted, planted.subject(), less)
    return watch.calls


def _figures(planted: Planted, judged: Judged, seconds: float) -> dict[str, Any]:
    """What is told of convictions."""
    first = judged.nearest(planted.accepted)
    finders = dict.fromkeys((each.finder, each.invariant) for each in [first, *judged.found])
    killers: dict[tuple[str, str], None] = {(first.check, first.invariant): None}
    killers |= {(each.check, each.invariant): None for each in judged.found}
    return {
        "killers": tuple(killers),
        "finders": tuple(finders),
        "examples": first.examples,
        "operations": first.operations,
        "seconds": seconds,
        "notes": tuple(_stray(planted, each) for each in judged.found if _is_stray(planted, each)),
    }


def _is_stray(planted: Planted, found: Found) -> bool:
    return found.invariant not in planted.accepted


def _stray(planted: Planted, found: Found) -> str:
    """A conviction further from the cause, by an invariant that the fault does not name."""
    longer = "" if found.operations is None else f", {found.operations} operations"
    return f"also {found.invariant} in {found.check}{longer}"
