"""Whether a server kept up with an open loop: rates of arrival and departure, and a growing queue.

All three are of the requests' own stamps. Both rates leave out the edges of a run (the silence
before the first answer, the drain behind the last arrival), so that they are equal for a server
that keeps up, however long a request takes. Where a queue has no end, latency grows by ``1 -
capacity / arrivals`` seconds per second, wherever the server lets requests wait, and departures are
the capacity.

How often the verdict is wrong was simulated, for one server and for eight in parallel, with fixed
service times and 100 requests: a load of 0.7 of the capacity is called saturated in none of 300
runs, 0.8 in 1 %, 0.9 in 9 %; 1.2 in 87 to 92 %, 1.5 always. With 20 requests it would be a third of
the runs at 0.8: expect `LEAST`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kvassay.harness.metrics.latency import EndToEnd
from kvassay.harness.metrics.metric import Measured, Metric, Need, OfRun
from kvassay.harness.metrics.run import Run
from kvassay.harness.metrics.timeline import Ending, Timeline
from kvassay.harness.record import Direction

LEAST = 100
"""Requests of which the verdict is worth something."""
KEPT_UP = 0.9
"""Departures over arrivals below which a server is saturated."""
GROWS = 0.1
"""Seconds per second by which latency grows, above which it is."""


class ArrivalRate(OfRun):
    """Requests that were meant to start, per second.

    `(requests - 1) / (last intended start - first intended start)`
    """

    tag, unit, direction = "arrival_rate", "1/s", Direction.NEITHER

    def of(self, run: Run) -> float | None:
        return _rate([one.intended for one in run.timelines])


class DepartureRate(OfRun):
    """Requests that were completed, per second, between the first such end and the last.

    `(complete - 1) / (last end - first end)` over complete requests
    """

    tag, unit, direction = "departure_rate", "1/s", Direction.HIGHER

    def of(self, run: Run) -> float | None:
        return _rate([one.ended for one in run.complete if one.ended is not None])


class LatencyGrowth(OfRun):
    """Seconds by which end-to-end latency grows per second of arrivals.

    `(median e2e of the last third - median e2e of the first) / (2/3 (last - first intended start))`

    Thirds are of the requests in the order of their intended starts. One that is not complete
    counts with the time for which it was waited: the least that it would have taken.
    """

    tag, unit = "latency_growth", "1"
    needs = (Need.CHUNKS,)

    def of(self, run: Run) -> float | None:
        lines = sorted(run.timelines, key=lambda one: one.intended)
        third = len(lines) // 3
        span = lines[-1].intended - lines[0].intended if lines else 0.0
        if not third or not span:
            return None
        waits = [_waited(one) for one in lines]
        if None in waits:
            return None
        known = [wait for wait in waits if wait is not None]
        rise = float(np.median(known[-third:]) - np.median(known[:third]))
        return rise / (2 / 3 * span)


def _rate(stamps: list[float]) -> float | None:
    span = max(stamps) - min(stamps) if stamps else 0.0
    return (len(stamps) - 1) / span if span else None


def _waited(one: Timeline) -> float | None:
    if one.ending is Ending.COMPLETE:
        return EndToEnd().of(one)
    return None if one.ended is None else one.ended - one.intended


METRICS: tuple[Metric, ...] = (ArrivalRate(), DepartureRate(), LatencyGrowth())
"""What the verdict needs."""


def saturated(measured: Mapping[str, Measured]) -> str:
    """Why the server is saturated, by the three metrics; empty if it is not."""
    arrivals, departures, growth = (measured[metric.tag].value for metric in METRICS)
    return verdict(arrivals, departures, growth)


def verdict(arrivals: float | None, departures: float | None, growth: float | None) -> str:
    """The same of the three values; what was not measured is no reason, but for departures."""
    if arrivals is not None and (departures or 0.0) < KEPT_UP * arrivals:
        return f"departures {departures or 0.0:.3g}/s of arrivals {arrivals:.3g}/s"
    if growth is not None and growth > GROWS:
        return f"latency grows by {growth:.2g} s per second"
    return ""
