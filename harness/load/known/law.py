"""The invariants of metrics, and what must have been met for a verdict on an instrument."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from kvassay.harness.load.known.met import Met

SUITE = "metrics"
KIND = "Instrument"
"""What verdicts and records call the kind of thing that is judged."""


@dataclass(frozen=True)
class Rule:
    """One id of the law."""

    id: str
    title: str
    reached: tuple[Met, ...]

    def missing(self, met: Counter[Met]) -> list[str]:
        """What would have to be met for a verdict, and was not."""
        return [state.value for state in self.reached if not met[state]]


METRIC_LAW: dict[str, Rule] = {
    rule.id: rule
    for rule in (
        Rule(
            "M1",
            "time to the first token",
            (Met.TOKENS, Met.ROLE, Met.COMMENT, Met.LATE_HEAD, Met.NO_TOKEN, Met.WAITED, Met.SPLIT),
        ),
        Rule("M2", "one monotonic clock", (Met.STAMPS, Met.ERROR)),
        Rule("M3", "latencies add up", (Met.TOKENS, Met.SEVERAL, Met.UNTOLD)),
        Rule("M4", "no wait is left out", (Met.WAITED, Met.DURING_STALL, Met.DRAWN)),
        Rule("M5", "cached tokens", (Met.HIT, Met.WARM, Met.FORGOTTEN, Met.SILENT)),
        Rule(
            "M6",
            "failures are not successes",
            (Met.REFUSED, Met.ERROR, Met.ABORTED, Met.TRUNCATED, Met.CUT, Met.GAVE_UP),
        ),
        Rule(
            "M7",
            "counters count what they say",
            (Met.SEVERAL, Met.UNTOLD, Met.WARM_UP, Met.OBJECTIVES, Met.PREEMPTED),
        ),
    )
}
"""In the order of the law."""
