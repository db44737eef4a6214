"""What must hold of any timelines, whoever made them and whether or not the answers are known.

Stamps are in order (M2), nothing was sent before it was meant to be (M4), latencies add up (M3), no
more was cached than there was (M5), an ending and its reason agree (M6), each request is there once
(M7), and the stages of the time to the first token are no longer than it (M1).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from kvassay.harness.metrics.latency import EndToEnd, InterChunk, TimeToFirstToken
from kvassay.harness.metrics.misread import Misread, misread
from kvassay.harness.metrics.reading import cached_tokens
from kvassay.harness.metrics.run import Run
from kvassay.harness.metrics.stages import Stage
from kvassay.harness.metrics.timeline import Ending, Timeline


def incoherent(run: Run) -> Iterator[Misread]:
    """Everything that cannot be, with the number of the request."""
    for name, count in Counter(one.request for one in run.timelines).items():
        if count > 1:
            yield misread("M7", "run", f"{name} once", f"{count} times")
    for number, one in enumerate(run.timelines):
        for question in (_order, _sum, _hits, _ending, _stages):
            for invariant, expected, got in question(one):
                yield misread(invariant, "run", expected, got, number)


Told = Iterator[tuple[str, str, str]]
"""Invariant, expected, got."""


def _order(one: Timeline) -> Told:
    if one.sent is None:
        if one.events or one.ending is Ending.COMPLETE:
            yield "M2", "a time of sending", "None, and an answer"
        return
    if one.sent < one.intended:
        yield "M4", f"sent at {one.intended} or later", str(one.sent)
    ended = [] if one.ended is None else [one.ended]
    stamps = [one.sent, *(event.time for event in one.events), *ended]
    back = [(a, b) for a, b in pairwise(stamps) if b < a]
    if back:
        yield "M2", f"a stamp of {back[0][0]} or later", str(back[0][1])


def _sum(one: Timeline) -> Told:
    first, last = TimeToFirstToken().of(one), EndToEnd().of(one)
    if first is None or last is None:
        return
    gaps = InterChunk().of(one) or ()
    # Each difference of stamps is off by half a bit of a stamp at most, and so is each sum.
    rounding = (2 * len(gaps) + 3) * math.ulp(max(abs(event.time) for event in one.events))
    if abs(first + sum(gaps) - last) > rounding:
        yield "M3", f"ttft + gaps = {last}", str(first + sum(gaps))


def _hits(one: Timeline) -> Told:
    cached = cached_tokens(one)
    if cached is not None and not 0 <= cached <= one.prompt_tokens:
        yield "M5", f"0 to {one.prompt_tokens} cached tokens", str(cached)


def _ending(one: Timeline) -> Told:
    finished = any(event.finish_reason for event in one.events)
    if one.ending is Ending.COMPLETE and (one.error or not finished):
        yield "M6", "a reason to finish, and no error", one.error or "no reason"
    if one.ending is not Ending.COMPLETE and not one.error:
        yield "M6", f"what failed, of a request that is {one.ending}", "nothing"


def _stages(one: Timeline) -> Told:
    first = TimeToFirstToken().of(one)
    known = sum(one.stages.get(stage, 0.0) for stage in Stage)
    if first is not None and known > first + 4 * math.ulp(abs(one.intended) + first):
        yield "M1", f"stages of {first} s at most", f"{known} s"
