"""Drawn scenes: whatever a server says and when, the instrument and the truth come to the same."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.harness.load.known.checks import judge
from kvassay.harness.load.known.instrument import Instrument
from kvassay.harness.load.known.scene import Call, Scene, perform
from kvassay.harness.load.known.scenes import Act
from kvassay.harness.load.known.truth import answers
from kvassay.harness.metrics.coherence import incoherent
from kvassay.harness.metrics.timeline import Ending
from kvassay.harness.serving.script import (
    Comment,
    Cut,
    Done,
    Error,
    Finish,
    Part,
    Role,
    Script,
    Tokens,
    Usage,
)
from kvassay.impls.faulty.metrics import FAULTS

TICKS = st.integers(0, 256).map(lambda ticks: ticks / 64)
IDS = st.lists(st.integers(0, 99), min_size=1, max_size=3).map(tuple)
ENDS = ("done", "plain", "with tokens", "cut", "abort", "error", "broken", "short")


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    cached = draw(st.none() | st.integers(0, 8), label="cached")
    usage = Usage(0.0, 8, draw(st.integers(0, 9), label="output"), cached)
    middle = st.one_of(
        st.builds(Tokens, st.just(0.0), IDS, st.booleans()),
        st.builds(Tokens, st.just(0.0), IDS),
        st.sampled_from([Role(0.0), Comment(0.0), usage]),
    )
    parts: list[Part] = draw(st.lists(middle, max_size=7), label="parts")
    parts += ending(draw(st.sampled_from(ENDS), label="end"), usage)
    last = sum(not isinstance(part, Finish | Usage | Done | Cut) for part in parts)
    times = sorted(draw(st.lists(TICKS, min_size=last + 1, max_size=last + 1), label="times"))
    timed = [replace(part, at=times[min(n, last)]) for n, part in enumerate(parts)]
    return Script(
        tuple(timed),
        status=draw(st.sampled_from([200] * 6 + [500]), label="status"),
        head_at=draw(TICKS, label="head"),
        chat=draw(st.booleans(), label="chat"),
        torn=draw(st.booleans(), label="torn"),
    )


def ending(kind: str, usage: Usage) -> list[Part]:
    """The last parts, all at one time: nothing is said after them."""
    finish = Finish(0.0, "abort" if kind == "abort" else "stop", (5,) * (kind == "with tokens"))
    return {
        "error": [Error(0.0)],
        "broken": [Cut(0.0)],
        "short": [],
        "cut": [finish, Cut(0.0)],
        "plain": [finish],
    }.get(kind, [finish, usage, Done(0.0)])


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    times = sorted(draw(st.lists(TICKS, min_size=1, max_size=5), label="starts"))
    calls = tuple(Call(at, draw(scripts())) for at in times)
    return Scene(calls, at_once=draw(st.sampled_from([None, None, 1, 2]), label="at once"))


def everything(scene: Scene) -> Act:
    return Act("M3", "drawn", scene, tuple(answers(scene)))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(scenes())
def test_the_instrument_measures_what_was_there(scene: Scene) -> None:
    performed = perform(Instrument(), scene)
    assert judge(everything(scene), performed) == []
    assert not list(incoherent(performed.run))


def test_drawn_scenes_have_something_to_get_wrong() -> None:
    """Most faults in numbers show in some drawn scene: the comparison above can fail."""
    seen: set[str] = set()
    endings: set[Ending] = set()
    wanted = (
        "gaps-of-all-events",
        "chunks-counted-as-tokens",
        "meant-when-sent",
        "role-is-a-token",
    )

    @settings(max_examples=40, deadline=None, derandomize=True, database=None)
    @given(scenes())
    def look(scene: Scene) -> None:
        for name in set(wanted) - seen:
            if judge(everything(scene), perform(FAULTS[name].instrument, scene)):
                seen.add(name)
        endings.update(one.ending for one in perform(Instrument(), scene).timelines)

    look()
    assert seen == set(wanted)
    assert endings >= {Ending.COMPLETE, Ending.FAILED, Ending.TRUNCATED}
