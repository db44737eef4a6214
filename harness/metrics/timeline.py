"""What happened to one request, as its client saw it: the input of every latency metric.

All stamps are seconds of one monotonic clock, real or virtual. A request exists from its *intended*
start, whether or not the client or the server was ready for it; what never happened is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kvassay.harness.contract import TokenEvent

UNSEEN = -1
"""Stands in `TokenEvent.tokens` for text that came without token ids: one token or more."""


class Ending(StrEnum):
    """How a request ended, as its client can tell."""

    COMPLETE = "complete"
    """The server said why it finished."""
    TRUNCATED = "truncated"
    """The stream ended without that."""
    FAILED = "failed"
    """An error, before or in the stream."""
    CANCELLED = "cancelled"
    """The client gave up: time limit, or interrupted."""


@dataclass(frozen=True)
class Timeline:
    """One request."""

    request: str
    prompt_tokens: int
    intended: float
    """When it was meant to start, by the arrival process."""
    sent: float | None
    """When the client really sent it; None if it never did."""
    events: tuple[TokenEvent, ...]
    """Chunks as they came; some carry no token, some several, some `UNSEEN` ones."""
    ended: float | None
    """When its end was known."""
    ending: Ending
    error: str = ""
    """What failed, where `ending` is not COMPLETE."""
    declared_cached: int | None = None
    """Leading tokens that the workload intends to be found in the cache."""
    stages: Mapping[str, float] = field(default_factory=dict)
    """Seconds before the first token by stage (queue, lookup, reservation, prefill), where seen."""
    preemptions: int | None = None
    """How often it was preempted, where seen."""
    output_tokens: int | None = None
    """How many tokens the server says it generated; None where it does not say."""
