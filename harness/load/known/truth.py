"""What should be measured of a scene: from its scripts, by formulas that share nothing with ours.

A call is taken by the server when the client has a slot for it; its parts come at their times after
that. The truth knows no timeline, no event and no metric class.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvassay.harness.load.known.scene import Call, Scene
from kvassay.harness.metrics.timeline import Ending
from kvassay.harness.serving.script import (
    Cut,
    Error,
    Finish,
    Part,
    Role,
    Tokens,
    Usage,
)
from kvassay.harness.serving.scripted import DOWN

Answer = tuple[float | None, tuple[float, ...]]
"""The value of a metric, and its samples."""


@dataclass(frozen=True)
class Fate:
    """What became of one call, in seconds from the start of the scene."""

    at: float
    sent: float
    ended: float
    ending: Ending
    prompt_tokens: int
    stamps: tuple[float, ...] = ()
    """Of everything but comments that the client heard."""
    carrying: tuple[tuple[float, int], ...] = ()
    """When tokens came, and how many."""
    count: int | None = 0
    """How many tokens there were, as far as anybody told."""
    cached: int | None = None


def fates(scene: Scene) -> list[Fate]:
    """Of each call, those of the warm-up left out."""
    found = []
    busy: list[float] = []
    for call in scene.calls:
        sent = call.at
        if scene.at_once is not None and len(busy) >= scene.at_once:
            sent = max(sent, heapq.heappop(busy))
        fate = _fate(call, sent, scene.limits.stall)
        heapq.heappush(busy, fate.ended)
        found.append(fate)
    return found


def _fate(call: Call, sent: float, stall: float | None) -> Fate:
    script = call.script
    if script.status != 200:
        ended = sent + (0 if script.status == DOWN else script.head_at)
        return Fate(call.at, sent, ended, Ending.FAILED, call.prompt_tokens)
    heard: list[Part] = []
    at, ending = script.head_at, Ending.TRUNCATED
    last_chunk = 0.0
    for part in script.parts:
        if stall is not None and part.at - last_chunk > stall:
            at, ending = last_chunk + stall, Ending.CANCELLED
            break
        at = max(script.head_at, part.at)
        if isinstance(part, Error) or (isinstance(part, Finish) and part.reason == "abort"):
            ending = Ending.FAILED
            break
        if isinstance(part, Cut):
            break
        if isinstance(part, Finish):
            ending = Ending.COMPLETE
        if isinstance(part, Role | Tokens | Finish | Usage):
            heard.append(part)
            last_chunk = at
    if ending is Ending.COMPLETE:
        at = last_chunk
    return _heard(call, sent, sent + at, ending, heard)


def _heard(call: Call, sent: float, ended: float, ending: Ending, heard: Sequence[Part]) -> Fate:
    starts = call.script.head_at
    speaking = [part for part in heard if isinstance(part, Tokens | Finish) and part.ids]
    carrying = [(sent + max(starts, part.at), part) for part in speaking]
    usage = [part for part in heard if isinstance(part, Usage)]
    told = all(part.told for _, part in carrying if isinstance(part, Tokens))
    count = sum(len(part.ids) for _, part in carrying)
    known = count if told else (usage[-1].output if usage else None)
    return Fate(
        call.at,
        sent,
        ended,
        ending,
        call.prompt_tokens,
        tuple(sent + max(starts, part.at) for part in heard),
        tuple((at, len(part.ids)) for at, part in carrying),
        known,
        usage[-1].cached if usage else None,
    )


# ------------------------------------------------------------------------------------ the numbers


def answers(scene: Scene) -> dict[str, Answer]:
    """What should be published, by the tag of the metric."""
    found = fates(scene)
    good = [fate for fate in found if fate.ending is Ending.COMPLETE]
    first = {id(f): f.carrying[0][0] for f in good if f.carrying}
    last = {id(f): f.carrying[-1][0] for f in good if f.carrying}
    spoke = [f for f in good if f.carrying]
    gaps = [b - a for f in good for a, b in pairwise(at for at, _ in f.carrying)]
    singles = all(f.count == len(f.carrying) for f in good)
    many = [f for f in spoke if f.count is not None and f.count > 1]
    seconds = max(f.ended for f in found) - min(f.at for f in found)
    tokens = None if any(f.count is None for f in good) else sum(f.count or 0 for f in good)
    by_ending = {
        f"requests_{ending.value}": _number(sum(f.ending is ending for f in found))
        for ending in Ending
    }
    return {
        "ttft": _samples([first[id(f)] - f.at for f in spoke]),
        "e2e": _samples([last[id(f)] - f.at for f in spoke]),
        "icl": _samples(gaps),
        "itl": _samples(gaps) if singles else (None, ()),
        "tpot": _samples([(last[id(f)] - first[id(f)]) / ((f.count or 0) - 1) for f in many]),
        "send_delay": _samples([f.sent - f.at for f in good]),
        **by_ending,
        "request_throughput": _number(len(good), seconds),
        "output_throughput": _number(tokens, seconds),
        "goodput": _number(good_enough(scene, spoke), seconds),
        "cached_tokens": _samples([float(f.cached) for f in good if f.cached is not None]),
        "hit_rate": _hit_rate(good),
        "preemptions": (None, ()),
    }


def _samples(values: Sequence[float]) -> Answer:
    return (statistics.median(values) if values else None), tuple(values)


def _number(count: float | None, seconds: float = 1.0) -> Answer:
    return (None if count is None or not seconds else count / seconds), ()


def _hit_rate(good: Sequence[Fate]) -> Answer:
    told = [f.cached for f in good if f.cached is not None]
    if not good or len(told) < len(good):
        return None, ()
    return sum(told) / sum(f.prompt_tokens for f in good), ()


def good_enough(scene: Scene, spoke: Sequence[Fate]) -> int | None:
    """How many of the calls that spoke meet the objectives; None without any."""
    limits = scene.objectives
    if not limits:
        return None
    met = 0
    for fate in spoke:
        assert fate.count is not None, "scenes with objectives tell their tokens"
        first, last = fate.carrying[0][0], fate.carrying[-1][0]
        took = {"ttft": first - fate.at, "e2e": last - fate.at}
        took["tpot"] = (last - first) / (fate.count - 1) if fate.count > 1 else 0.0
        met += all(took[tag] <= limit for tag, limit in limits.items())
    return met
