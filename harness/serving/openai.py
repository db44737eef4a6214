"""An OpenAI-compatible server as an `Engine`: streamed completions of prompts of token ids.

Every chunk is stamped when its bytes are there, on the one clock of the client. A chunk carries
what its token ids say, where the server tells them (vLLM does if asked); else a text that is not
empty stands for `UNSEEN` tokens. Roles, comments and usage reports carry none. A stream is whole
only if the server said why the request finished.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kvassay.harness.contract import GenerationRequest, TokenEvent
from kvassay.harness.metrics.timeline import UNSEEN
from kvassay.harness.serving.server_sent import DONE, events
from kvassay.harness.serving.transport import CutOff, Reply, ServingError, Transport, Unreachable

EXTENSIONS: Mapping[str, Any] = {"return_token_ids": True, "ignore_eos": True}
"""Fields that vLLM and its like understand: to tell token ids, and to stop at `max_tokens` only."""
NO_SUCCESS = ("abort", "error")
"""Finish reasons that mean a failure."""
PATIENCE = 1.0
"""Seconds that a stream may take to close after the mark of its end."""
SHOWN = 300
"""Characters of an error that are kept."""


Payload = dict[str, Any]


class Api(StrEnum):
    """Which of the two ways to ask."""

    COMPLETIONS = "completions"
    CHAT = "chat"


@dataclass(frozen=True)
class ServedEvent(TokenEvent):
    """A chunk, with what the server counted so far; None where it does not say."""

    output_tokens: int | None = None
    prompt_tokens: int | None = None


class OpenAIEngine:
    """One model of one server.

    `clock` gives monotonic seconds. `extra` are further fields of every request. Errors are
    `ServingError`: `Unreachable` without an answer, `CutOff` in the middle of a stream.
    """

    def __init__(
        self,
        transport: Transport,
        model: str,
        *,
        api: Api = Api.COMPLETIONS,
        extra: Mapping[str, Any] = EXTENSIONS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.transport, self.model, self.api = transport, model, api
        self.extra, self.clock = extra, clock

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[ServedEvent, None]:
        """The chunks of one request, as they come."""
        path, body = self._asked(request)
        finished = False
        async with self.transport.post(path, body) as reply:
            if reply.status != 200:
                raise ServingError(f"HTTP {reply.status}: {await _error_of(reply)}")
            async with aclosing(self._payloads(reply)) as payloads:
                async for now, payload in payloads:
                    event = self._event(request.request, now, payload)
                    finished = finished or event.finish_reason is not None
                    yield event
        self._require_finished(finished)

    async def models(self) -> list[str]:
        """The models that the server says it has; `ServingError` if it does not say."""
        status, body = await self.transport.get("/v1/models")
        try:
            return [str(entry["id"]) for entry in json.loads(body)["data"]]
        except (ValueError, KeyError, TypeError):
            raise ServingError(f"HTTP {status} on /v1/models: {_shown(body)}") from None

    # -------------------------------------------------------------------------------------- asking

    def _asked(self, request: GenerationRequest) -> tuple[str, dict[str, Any]]:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.extra,
            **request.options,
        }
        if self.api is Api.CHAT:
            content = text_of(request.prompt)
            body["messages"] = [{"role": "user", "content": content}]
            return "/v1/chat/completions", body
        body["prompt"] = list(request.prompt)
        return "/v1/completions", body

    # ------------------------------------------------------------------------------------- hearing

    async def _payloads(self, reply: Reply) -> AsyncGenerator[tuple[float, Payload], None]:
        """The JSON objects of the stream with their times; an error among them is raised.

        A connection that breaks once the request has finished is no loss. After the mark of the
        end the rest is read, so that the connection can be used again, but not waited for long.
        """
        finished = False
        async with aclosing(events(reply.body, self._now)) as source:
            try:
                async for now, data in source:
                    if data == DONE:
                        break
                    payload = _parsed(data)
                    finished = finished or any(map(_finish_reason, payload.get("choices") or ()))
                    yield now, payload
                else:
                    return
            except CutOff:
                if not finished:
                    raise
                return
            with suppress(CutOff, TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    async for _ in source:
                        pass

    def _event(self, name: str, now: float, payload: Mapping[str, Any]) -> ServedEvent:
        choices, usage = payload.get("choices") or (), payload.get("usage") or {}
        tokens: tuple[int, ...] = ()
        reason = None
        for choice in choices:
            tokens += self._tokens(choice)
            reason = _finish_reason(choice) or reason
        if reason in NO_SUCCESS:
            raise ServingError(f"finish_reason {reason!r}")
        return ServedEvent(
            request=name,
            tokens=tokens,
            time=now,
            finish_reason=reason,
            cached_tokens=self._cached(usage),
            output_tokens=usage.get("completion_tokens"),
            prompt_tokens=usage.get("prompt_tokens"),
        )

    def _now(self) -> float:
        return float(self.clock())

    def _tokens(self, choice: Mapping[str, Any]) -> tuple[int, ...]:
        """Token ids of a choice; `UNSEEN` where there is only text."""
        ids = choice.get("token_ids")
        if ids is not None:
            return tuple(ids)
        delta = choice.get("delta") or {}
        said = (choice.get("text"), *(delta.get(name) for name in TEXTS))
        return (UNSEEN,) if any(said) else ()

    def _cached(self, usage: Mapping[str, Any]) -> int | None:
        details = usage.get("prompt_tokens_details") or {}
        cached = details.get("cached_tokens")
        return None if cached is None else int(cached)

    def _require_finished(self, finished: bool) -> None:
        if not finished:
            raise CutOff("the stream ended without a finish_reason")


TEXTS = ("content", "reasoning_content", "reasoning", "tool_calls")
"""Where a chat's chunk carries what the model generated."""


def text_of(prompt: Sequence[int]) -> str:
    """A prompt for a server that takes text only: a short word per token, the same for the same."""
    return " ".join(f"w{token}" for token in prompt)


def _finish_reason(choice: Mapping[str, Any]) -> str | None:
    return choice.get("finish_reason") or None


def _parsed(data: str) -> Payload:
    try:
        payload = json.loads(data)
    except ValueError:
        raise ServingError(f"no JSON in the stream: {_shown(data.encode())}") from None
    if not isinstance(payload, dict):
        raise ServingError(f"no JSON object in the stream: {_shown(data.encode())}")
    if payload.get("error"):
        raise ServingError(_told(payload["error"]))
    return payload


async def _error_of(reply: Reply) -> str:
    body = b""
    try:
        async for piece in reply.body:
            body += piece
    except (CutOff, Unreachable):
        pass
    try:
        payload = json.loads(body)
    except ValueError:
        return _shown(body)
    error = payload.get("error", payload) if isinstance(payload, dict) else payload
    return _told(error)


def _told(error: Any) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or error)[:SHOWN]


def _shown(body: bytes) -> str:
    return body.decode("utf-8", errors="replace").strip()[:SHOWN] or "(empty)"
