"""Counters of both sides: exact, for the same work gives the same numbers on every machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvassay.harness.gate.counting import BETTER
from kvassay.harness.gate.deciding import Decision
from kvassay.harness.gate.thresholds import Thresholds
from kvassay.harness.record import Direction


@dataclass(frozen=True)
class Counted:
    """One counter."""

    name: str
    base: int | None
    """None: not counted."""
    head: int | None
    decision: Decision
    why: str = ""


def compare(
    base: Mapping[str, int], head: Mapping[str, int], limits: Thresholds
) -> Iterator[Counted]:
    """All counters that either side has."""
    for name in dict.fromkeys([*base, *head]):
        before, after = base.get(name), head.get(name)
        yield Counted(name, before, after, *_judged(name, before, after, limits))


def _judged(
    name: str, before: int | None, after: int | None, limits: Thresholds
) -> tuple[Decision, str]:
    if before == after:
        return Decision.PASS, ""
    if name in limits.free:
        return Decision.PASS, "changed, and may"
    if before is None:
        return Decision.PASS, "new"
    if after is None:
        return Decision.FAIL, "no longer counted"
    better = BETTER.get(name, Direction.NEITHER)
    if better is Direction.NEITHER:
        return Decision.FAIL, "changed"
    improved = (after > before) is (better is Direction.HIGHER)
    return (Decision.PASS, "better") if improved else (Decision.FAIL, "worse")
