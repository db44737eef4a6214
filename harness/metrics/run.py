"""A run: the requests that are measured, each once, and the objectives that they are to meet.

Requests that only warm a server up are no part of it. It lasts from the first intended start to the
last end of any request, failed ones too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from kvassay.harness.metrics.timeline import Ending, Timeline


@dataclass(frozen=True)
class Run:
    """The timelines of one measurement."""

    timelines: tuple[Timeline, ...]
    objectives: Mapping[str, float] = field(default_factory=dict)
    """The largest value that a request may have, by the tag of a metric, in its unit."""

    @cached_property
    def complete(self) -> tuple[Timeline, ...]:
        """The requests that the server finished."""
        return tuple(one for one in self.timelines if one.ending is Ending.COMPLETE)

    @cached_property
    def seconds(self) -> float | None:
        """How long it lasted; None if no request ended."""
        ends = [one.ended for one in self.timelines if one.ended is not None]
        if not ends:
            return None
        return max(ends) - min(one.intended for one in self.timelines)
