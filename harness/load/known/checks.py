"""What an instrument made of a scene against what is known: numbers for equality, stamps in order.

A wrong number is blamed on the invariant of its act. In every act M6 is to blame for an ending, M4
for when requests came to the server, M2 for stamps.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from kvassay.harness.load.known.scene import FIRST_TOKEN_ID, Performed
from kvassay.harness.load.known.scenes import Act
from kvassay.harness.load.known.truth import Fate, answers, fates
from kvassay.harness.metrics.misread import Misread, misread
from kvassay.harness.metrics.timeline import Ending, Timeline


def judge(act: Act, performed: Performed) -> list[Misread]:
    """The first thing that is wrong with what was made of an act, as the rest follows from it.

    Requests are to be there once and to have ended as they did; to have come when they were meant
    to; to have the right stamps; and only then can numbers made of these be wrong by themselves.
    """
    for question in (_lost, _endings, _coming, _stamps, _numbers):
        if found := list(question(act, performed)):
            return found
    return []


def _numbers(act: Act, performed: Performed) -> Iterator[Misread]:
    for tag, expected in answers(act.scene).items():
        if tag not in act.tags:
            continue
        measured = performed.measured[tag]
        got = measured.value, measured.samples
        if got != expected:
            yield misread(act.invariant, act.name, f"{tag} {_shown(expected)}", _shown(got))


def _shown(answer: tuple[float | None, tuple[float, ...]]) -> str:
    value, samples = answer
    return f"{value}" + (f" of {[*samples]}" if samples else "")


def _lost(act: Act, performed: Performed) -> Iterator[Misread]:
    """Every call is in the run once, however it ended."""
    names = [one.request for one in performed.run.timelines]
    for number in range(len(act.scene.calls)):
        count = names.count(f"r{number}")
        if count == 0:
            yield misread("M6", act.name, "the request in the results", "no trace of it", number)
        if count > 1:
            yield misread("M7", act.name, "the request once", f"{count} times", number)
    if len(names) > len(act.scene.calls) and len(set(names)) == len(names):
        yield misread("M7", act.name, f"{len(act.scene.calls)} requests", len(names))


def _endings(act: Act, performed: Performed) -> Iterator[Misread]:
    for number, (one, fate) in enumerate(zip(_ordered(performed), fates(act.scene), strict=True)):
        if one.ending is not fate.ending:
            yield misread("M6", act.name, fate.ending, one.ending, number)


def _stamps(act: Act, performed: Performed) -> Iterator[Misread]:
    """Stamps are those of the server's bytes, and in order."""
    truth, began = fates(act.scene), _began(act, performed)
    for number, (one, fate) in enumerate(zip(_ordered(performed), truth, strict=True)):
        got = [event.time - began for event in one.events if event.tokens]
        expected = [at for at, _ in fate.carrying]
        # How many chunks carry tokens is no matter of clocks: other invariants speak of it.
        if len(got) == len(expected) and got != expected:
            yield misread("M2", act.name, f"tokens at {expected}", got, number)
        for told in _disorder(one, fate, began):
            yield misread("M2", act.name, *told, number)


def _disorder(one: Timeline, fate: Fate, began: float) -> Iterator[tuple[str, str]]:
    sent, ended = one.sent, one.ended
    if sent is None or ended is None:
        yield "a time of sending and one of the end", f"{sent} and {ended}"
        return
    stamps = [sent, *(event.time for event in one.events), ended]
    if any(after < before for before, after in pairwise(stamps)):
        yield "stamps in order", str([stamp - began for stamp in stamps])
    last = fate.carrying[-1][0] if fate.carrying else fate.sent
    earliest = last if fate.ending is Ending.COMPLETE else fate.ended
    if not earliest <= ended - began <= fate.ended:
        yield f"an end at {fate.ended}", str(ended - began)


def _coming(act: Act, performed: Performed) -> Iterator[Misread]:
    """Requests come when they are meant to, or when the client has a slot for them."""
    began = _began(act, performed)
    came = {_number(asked.body["prompt"]): asked.time for asked in performed.server.asked}
    for number, (one, fate) in enumerate(zip(_ordered(performed), fates(act.scene), strict=True)):
        if came[number] - began != fate.sent:
            yield misread("M4", act.name, f"sent at {fate.sent}", came[number] - began, number)
        if one.intended - began != fate.at:
            yield misread("M4", act.name, f"meant for {fate.at}", one.intended - began, number)


def _began(act: Act, performed: Performed) -> float:
    """When the scene began, by the server: whoever measures has no part in it."""
    first = next(a for a in performed.server.asked if _number(a.body["prompt"]) == 0)
    return first.time - fates(act.scene)[0].sent


def _number(prompt: list[int]) -> int:
    return prompt[0] - FIRST_TOKEN_ID


def _ordered(performed: Performed) -> list[Timeline]:
    return sorted(performed.run.timelines, key=lambda one: int(one.request.removeprefix("r")))
