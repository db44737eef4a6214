"""What cannot be is found in any timelines, and what an honest run gives is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvassay.harness.contract import TokenEvent
from kvassay.harness.load.known.instrument import Instrument
from kvassay.harness.load.known.scene import perform
from kvassay.harness.load.known.scenes import ACTS
from kvassay.harness.metrics.coherence import incoherent
from kvassay.harness.metrics.run import Run
from kvassay.harness.metrics.timeline import Ending, Timeline

EVENTS = (
    TokenEvent("a", (1,), 1.1),
    TokenEvent("a", (2,), 1.3, "length", cached_tokens=4),
)
RIGHT = Timeline("a", 8, 0.1, 0.2, EVENTS, 1.3, Ending.COMPLETE)
BACK = (EVENTS[1], EVENTS[0])
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("M1", {"stages": {"queue": 0.5, "prefill": 0.75}}),
    ("M2", {"events": BACK, "ended": 1.4}),
    ("M2", {"ended": 1.2}),
    ("M2", {"sent": 1.2}),
    ("M2", {"sent": None}),
    ("M4", {"intended": 0.3}),
    ("M5", {"prompt_tokens": 3}),
    ("M6", {"error": "broken"}),
    ("M6", {"ending": Ending.FAILED}),
    ("M6", {"events": EVENTS[:1]}),
]


@pytest.mark.parametrize("act", ACTS, ids=lambda act: f"{act.invariant} {act.name}")
def test_an_honest_run_is_coherent(act: Any) -> None:
    assert not list(incoherent(perform(Instrument(), act.scene).run))


@pytest.mark.parametrize(("invariant", "parts"), WRONG)
def test_what_cannot_be_is_found(invariant: str, parts: dict[str, Any]) -> None:
    assert not list(incoherent(Run((RIGHT,))))
    found = list(incoherent(Run((replace(RIGHT, **parts),))))
    assert {one.invariant for one in found} == {invariant}
    assert "expected" in str(found[0])


def test_a_request_is_there_once() -> None:
    (found,) = incoherent(Run((RIGHT, RIGHT)))
    assert found.invariant == "M7"
    assert "a once; got 2 times" in str(found)


def test_stages_that_fill_the_time_exactly_are_right() -> None:
    stages = {"queue": 0.7, "lookup": 0.1, "reservation": 0.1, "prefill": 0.1}
    assert not list(incoherent(Run((replace(RIGHT, stages=stages),))))


def test_what_was_never_sent_has_no_stamps() -> None:
    unsent = Timeline("a", 8, 5.0, None, (), 4.0, Ending.CANCELLED, "not sent: interrupted")
    assert not list(incoherent(Run((unsent,))))
