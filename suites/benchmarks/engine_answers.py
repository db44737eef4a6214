"""Workloads whose outputs are planned, played on engines that answer what they like.

What an engine really answered takes the place of the planned output in every prompt that goes on
with it; lengths stay, and with them the hits that are intended. Answers are sampled, each request
with a seed of its own: greedy ones would be the same for equal prompts, and then their children
would share more than they are meant to.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from kvassay.harness.contract import Engine, GenerationRequest, TokenEvent
from kvassay.harness.metrics.timeline import UNSEEN
from kvassay.harness.workloads.plan import Planned, Tokens, Workload

TEMPERATURE = 1.0


class NoIds(RuntimeError):
    """An engine that does not tell its tokens: nobody can go on with its answers."""


class Answering:
    """An engine for one workload, whose requests are asked for by name."""

    def __init__(self, engine: Engine, workload: Workload) -> None:
        self.engine = engine
        self._planned: Mapping[str, Planned] = {one.name: one for one in workload.requests}
        self._seeds = {one.name: number for number, one in enumerate(workload.requests)}
        self._prompts: dict[str, Tokens] = {}
        self._answers: dict[str, Tokens] = {}

    async def stream(self, request: GenerationRequest) -> AsyncIterator[TokenEvent]:
        """What the engine streams; its answer is kept. `NoIds` where its tokens are not told."""
        name = request.request
        prompt = self._prompts[name] = self.prompt(self._planned[name])
        options = {"temperature": TEMPERATURE, "seed": self._seeds[name], **request.options}
        asked = GenerationRequest(name, prompt, request.max_tokens, options)
        answer: list[int] = []
        stream: Any = self.engine.stream(asked)
        async with aclosing(stream):
            async for event in stream:
                answer += event.tokens
                yield event
        if UNSEEN in answer:
            raise NoIds(f"{name}: the engine does not tell the ids of its tokens")
        self._answers[name] = tuple(answer)

    def prompt(self, planned: Planned) -> Tokens:
        """The planned one, with the answers that there were."""
        for name in planned.after:
            before = self._planned[name]
            start = before.prompt + before.output
            if planned.prompt[: len(start)] == start and name in self._answers:
                return self._prompts[name] + self._answers[name] + planned.prompt[len(start) :]
        return planned.prompt
