"""vLLM as a whole: what its events say, what it refuses, and that nothing of it stays behind."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from kvassay.harness import registry
from kvassay.harness.contract import Engine, GenerationRequest, TokenEvent
from kvassay.impls.engines import vllm_engine as adapter

PROMPT = [(number * 37 + number // 11) % 1000 + 3 for number in range(200)]
FULL = 192
"""Tokens of the full blocks of 32 in the prompt."""


def test_importing_the_adapter_does_not_import_vllm() -> None:
    code = "import kvassay.impls.engines.vllm_engine, sys; sys.exit('vllm' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_is_registered_as_an_engine() -> None:
    (entry,) = registry.find("kvassay.impls.engines.vllm_engine")
    assert (entry.name, entry.kind) == ("vllm-engine", Engine)


def build(**arguments: Any) -> Any:
    pytest.importorskip("vllm", reason=f"needs vLLM: {adapter.INSTALL}")
    (entry,) = registry.find("kvassay.impls.engines.vllm_engine")
    return entry.build(max_model_len=1024, num_blocks=128, **arguments)


@pytest.fixture(scope="module")
def built() -> Iterator[Any]:
    engine = build()
    yield engine
    engine.close()


@pytest.fixture
def engine(built: Any) -> Any:
    built.reset()
    return built


def ask(engine: Any, prompt: list[int], tokens: int = 6, **options: Any) -> list[TokenEvent]:
    return asyncio.run(asked(engine, "one", prompt, tokens, **options))


async def asked(
    engine: Any, name: str, prompt: list[int], tokens: int = 6, **options: Any
) -> list[TokenEvent]:
    request = GenerationRequest(name, prompt, tokens, options)
    return [event async for event in engine.stream(request)]


def tokens_of(events: list[TokenEvent]) -> list[int]:
    return [token for event in events for token in event.tokens]


def test_streams_one_event_per_token_in_order(engine: Any) -> None:
    start = time.monotonic()
    events = ask(engine, PROMPT)
    assert [len(event.tokens) for event in events] == [1] * 6
    assert [event.finish_reason for event in events] == [None] * 5 + ["length"]
    assert {event.request for event in events} == {"one"}
    times = [start, *(event.time for event in events), time.monotonic()]
    assert times == sorted(times)
    assert len(set(times)) == len(times)


def test_tells_how_much_of_the_prompt_was_cached(engine: Any) -> None:
    cold, warm = ask(engine, PROMPT), ask(engine, PROMPT)
    assert {event.cached_tokens for event in cold} == {0}
    assert {event.cached_tokens for event in warm} == {FULL}
    assert tokens_of(cold) == tokens_of(warm)


def test_a_salt_keeps_requests_apart(engine: Any) -> None:
    ask(engine, PROMPT, salt="one")
    assert ask(engine, PROMPT, salt="other")[0].cached_tokens == 0
    assert ask(engine, PROMPT, salt="one")[0].cached_tokens == FULL


def test_without_prefix_caching_nothing_is_cached(engine: Any) -> None:
    plain = build(prefix_caching=False)
    try:
        first, second = ask(plain, PROMPT), ask(plain, PROMPT)
    finally:
        plain.close()
    assert not first[0].cached_tokens
    assert not second[0].cached_tokens
    assert tokens_of(second) == tokens_of(ask(engine, PROMPT))


def test_the_weights_react_to_the_whole_context(engine: Any) -> None:
    outputs = [tokens_of(ask(engine, [first, *PROMPT[1:40]])) for first in (3, 500, 900)]
    assert len({tuple(output) for output in outputs}) == 3


def test_requests_together_get_what_they_get_alone(engine: Any) -> None:
    prompts = {f"p{shift}": PROMPT[shift:] for shift in range(0, 60, 20)}
    alone = {name: tokens_of(ask(engine, prompt)) for name, prompt in prompts.items()}

    async def together() -> list[list[TokenEvent]]:
        return await asyncio.gather(
            *(asked(engine, name, prompt) for name, prompt in prompts.items())
        )

    events = asyncio.run(together())
    assert [one[0].request for one in events] == list(prompts)
    assert dict(zip(prompts, map(tokens_of, events), strict=True)) == alone


def test_what_is_refused_ends_that_request_alone(engine: Any) -> None:
    with pytest.raises(ValueError, match=r"'one'.*maximum context length is 1024"):
        ask(engine, PROMPT * 6)
    with pytest.raises(ValueError, match="no_such_option"):
        ask(engine, PROMPT, no_such_option=1)
    assert len(ask(engine, PROMPT)) == 6


def test_a_name_is_used_once_at_a_time(engine: Any) -> None:
    async def twice() -> None:
        first = engine.stream(GenerationRequest("one", PROMPT, 50))
        await anext(first)
        with pytest.raises(ValueError, match="'one' is unfinished"):
            await asked(engine, "one", PROMPT)
        await first.aclose()

    asyncio.run(twice())
    assert len(ask(engine, PROMPT)) == 6


def test_leaving_early_aborts(engine: Any) -> None:
    async def leave() -> None:
        stream = engine.stream(GenerationRequest("one", PROMPT, 800))
        await anext(stream)
        with pytest.raises(ValueError, match="unfinished"):
            engine.reset()
        await stream.aclose()

    start = time.monotonic()
    asyncio.run(leave())
    engine.reset()
    one_step = 0.2
    assert time.monotonic() - start < 100 * one_step


def test_a_closed_engine_says_so() -> None:
    engine = build()
    engine.close()
    engine.close()
    with pytest.raises(RuntimeError, match="closed"):
        ask(engine, PROMPT)


def test_closing_tells_whoever_still_waits() -> None:
    engine = build()

    async def wait() -> None:
        stream = engine.stream(GenerationRequest("one", PROMPT, 800))
        await anext(stream)
        await asyncio.to_thread(engine.close)
        with pytest.raises(RuntimeError, match="was closed"):
            async for _ in stream:
                pass

    asyncio.run(wait())


def test_what_cannot_be_built_is_raised_to_the_caller() -> None:
    with pytest.raises(Exception, match="no_such_argument"):
        build(no_such_argument=1)


def completion(url: str, model: str) -> tuple[list[int], int | None]:
    """Tokens, and how many of the prompt were cached."""
    body = {"model": model, "prompt": PROMPT, "max_tokens": 6, "temperature": 0}
    body |= {"ignore_eos": True, "return_token_ids": True}
    asking = urllib.request.Request(
        f"{url}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(asking, timeout=60) as answer:
        said = json.load(answer)
    details = said["usage"].get("prompt_tokens_details") or {}
    return said["choices"][0]["token_ids"], details.get("cached_tokens")


@pytest.mark.long
def test_the_server_answers_like_the_engine_and_leaves_nobody_behind(engine: Any) -> None:
    with adapter.VllmEngine.serving(arguments=("--max-model-len", "1024")) as served:
        assert completion(served.url, served.model) == (tokens_of(ask(engine, PROMPT)), 0)
        assert completion(served.url, served.model)[1] == FULL
        os.killpg(served.pid, 0)
    with pytest.raises(ProcessLookupError):
        os.killpg(served.pid, 0)


@pytest.mark.long
def test_a_server_that_does_not_start_shows_its_log() -> None:
    pytest.importorskip("vllm", reason=f"needs vLLM: {adapter.INSTALL}")
    with (
        pytest.raises(RuntimeError, match="unrecognized arguments: --no-such-argument"),
        adapter.VllmEngine.serving(arguments=("--no-such-argument",)),
    ):
        pytest.fail("it started")
