"""What is said beside the numbers: who was late, what was not hit, what was warmed up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvassay.harness.load.arriving import drawn
from kvassay.harness.load.known.cached import Remembering
from kvassay.harness.load.session import Load, NoServer, Report, first_of, look_for, measured
from kvassay.harness.serving.openai import OpenAIEngine
from kvassay.harness.serving.script import Script, plain
from kvassay.harness.serving.scripted import Answering, Scripted
from kvassay.harness.serving.transport import Unreachable
from kvassay.harness.serving.virtual_time import play
from kvassay.harness.workloads.plan import Workload
from kvassay.harness.workloads.sharing import few_shot, unrelated

APART = unrelated(0, prompts=40, prompt_tokens=8, output_tokens=2)
FEW = few_shot(0, questions=6, example_tokens=64, question_tokens=24, output_tokens=2)


def report(answering: Answering, load: Load) -> tuple[Report, Scripted]:
    server = Scripted(answering)

    async def run() -> Report:
        clock = asyncio.get_running_loop().time
        return await measured(OpenAIEngine(server, "m", clock=clock), load, clock)

    return play(run()), server


def even(asked: Any) -> Script:
    return plain(0.5, (0.25,), cached=0)


def test_a_run_as_it_should_be_needs_no_word() -> None:
    load = Load(APART, drawn(2.0, 1.0, 40, 0), process=(2.0, 1.0))
    found, _ = report(even, load)
    assert found.clean
    assert found.notes == ()
    assert not found.errors


def test_a_client_that_cannot_keep_up_is_found_out() -> None:
    load = Load(APART, drawn(20.0, 1.0, 40, 0), process=(20.0, 1.0), at_once=1)
    told = "\n".join(report(even, load)[0].notes)
    assert "the arrivals achieved are not those declared" in told
    assert "the client itself was late: by " in told


def test_hits_that_did_not_come_are_told_beside_those_intended() -> None:
    one_by_one = Load(FEW, [float(n) for n in range(6)])
    assert report(Remembering(), one_by_one)[0].notes == ()
    (forgot,) = report(Remembering(forgets_after=3), one_by_one)[0].notes
    assert forgot.startswith("hit rate: 48.5% realised, 60.6% intended (whole blocks of 16")
    (silent,) = report(Remembering(tells=False), one_by_one)[0].notes
    assert silent.startswith("hit rate: not told by the server, 60.6% intended")


def test_short_answers_and_closed_loops_are_told() -> None:
    found, _ = report(lambda asked: plain(0.5, cached=0), Load(APART, clients=4))
    short, closed = found.notes
    assert short == "40 complete requests have fewer tokens than were asked for"
    assert closed.startswith("closed loop")


def test_chunks_that_come_together_are_told() -> None:
    load = Load(APART, [float(n) for n in range(40)])
    (note,) = report(lambda asked: plain(0.5, (0.0, 0.25), prompt=8, cached=0), load)[0].notes
    assert note.startswith("50% of the chunks came together with the one before them")


def test_a_server_that_counts_other_prompts_is_told() -> None:
    load = Load(APART, [float(n) for n in range(40)])
    (note,) = report(lambda asked: plain(0.5, (0.25,), prompt=9, cached=0), load)[0].notes
    assert note.endswith("in 40 requests: 9 tokens for 8")


def test_warm_up_is_sent_first_and_not_measured() -> None:
    load = Load(APART, [0.0] * 40, warm_up=first_of(APART, 3))
    found, server = report(even, load)
    assert len(server.asked) == 43
    assert len(found.run.timelines) == 40
    assert not any(one.request.startswith("warm-up") for one in found.run.timelines)
    broken, _ = report(lambda asked: Script(status=500) if asked.number < 3 else even(asked), load)
    assert broken.notes == ("3 requests of the warm-up failed: HTTP 500: bad request",)
    assert broken.clean


def test_an_interrupted_warm_up_is_the_end() -> None:
    async def run() -> None:
        clock = asyncio.get_running_loop().time
        engine = OpenAIEngine(Scripted(lambda asked: plain(50.0)), "m", clock=clock)
        load = Load(APART, [0.0] * 40, warm_up=first_of(APART, 3))
        running = asyncio.ensure_future(measured(engine, load, clock))
        await asyncio.sleep(5)
        running.cancel()
        await running

    with pytest.raises(asyncio.CancelledError):
        play(run())


class Without(Scripted):
    """Says nothing of its models."""

    def __init__(self, status: int) -> None:
        super().__init__(even)
        self.status = status

    async def get(self, path: str) -> tuple[int, bytes]:
        if not self.status:
            raise Unreachable("refused")
        return self.status, b"<html>not found</html>"


def test_a_server_is_looked_for_before_anything_is_sent() -> None:
    assert play(look_for(OpenAIEngine(Scripted(even), "scripted"))) == []
    with pytest.raises(NoServer, match="model: expected one of scripted, got 'other'"):
        play(look_for(OpenAIEngine(Scripted(even), "other")))
    with pytest.raises(NoServer, match="no server: refused"):
        play(look_for(OpenAIEngine(Without(0), "scripted")))
    (note,) = play(look_for(OpenAIEngine(Without(404), "scripted")))
    assert note.startswith(
        "whether the model is there is not known: HTTP 404 on /v1/models: <html>"
    )


def test_the_first_of_a_workload_are_independent() -> None:
    few = first_of(Workload("w", 0, APART.requests), 2)
    assert [one.name for one in few.requests] == [f"warm-up {n.name}" for n in APART.requests[:2]]
