"""The client: what it asks for, and what each kind of chunk becomes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kvassay.harness.contract import Engine, GenerationRequest
from kvassay.harness.metrics.timeline import UNSEEN
from kvassay.harness.serving.openai import Api, OpenAIEngine, ServedEvent
from kvassay.harness.serving.script import Script, Tokens, plain
from kvassay.harness.serving.scripted import Scripted
from kvassay.harness.serving.transport import CutOff, Reply, ServingError
from kvassay.harness.serving.virtual_time import play

REQUEST = GenerationRequest("r", (5, 6, 7), 4)


class Saying:
    """A transport that says these bytes."""

    def __init__(self, *payloads: Any, status: int = 200, done: bool = True) -> None:
        self.pieces = [
            one if isinstance(one, bytes) else b"data: " + json.dumps(one).encode() + b"\n\n"
            for one in payloads
        ]
        self.pieces += [b"data: [DONE]\n\n"] if done else []
        self.status, self.asked = status, []  # type: tuple[int, list[tuple[str, Any]]]

    @asynccontextmanager
    async def post(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[Reply]:
        self.asked.append((path, body))
        yield Reply(self.status, self._body())

    async def _body(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece

    async def get(self, path: str) -> tuple[int, bytes]:
        return self.status, b"".join(self.pieces)


def heard(transport: Any, **parts: Any) -> list[ServedEvent]:
    async def listen() -> list[ServedEvent]:
        clock = asyncio.get_running_loop().time
        engine = OpenAIEngine(transport, "m", clock=clock, **parts)
        return [event async for event in engine.stream(REQUEST)]

    return play(listen())


def choice(**parts: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "finish_reason": None, **parts}]}


STOP = choice(text="", finish_reason="stop")


def test_it_is_an_engine_of_the_contract() -> None:
    assert isinstance(OpenAIEngine(Saying(), "m"), Engine)


def test_a_completion_is_asked_for_by_token_ids() -> None:
    transport = Saying(STOP)
    heard(transport)
    ((path, body),) = transport.asked
    assert path == "/v1/completions"
    assert body["prompt"] == [5, 6, 7]
    assert (body["model"], body["max_tokens"], body["stream"]) == ("m", 4, True)
    assert body["stream_options"] == {"include_usage": True}
    assert body["return_token_ids"] is True
    assert body["ignore_eos"] is True
    bare = Saying(STOP)
    heard(bare, extra={})
    assert "ignore_eos" not in bare.asked[0][1]


def test_a_chat_is_asked_for_by_words_that_are_the_same_for_the_same_tokens() -> None:
    transport = Saying(STOP)
    heard(transport, api=Api.CHAT)
    ((path, body),) = transport.asked
    assert path == "/v1/chat/completions"
    assert body["messages"] == [{"role": "user", "content": "w5 w6 w7"}]
    assert "prompt" not in body


@pytest.mark.parametrize(
    ("chunk", "tokens"),
    [
        (choice(text=" a", token_ids=[8]), (8,)),
        (choice(text=" a b", token_ids=[8, 9]), (8, 9)),
        (choice(text="", token_ids=[8]), (8,)),  # half a character has no text yet
        (choice(text=" a", token_ids=[]), ()),
        (choice(text=" a"), (UNSEEN,)),
        (choice(text=""), ()),
        (choice(delta={"role": "assistant", "content": ""}), ()),
        (choice(delta={"content": "a"}), (UNSEEN,)),
        (choice(delta={"reasoning_content": "hm"}), (UNSEEN,)),
        (choice(delta={}), ()),
        ({"choices": []}, ()),
        ({"object": "ping"}, ()),
    ],
)
def test_what_a_chunk_carries(chunk: dict[str, Any], tokens: tuple[int, ...]) -> None:
    first, last = heard(Saying(chunk, STOP))
    assert first.tokens == tokens
    assert last.finish_reason == "stop"


def test_usage_is_told_by_the_event_that_brings_it() -> None:
    usage = {
        "prompt_tokens": 3,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    events = heard(Saying(choice(text="a"), STOP, {"choices": [], "usage": usage}))
    assert [event.cached_tokens for event in events] == [None, None, 2]
    assert (events[-1].prompt_tokens, events[-1].output_tokens) == (3, 1)
    untold = heard(Saying(STOP, {"choices": [], "usage": {**usage, "prompt_tokens_details": None}}))
    assert untold[-1].cached_tokens is None


@pytest.mark.parametrize(
    ("transport", "told"),
    [
        (Saying(b'{"error": {"message": "no room"}}', status=503, done=False), "HTTP 503: no room"),
        (Saying(b'{"detail": "no room"}', status=400, done=False), "HTTP 400: .*no room"),
        (Saying({"error": {"message": "no room"}}), "no room"),
        (Saying({"error": "no room"}), "no room"),
        (Saying(b"<html>proxy</html>", status=502, done=False), "HTTP 502: <html>proxy</html>"),
        (Saying(status=500, done=False), r"HTTP 500: \(empty\)"),
        (Saying(b"data: {broken\n\n"), "no JSON in the stream: {broken"),
        (Saying(b"data: 3\n\n"), "no JSON object in the stream: 3"),
        (Saying(choice(text="", finish_reason="abort")), "finish_reason 'abort'"),
    ],
)
def test_an_error_is_raised_with_what_the_server_said(transport: Saying, told: str) -> None:
    with pytest.raises(ServingError, match=told):
        heard(transport)


def test_a_vllm_error_with_json_body_that_is_no_stream() -> None:
    body = json.dumps({"error": {"message": "The model `x` does not exist.", "code": 404}})
    with pytest.raises(ServingError, match=r"HTTP 404: The model `x` does not exist\."):
        heard(Saying(body.encode(), status=404, done=False))


def test_an_end_without_a_reason_is_a_cut() -> None:
    for transport in (Saying(choice(text="a")), Saying(choice(text="a"), done=False)):
        with pytest.raises(CutOff, match="without a finish_reason"):
            heard(transport)


def test_a_stream_that_does_not_close_after_its_end_is_not_waited_for() -> None:
    script = plain(1.0)
    lingering = Script((*script.parts, Tokens(1000.0, (9,))))

    async def listen() -> float:
        clock = asyncio.get_running_loop().time
        engine = OpenAIEngine(Scripted(lambda asked: lingering), "m", clock=clock)
        events = [event async for event in engine.stream(REQUEST)]
        assert [event.tokens for event in events] == [(100,), (), ()]
        return clock()

    assert play(listen()) == 2.0


def test_models_are_listed_or_that_is_an_error() -> None:
    listed = Saying(json.dumps({"data": [{"id": "a"}, {"id": "b"}]}).encode(), done=False)
    assert play(OpenAIEngine(listed, "a").models()) == ["a", "b"]
    with pytest.raises(ServingError, match="HTTP 404 on /v1/models: nothing"):
        play(OpenAIEngine(Saying(b"nothing", status=404, done=False), "a").models())
