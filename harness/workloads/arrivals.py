"""Open loop: when requests arrive, whatever becomes of those before.

Each generator gives times in seconds from 0 on, without end but for recorded ones. They are what
was drawn: gaps are never rescaled to fit a duration or a rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, repeat
from random import Random

from kvassay.harness.traces.request import TraceRequest


def poisson(rate: float, seed: int) -> Iterator[float]:
    """Independent arrivals, `rate` per second on average."""
    return gamma(rate, 1.0, seed)


def gamma(rate: float, cv: float, seed: int) -> Iterator[float]:
    """Gaps from a gamma distribution: `cv` is their coefficient of variation, bursts are above 1.

    The first request arrives after the first gap.
    """
    _positive("rate", rate)
    _positive("cv", cv)
    rng = Random(seed)
    shape, scale = 1 / cv**2, cv**2 / rate
    return accumulate(rng.gammavariate(shape, scale) for _ in repeat(None))


def recorded(requests: Iterable[TraceRequest], speed: float = 1.0) -> Iterator[float]:
    """As a trace has them, from its first arrival on, `speed` times as fast.

    A further recording in the file begins where the one before ended. `ValueError` for a trace
    without times, or whose times go back: such are of sessions that were recorded singly.
    """
    _positive("speed", speed)
    offset = reached = 0.0
    recording, before = 0, None
    for number, one in enumerate(requests):
        if one.arrival is None:
            raise ValueError(f"request {number}: expected a time of arrival, got none")
        if before is None or one.recording != recording:
            offset, recording = reached - one.arrival, one.recording
        elif one.arrival < before:
            raise ValueError(
                f"request {number}: expected no time before {before:g} s, got {one.arrival:g} s: "
                "are these times of single sessions?"
            )
        before = one.arrival
        reached = one.arrival + offset
        yield reached / speed


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name}: expected a number above 0, got {value!r}")
