"""A trace as traffic: recorded blocks as token ids, recorded arrivals spread out of coarse ticks.

Prompts share the blocks that they share in the trace, and nothing else; the last token of a prompt
is its own, and what it generates is nobody else's.

Where a recorder kept time in ticks (Mooncake's conversation trace: 12,031 requests at 1,180
moments), requests that came within 3 s seem to come at once, and wait for each other. `spread` puts
those of a tick evenly between it and the next one, but never over more than the usual tick.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from random import Random
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
    gaps = [after - before for before, after in pairwise(moments)]
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


class Encoding:
    """Block ids as tokens of which there is no end: equal ids are equal blocks, and no others."""

    def block(self, id: int, size: int) -> list[int]:
        """The tokens of a full block."""
        return [2 * id] * size

    def own(self, number: int) -> int:
        """What ends prompt `number`, and nobody else's."""
        return 2 * number + 1

    def generated(self, number: int) -> int:
        """What it generates: in nobody else's prompt."""
        return self.own(number)


class Vocabulary(Encoding):
    """The same within a model's vocabulary, for an engine to compute: blocks are drawn by their id.

    That two ids get the same block is too unlikely to matter. A prompt's last token may be another
    prompt's too.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def block(self, id: int, size: int) -> list[int]:
        """The tokens of a full block."""
        return Random(id).choices(range(self.size), k=size)

    def own(self, number: int) -> int:
        """What ends the prompt."""
        return number % self.size

    def generated(self, number: int) -> int:
        """No token of the model."""
        return self.size + number


def traffic(
    requests: Iterable[TraceRequest],
    *,
    speed: float = 1.0,
    spread_ticks: bool = True,
    shared: bool = True,
    encoding: Encoding | None = None,
) -> Iterator[Incoming]:
    """Requests that generated something, `speed` times as fast as recorded.

    Coarse ticks are spread, unless told otherwise. Without `shared` each prompt begins with a token
    of its own, so that none can be found: what a cache would be without hits. Prompts are made one
    at a time, and the trace is kept. `NoBlocks` for a trace without block ids, `ValueError` for one
    without a clock.
    """
    kept = [one for one in requests if one.output_tokens]
    arrivals = list(recorded(kept, speed))
    if spread_ticks and ticks(arrivals).coarse:
        arrivals = spread(arrivals)
    encoding = encoding or Encoding()
    for number, (one, at) in enumerate(zip(kept, arrivals, strict=True)):
        yield incoming(one, number, at, encoding, shared=shared)


def incoming(
    one: TraceRequest, number: int, at: float, encoding: Encoding, *, shared: bool = True
) -> Incoming:
    """One request."""
    if one.blocks is None or one.block_tokens is None:
        raise NoBlocks("expected requests with block ids, got one with lengths alone")
    own = encoding.own(number)
    tokens: list[int] = []
    for id in one.blocks:
        tokens += encoding.block(id, one.block_tokens)
    tokens += [own] * (one.input_tokens - len(tokens))
    del tokens[one.input_tokens :]
    tokens[-1] = own
    if not shared:
        tokens[0] = own
    return Incoming(f"r{number}", at, tuple(tokens), one.output_tokens, encoding.generated(number))


def scaled(one: TraceRequest, by: int) -> TraceRequest:
    """The request with lengths and blocks a `by`-th as long: as many blocks, shared as before.

    `ValueError` unless `by` divides the tokens of a block.
    """
    if not one.block_tokens or one.block_tokens % by:
        raise ValueError(f"by: expected a divisor of {one.block_tokens}, got {by}")
    return replace(
        one,
        input_tokens=-(-one.input_tokens // by),
        output_tokens=-(-one.output_tokens // by),
        block_tokens=one.block_tokens // by,
    )
