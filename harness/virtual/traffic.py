"""A trace as traffic: recorded blocks as token ids, recorded arrivals spread out of coarse ticks.

A block of id i is tokens ``2 i``, the last token of prompt n is ``2 n + 1``, and so is whatever it
generates: prompts share the blocks that they share in the trace, and nothing else; a request's
output is nobody else's.

Where a recorder kept time in ticks (Mooncake's conversation trace: 12,031 requests at 1,180
moments), requests that came within 3 s seem to come at once, and wait for each other. `spread` puts
those of a tick evenly between it and the next one, but never over more than the usual tick.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, tee
from statistics import median

from kvassay.harness.replaying.stream import NoBlocks
from kvassay.harness.traces.request import TraceRequest
from kvassay.harness.virtual.simulate import Incoming
from kvassay.harness.workloads.arrivals import recorded

COARSE = 0.5
"""Ticks are coarse where fewer moments than this share of the requests are distinct."""


@dataclass(frozen=True)
class Ticks:
    """How the recorder kept time."""

    requests: int
    moments: int
    """Distinct times of arrival."""
    usual: float
    """Seconds from a moment to the next one: the median."""

    @property
    def coarse(self) -> bool:
        """Whether requests seem to come at once that did not."""
        return self.moments < COARSE * self.requests


def ticks(arrivals: Sequence[float]) -> Ticks:
    """Of arrivals in order."""
    moments = [moment for moment, _ in groupby(arrivals)]
    gaps = [after - before for before, after in zip(moments, moments[1:], strict=False)]
    return Ticks(len(arrivals), len(moments), median(gaps) if gaps else 0.0)


def spread(arrivals: Sequence[float]) -> list[float]:
    """Those of a tick evenly from it on; the first one, and their order, stay."""
    usual = ticks(arrivals).usual
    groups = [(moment, len(list(group))) for moment, group in groupby(arrivals)]
    followed = [moment for moment, _ in groups[1:]]
    times: list[float] = []
    for place, (moment, count) in enumerate(groups):
        gap = min(usual, followed[place] - moment) if place < len(followed) else usual
        times += [moment + gap * number / count for number in range(count)]
    return times


def traffic(
    requests: Iterable[TraceRequest], *, speed: float = 1.0, spread_ticks: bool = True
) -> Iterator[Incoming]:
    """Requests that generated something, `speed` times as fast as recorded.

    Coarse ticks are spread, unless told otherwise. Prompts are made one at a time, and the trace is
    kept. `NoBlocks` for a trace without block ids, `ValueError` for one without a clock.
    """
    kept = [one for one in requests if one.output_tokens]
    timed, arriving = tee(kept)
    arrivals = list(recorded(arriving, speed))
    if spread_ticks and ticks(arrivals).coarse:
        arrivals = spread(arrivals)
    for number, (one, at) in enumerate(zip(timed, arrivals, strict=True)):
        yield incoming(one, number, at)


def incoming(one: TraceRequest, number: int, at: float) -> Incoming:
    """One request."""
    if one.blocks is None or one.block_tokens is None:
        raise NoBlocks("expected requests with block ids, got one with lengths alone")
    own = 2 * number + 1
    tokens: list[int] = []
    for id in one.blocks:
        tokens += [2 * id] * one.block_tokens
    tokens += [own] * (one.input_tokens - len(tokens))
    del tokens[one.input_tokens :]
    tokens[-1] = own
    return Incoming(f"r{number}", at, tuple(tokens), one.output_tokens, own)
