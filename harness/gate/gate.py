"""The gate: what is compared, in which order, and what it amounts to.

Verdicts, counters and times are looked at one after the other; the whole fails if anything fails,
is inconclusive if anything is, and passes if something was looked at and all of it passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from kvassay.harness.gate.comparable import obstacles, remarks
from kvassay.harness.gate.counted import Counted, compare
from kvassay.harness.gate.deciding import Change, Decision, change
from kvassay.harness.gate.parts import PARTS, ROUNDS
from kvassay.harness.gate.sides import Opened, Paired, Side, SideFailed, running, timed
from kvassay.harness.gate.thresholds import Thresholds
from kvassay.harness.gate.verdicts import Changed, assayed, changes, statuses

Watch = Callable[[str], None]


class NotComparable(ValueError):
    """Base and head cannot be compared; says why."""


@dataclass(frozen=True)
class Timed:
    """One time."""

    name: str
    pairs: tuple[tuple[float, float], ...]
    """Seconds of base and head, by round."""
    change: Change
    slower: float
    """Its limit."""

    @property
    def decision(self) -> Decision:
        """Whether head may be as slow."""
        return self.change.decide(self.slower)


@dataclass
class Result:
    """What was found."""

    base: Opened
    head: Opened
    remarks: list[str] = field(default_factory=list)
    judged: int = 0
    """Verdicts that were compared, those without a change included."""
    verdicts: list[Changed] = field(default_factory=list)
    counters: list[Counted] = field(default_factory=list)
    times: list[Timed] = field(default_factory=list)

    @property
    def decisions(self) -> Iterator[Decision]:
        """Of everything."""
        yield from (one.decision for one in self.verdicts)
        yield from (one.decision for one in self.counters)
        yield from (one.decision for one in self.times)

    @property
    def decision(self) -> Decision:
        """Of the whole."""
        found = set(self.decisions)
        if Decision.FAIL in found:
            return Decision.FAIL
        looked = self.judged or self.counters or self.times
        if Decision.INCONCLUSIVE in found or not looked:
            return Decision.INCONCLUSIVE
        return Decision.PASS


def gate(
    base: Side,
    head: Side,
    limits: Thresholds,
    *,
    parts: Sequence[str] = PARTS,
    rounds: int = ROUNDS,
    assay_options: Sequence[str] = (),
    watch: Watch = lambda what: None,
) -> Result:
    """Compare them.

    Raises `NotComparable`, `SideFailed`, and `ValueError` for fewer rounds than could tell.
    """
    result = _opened(base, head)
    if "verdicts" in parts:
        _verdicts(result, base, head, assay_options, watch)
    if "counters" in parts:
        _counters(result, base, head, limits, watch)
    if "times" in parts:
        _times(result, base, head, limits, rounds, watch)
    _require_known_names(result, limits, parts)
    return result


def _opened(base: Side, head: Side) -> Result:
    with running(base, head) as (one, other):
        result = Result(one.open(), other.open())
    reasons = list(obstacles(result.base, result.head))
    if reasons:
        raise NotComparable(f"base and head cannot be compared: {'; '.join(reasons)}")
    result.remarks += remarks(result.base, result.head)
    return result


def _verdicts(result: Result, base: Side, head: Side, options: Sequence[str], watch: Watch) -> None:
    found = []
    for side in (base, head):
        watch(f"suites on {side.label}")
        found.append(statuses(assayed(side, options)))
    result.judged = len(found[0].keys() | found[1].keys())
    result.verdicts += changes(*found)


def _counters(result: Result, base: Side, head: Side, limits: Thresholds, watch: Watch) -> None:
    watch("counters")
    with running(base, head) as processes:
        before, after = (process.ask("count")["counters"] for process in processes)
    result.counters += compare(before, after, limits)


def _times(
    result: Result, base: Side, head: Side, limits: Thresholds, rounds: int, watch: Watch
) -> None:
    found, why = timed(base, head, rounds, lambda: watch("rounds"))
    if why:
        result.remarks.append(f"no times: {why}")
    result.times += _judged(found, limits)


def _judged(found: Paired, limits: Thresholds) -> Iterator[Timed]:
    for name, pairs in found.items():
        ratios = [head / base for base, head in pairs]
        yield Timed(name, tuple(pairs), change(ratios, len(found)), limits.of(name))


def _require_known_names(result: Result, limits: Thresholds, parts: Sequence[str]) -> None:
    """A limit for a name that nothing has would guard nothing."""
    if not {"counters", "times"} <= set(parts) or not result.times:
        return
    times = {one.name for one in result.times}
    unknown = limits.unknown(times, {one.name for one in result.counters})
    if unknown:
        known = ", ".join(sorted(times | {one.name for one in result.counters}))
        raise SideFailed(f"thresholds: nothing is called {', '.join(unknown)}; there are {known}")
