"""Over sockets the client hears what it hears in memory; what breaks on the way is told."""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from typing import Any

import pytest

from kvassay.harness.load.generator import Generator, Sent
from kvassay.harness.load.watching import Limits, Watcher
from kvassay.harness.metrics.timeline import Ending, Timeline
from kvassay.harness.serving.http import HTTP, WANTED, NoAiohttp, allow_many_sockets
from kvassay.harness.serving.openai import OpenAIEngine
from kvassay.harness.serving.script import (
    Comment,
    Cut,
    Done,
    Error,
    Finish,
    Role,
    Script,
    Tokens,
    Usage,
    plain,
)
from kvassay.harness.serving.scripted import Answering, Asked, Scripted, ScriptedHTTP
from kvassay.harness.serving.transport import Transport, Unreachable
from kvassay.harness.serving.virtual_time import play
from kvassay.harness.workloads.plan import Planned

pytest.importorskip("aiohttp", reason="talking to a server needs aiohttp")
TICK = 0.02
SCRIPTS = (
    plain(TICK, (TICK,) * 3, cached=4),
    Script(
        (
            Role(0.0),
            Comment(TICK),
            Tokens(TICK, (7, 8)),
            Tokens(TICK, (9,), told=False),
            Finish(2 * TICK, "stop", (10,)),
            Usage(2 * TICK, 3, 4),
            Done(2 * TICK),
        ),
        torn=True,
        head_at=TICK / 2,
    ),
    Script((Finish(TICK, "stop"), Done(TICK)), chat=True),
    Script((Tokens(TICK, (7,)), Error(2 * TICK))),
    Script((Tokens(TICK, (7,)), Cut(2 * TICK))),
    Script((Tokens(TICK, (7,)),)),
    Script((Tokens(TICK, (7,)), Finish(TICK), Cut(2 * TICK))),
    Script(status=503, problem="overloaded", head_at=TICK),
    Script((Tokens(TICK, (7,)), Finish(TICK, "abort"), Done(TICK))),
)


def answering(asked: Asked) -> Script:
    return SCRIPTS[asked.body["prompt"][0]]


async def sent(transport: Transport, clock: Any, count: int, gap: float = TICK) -> Sent:
    watcher = Watcher(OpenAIEngine(transport, "scripted", clock=clock), clock, Limits(stall=30))
    requests = [Planned(f"r{n}", (n, 1), (2,)) for n in range(count)]
    return await Generator(watcher).open(requests, [n * gap for n in range(count)])


async def over_http(answers: Answering, count: int, gap: float = TICK) -> Sent:
    async with ScriptedHTTP(answers) as server, HTTP(server.url + "/v1/") as transport:
        assert await OpenAIEngine(transport, "m").models() == ["scripted"]
        return await sent(transport, time.monotonic, count, gap)


def heard(one: Timeline) -> tuple[Any, ...]:
    """All but times, and the words for a connection that broke."""
    said = [(event.tokens, event.finish_reason, event.cached_tokens) for event in one.events]
    return one.ending, said, one.output_tokens, one.error if one.ending is Ending.FAILED else ""


def test_sockets_and_memory_say_the_same() -> None:
    async def in_memory() -> Sent:
        clock = asyncio.get_running_loop().time
        return await sent(Scripted(answering), clock, len(SCRIPTS))

    known = play(in_memory()).timelines
    real = asyncio.run(over_http(answering, len(SCRIPTS))).timelines
    assert [heard(one) for one in real] == [heard(one) for one in known]
    assert len({heard(one)[0] for one in known}) == 3
    for one in real:
        assert one.sent is not None
        stamps = [one.intended, one.sent, *(event.time for event in one.events), one.ended]
        assert stamps == sorted(stamps)  # type: ignore[type-var]
    # A chunk cannot be there before its time; how long after depends on the machine.
    first = real[0]
    assert all(
        event.time - (first.sent or 0) >= (1 + number) * TICK - 0.001
        for number, event in enumerate(first.events[:4])
    )


def test_many_streams_live_at_once() -> None:
    live: list[int] = []
    sent = asyncio.run(over_http(lambda asked: live.append(1) or plain(2.5), 150, 0.002))  # type: ignore[func-returns-value]
    assert all(one.ending is Ending.COMPLETE for one in sent.timelines), sent.timelines
    assert max(one.sent or 0 for one in sent.timelines) < min(
        one.ended or 0 for one in sent.timelines
    )


@pytest.mark.long
def test_a_thousand_streams_live_at_once() -> None:
    sent = asyncio.run(over_http(lambda asked: plain(8.0, (0.25,) * 8), 1000, 0.004))
    assert all(one.ending is Ending.COMPLETE for one in sent.timelines)
    assert max(one.sent or 0 for one in sent.timelines) < min(
        one.ended or 0 for one in sent.timelines
    )


def test_a_server_that_dies_ends_streams_and_refuses_the_rest() -> None:
    async def run() -> Sent:
        async with ScriptedHTTP(lambda asked: plain(0.02, (30.0,))) as server:
            asyncio.get_running_loop().call_later(1.0, server.kill)
            async with HTTP(server.url) as transport:
                return await sent(transport, time.monotonic, 3, 0.6)

    first, _, last = asyncio.run(run()).timelines
    assert first.ending is Ending.TRUNCATED
    assert len(first.events) == 1
    assert last.ending is Ending.FAILED
    assert last.error


def test_nobody_there() -> None:
    async def ask() -> None:
        async with HTTP("http://127.0.0.1:9") as transport:
            await transport.get("/v1/models")

    with pytest.raises(Unreachable, match=r"http://127\.0\.0\.1:9: "):
        asyncio.run(ask())


def test_as_many_sockets_as_may_be() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        allow_many_sockets()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_url_is_one_of_http() -> None:
    with pytest.raises(ValueError, match=r"url: expected http://\.\.\. or .*, got 'host:1'"):
        HTTP("host:1")


def test_without_aiohttp_the_way_to_get_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(NoAiohttp, match="pip install aiohttp"):
        HTTP("http://localhost")
    assert "pip install aiohttp" in WANTED
