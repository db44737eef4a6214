"""A conviction by the law of the mistake that explains the whole result, if there is such a one."""

from __future__ import annotations

from dataclasses import replace

from kvassay.harness.attention.case import Case
from kvassay.harness.attention.compare import compare
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.likeness import likeness
from kvassay.harness.attention.wrong import Refused, Wrong
from kvassay.harness.violation import Crash

MOST_PAIRS = 300_000
"""Query-key pairs up to which all known mistakes are tried in a second or two."""


def likelier(kernel: Kernel, case: Case, wrong: Wrong) -> Wrong:
    """A known mistake that gives the kernel's result on the case, else `wrong` as it is."""
    if case.num_pairs > MOST_PAIRS:
        return wrong
    try:
        seen = compare(kernel, case)
    except (Refused, Crash, Wrong, ValueError):
        return wrong
    twist = None if seen.right else likeness(seen)
    if twist is None:
        return wrong
    return replace(
        wrong,
        invariant=twist.invariant,
        anomaly=twist.anomaly,
        story=(*wrong.story, f"it looks as if {twist.words}"),
        looks=twist.words,
    )
