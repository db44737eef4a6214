"""Loads on virtual time: sent when they are due, whatever happens, and none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from kvassay.harness.contract import GenerationRequest, TokenEvent
from kvassay.harness.load.generator import Generator, Sent
from kvassay.harness.load.watching import Limits, Watcher
from kvassay.harness.metrics.timeline import Ending, Timeline
from kvassay.harness.serving.openai import OpenAIEngine
from kvassay.harness.serving.script import Script, Silence, Tokens, plain
from kvassay.harness.serving.scripted import Answering, Scripted
from kvassay.harness.serving.virtual_time import play
from kvassay.harness.workloads.plan import Planned, Workload


def requests(count: int) -> tuple[Planned, ...]:
    return tuple(Planned(f"r{number}", (number, 1, 2), (3, 4)) for number in range(count))


def generator(answering: Answering, **parts: Any) -> tuple[Generator, Scripted]:
    clock = asyncio.get_running_loop().time
    server = Scripted(answering)
    limits = parts.pop("limits", None)
    return Generator(
        Watcher(OpenAIEngine(server, "m", clock=clock), clock, limits), **parts
    ), server


def opened(answering: Answering, times: Sequence[float], **parts: Any) -> Sent:
    async def send() -> Sent:
        return await generator(answering, **parts)[0].open(requests(len(times)), times)

    return play(send())


def test_a_thousand_streams_live_at_once() -> None:
    async def send() -> tuple[Sent, Scripted]:
        made, server = generator(lambda asked: plain(10.0, (0.5,) * 4))
        return await made.open(requests(1000), [n / 1024 for n in range(1000)]), server

    sent, server = play(send())
    assert len(server.asked) == 1000
    assert max(asked.time for asked in server.asked) < 10
    assert all(one.ending is Ending.COMPLETE for one in sent.timelines)
    assert [one.request for one in sent.timelines] == [f"r{n}" for n in range(1000)]


def test_every_end_is_told_as_it_comes() -> None:
    told: list[Timeline] = []
    sent = opened(lambda asked: plain(4.0 - asked.number), [0, 1, 1.5], told=told.append)
    assert sorted(one.request for one in told) == ["r0", "r1", "r2"]
    assert {one.request for one in told} == {one.request for one in sent.timelines}
    assert [one.ended for one in told] == sorted(one.ended or 0 for one in told)


def test_a_client_that_is_busy_is_late_and_says_so() -> None:
    sent = opened(lambda asked: plain(2.0), [0, 0, 1], at_once=1)
    begin = sent.timelines[0].intended
    assert [one.intended - begin for one in sent.timelines] == [0, 0, 1]
    assert [(one.sent or 0) - begin for one in sent.timelines] == [0, 2, 4]
    with pytest.raises(ValueError, match="at_once: expected at least 1, got 0"):
        opened(lambda asked: plain(2.0), [0], at_once=0)


def test_patience_has_an_end_of_two_kinds() -> None:
    stalled = Script((Tokens(1.0, (5,)), Silence(1000.0)))
    limits = Limits(stall=16.0)
    (one,) = opened(lambda asked: stalled, [0], limits=limits).timelines
    assert (one.ending, one.error) == (Ending.CANCELLED, "stalled: no chunk for 16 s")
    assert len(one.events) == 1
    assert one.ended == one.intended + 17
    steady = plain(1.0, (1.0,) * 100)
    (two,) = opened(lambda asked: steady, [0], limits=Limits(whole=8.5)).timelines
    assert (two.ending, two.error) == (Ending.CANCELLED, "not finished after 8.5 s")
    assert len(two.events) == 8


def test_an_interruption_keeps_what_there_is() -> None:
    async def send() -> Sent:
        made, _ = generator(lambda asked: plain(2.0, (2.0,)), at_once=2)
        running = asyncio.ensure_future(made.open(requests(5), [0, 0, 0, 3, 100]))
        await asyncio.sleep(5.0)
        running.cancel()
        return await running

    sent = play(send())
    assert sent.interrupted
    assert [one.ending for one in sent.timelines[:2]] == [Ending.COMPLETE] * 2
    live, waiting, unsent = sent.timelines[2], sent.timelines[3], sent.timelines[4]
    assert (live.ending, live.error) == (Ending.CANCELLED, "interrupted")
    assert waiting.sent is not None
    assert unsent.error == "not sent: interrupted"
    assert (unsent.sent, unsent.events) == (None, ())


def test_who_waits_for_a_slot_when_interrupted_was_never_sent() -> None:
    async def send() -> Sent:
        made, _ = generator(lambda asked: plain(20.0), at_once=1)
        running = asyncio.ensure_future(made.open(requests(2), [0, 0]))
        await asyncio.sleep(5.0)
        running.cancel()
        return await running

    first, second = play(send()).timelines
    assert first.error == "interrupted"
    assert (second.sent, second.error) == (None, "not sent: interrupted")


class Breaking:
    """An engine that raises what no engine should, from an iterator that cannot be closed."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def stream(self, request: GenerationRequest) -> AsyncIterator[TokenEvent]:
        return self

    def __aiter__(self) -> AsyncIterator[TokenEvent]:
        return self

    async def __anext__(self) -> TokenEvent:
        raise self.error


@pytest.mark.parametrize("error", [KeyError("lost"), TimeoutError("of its own")], ids=repr)
def test_whatever_an_engine_raises_is_a_failure(error: Exception) -> None:
    async def send() -> Sent:
        clock = asyncio.get_running_loop().time
        return await Generator(Watcher(Breaking(error), clock)).open(requests(1), [0])

    (one,) = play(send()).timelines
    assert one.ending is Ending.FAILED
    assert one.error == f"{type(error).__name__}: {error}"


def test_a_closed_loop_waits_for_answers_and_clients() -> None:
    chat = (
        Planned("a", (1,), (2,)),
        Planned("b", (3,), (4,)),
        Planned("c", (1, 2, 5), (6,), after=("a",), think_time=4.0),
    )

    async def send(clients: int) -> list[float]:
        made, _ = generator(lambda asked: plain(1.0))
        sent = await made.closed(Workload("w", 0, chat), clients)
        begin = sent.timelines[0].intended
        assert all(one.intended == one.sent for one in sent.timelines)
        return [one.intended - begin for one in sent.timelines]

    assert play(send(2)) == [0, 0, 5]
    assert play(send(1)) == [0, 1, 5]


def test_a_failure_frees_its_client() -> None:
    async def send() -> Sent:
        made, _ = generator(lambda asked: Script(status=500))
        return await made.closed(Workload("w", 0, requests(5)), 2)

    assert [one.ending for one in play(send()).timelines] == [Ending.FAILED] * 5


def test_an_interrupted_closed_loop_keeps_all_its_requests() -> None:
    async def send() -> Sent:
        made, _ = generator(lambda asked: plain(2.0))
        running = asyncio.ensure_future(made.closed(Workload("w", 0, requests(4)), 1))
        await asyncio.sleep(3.0)
        running.cancel()
        return await running

    sent = play(send())
    assert sent.interrupted
    errors = ["", "interrupted", "not sent: interrupted", "not sent: interrupted"]
    assert [one.error for one in sent.timelines] == errors


def test_what_cannot_be_sent_is_refused() -> None:
    async def send(load: Sequence[Planned]) -> None:
        await generator(lambda asked: plain(1.0))[0].open(load, [0.0] * len(load))

    with pytest.raises(ValueError, match=r"b: needs the answers of a: expected a closed loop"):
        play(send([Planned("b", (1,), (2,), after=("a",))]))
    with pytest.raises(ValueError, match="expected a name of its own for each request, got 'a'"):
        play(send([Planned("a", (1,), (2,))] * 2))
