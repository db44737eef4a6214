"""A toy engine that is right, and what may be wrong with one: each fault overrides one method."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from kvassay.harness.contract import GenerationRequest, TokenEvent
from kvassay.harness.engines.random_llama import Sizes, config, weights
from kvassay.reference.llama import Llama

SIZES = Sizes(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
)
MODEL = Llama(config(SIZES), weights(SIZES))
PLAIN = MODEL.to(torch.float32)


class Toy:
    """Computes every token from scratch; a pool of slots only says who may run."""

    block_size = 8

    def __init__(self, *, model: Any, num_blocks: int, step_tokens: int | None) -> None:
        self.slots = num_blocks * self.block_size
        self.step_tokens = step_tokens
        self.used = 0
        self.names: set[str] = set()
        self.known: list[tuple[str | None, tuple[int, ...]]] = []
        """Salts and prompts that were answered."""
        self.latest: list[int] = []
        """What the last token was computed from."""
        self.failure: Exception | None = None

    async def stream(self, request: GenerationRequest) -> AsyncIterator[TokenEvent]:
        """One token at a time."""
        self.refuse(request)
        need = len(request.prompt) + request.max_tokens
        self.names.add(request.request)
        try:
            while self.used + need > self.slots:
                await asyncio.sleep(0.001)
            self.used += need
            done = False
            try:
                async for event in self.generated(request):
                    yield event
                done = True
            finally:
                self.release(need, left=not done)
        finally:
            self.names.discard(request.request)

    def refuse(self, request: GenerationRequest) -> None:
        """Raise for what is impossible."""
        if self.failure is not None:
            raise self.failure
        self.refuse_empty(request)
        self.refuse_name(request)
        self.refuse_size(request)

    def refuse_empty(self, request: GenerationRequest) -> None:
        """No prompt, no logits."""
        if not request.prompt:
            raise ValueError("prompt: expected tokens, got none")

    def refuse_name(self, request: GenerationRequest) -> None:
        """A name in use."""
        if request.request in self.names:
            raise ValueError(f"{request.request} is in use")

    def refuse_size(self, request: GenerationRequest) -> None:
        """More than the pool."""
        if len(request.prompt) + request.max_tokens > self.slots:
            raise ValueError("it does not fit")

    def release(self, need: int, *, left: bool) -> None:
        """Give the slots back."""
        self.used -= need

    async def generated(self, request: GenerationRequest) -> AsyncIterator[TokenEvent]:
        """The tokens."""
        salt, tokens = request.options.get("salt"), list(request.prompt)
        cached = self.cached(salt, tokens)
        for index in range(request.max_tokens):
            await asyncio.sleep(0)
            token, logprob = self.next(tokens, cached)
            tokens.append(token)
            last = index == request.max_tokens - 1
            yield TokenEvent(
                self.named(request),
                (token,),
                time.monotonic(),
                "length" if last else None,
                cached,
                (logprob,),
            )
        self.known.append((salt, tuple(tokens)))

    def named(self, request: GenerationRequest) -> str:
        """Whose event it is."""
        return request.request

    def cached(self, salt: str | None, tokens: Sequence[int]) -> int:
        """Whole blocks, and a token is left to compute."""
        best = 0
        for other, known in self.known:
            if other != salt:
                continue
            same = 0
            while same < min(len(known), len(tokens) - 1) and known[same] == tokens[same]:
                same += 1
            best = max(best, same // self.block_size * self.block_size)
        return best

    def context(self, tokens: list[int], cached: int) -> list[int]:
        """What is attended to."""
        return tokens

    def next(self, tokens: list[int], cached: int) -> tuple[int, float]:
        """The next token and its log-probability."""
        self.latest = self.context(list(tokens), cached)
        logits = PLAIN.logits(self.latest, first=len(self.latest) - 1)[0, 0]
        token = int(logits.argmax())
        return token, float(torch.log_softmax(logits, dim=0)[token])


class StaleHit(Toy):
    """What was hit holds the KV of one other token."""

    def context(self, tokens: list[int], cached: int) -> list[int]:
        if cached:
            tokens[cached - 1] = (tokens[cached - 1] + 1) % SIZES.vocab_size
        return tokens


class LosesAtCuts(Toy):
    """The last token of the first chunk is not attended to."""

    def context(self, tokens: list[int], cached: int) -> list[int]:
        if self.step_tokens is not None and len(tokens) > self.step_tokens:
            del tokens[self.step_tokens - 1]
        return tokens


class Crosstalk(Toy):
    """Beside others, a request continues what the one before it computed."""

    def context(self, tokens: list[int], cached: int) -> list[int]:
        return self.latest or tokens if len(self.names) > 1 else tokens


class SaltIgnored(Toy):
    """Of any salt."""

    def cached(self, salt: str | None, tokens: Sequence[int]) -> int:
        self.known = [(salt, known) for _, known in self.known]
        return super().cached(salt, tokens)


class LogprobsOff(Toy):
    """By a thousandth, as if they were of another temperature."""

    def next(self, tokens: list[int], cached: int) -> tuple[int, float]:
        token, logprob = super().next(tokens, cached)
        return token, logprob * 1.001


class LeaksWhenLeft(Toy):
    """What a client left behind is never given back."""

    def release(self, need: int, *, left: bool) -> None:
        super().release(0 if left else need, left=left)


class WaitsForever(Toy):
    """For room that will never be."""

    def refuse_size(self, request: GenerationRequest) -> None:
        pass


class DiesOfIt(Toy):
    """What does not fit ends the engine."""

    def refuse_size(self, request: GenerationRequest) -> None:
        try:
            super().refuse_size(request)
        except ValueError as error:
            self.failure = RuntimeError(str(error))
            raise


class NeedsABlockMore(Toy):
    """A request that just fits is told that it does not."""

    def refuse_size(self, request: GenerationRequest) -> None:
        if len(request.prompt) + request.max_tokens > self.slots - 1:
            raise ValueError("it does not fit")


class MixesNames(Toy):
    """The second of a name is streamed as somebody else."""

    def refuse_name(self, request: GenerationRequest) -> None:
        if request.request in self.names:
            self.names.add("somebody else")

    def named(self, request: GenerationRequest) -> str:
        return "somebody else" if "somebody else" in self.names else request.request


class NeighboursToken(Toy):
    """Without a prompt, a request goes on from what is there."""

    def refuse_empty(self, request: GenerationRequest) -> None:
        pass

    def context(self, tokens: list[int], cached: int) -> list[int]:
        return tokens or self.latest


class OneTokenShort(Toy):
    """In a batch, the last token is missing."""

    async def generated(self, request: GenerationRequest) -> AsyncIterator[TokenEvent]:
        seen = 0
        async for event in super().generated(request):
            seen += 1
            if seen == request.max_tokens and len(self.names) > 1:
                return
            yield event


class NeverStops(Toy):
    """Goes on past the end, and never waits."""

    async def generated(self, request: GenerationRequest) -> AsyncIterator[TokenEvent]:
        async for event in super().generated(request):
            yield event
        while True:
            yield TokenEvent(request.request, (), time.monotonic())


class StopsEarly(Toy):
    """Says behind two tokens that the model's end came."""

    async def generated(self, request: GenerationRequest) -> AsyncIterator[TokenEvent]:
        seen = 0
        async for event in super().generated(request):
            seen += 1
            yield replace(event, finish_reason="stop" if seen == 2 else event.finish_reason)
            if seen == 2:
                return


class BoastsOfHits(Toy):
    """More than there is."""

    def cached(self, salt: str | None, tokens: Sequence[int]) -> int:
        return 7777


class OneLogprobTooFew(Toy):
    """In the last event."""

    async def generated(self, request: GenerationRequest) -> AsyncIterator[TokenEvent]:
        async for event in super().generated(request):
            yield replace(event, logprobs=() if event.finish_reason else event.logprobs)


class SmallBlocks(Toy):
    """Right, a token to a block, and tells no log-probability of the first token."""

    block_size = 1

    async def generated(self, request: GenerationRequest) -> AsyncIterator[TokenEvent]:
        first = True
        async for event in super().generated(request):
            yield replace(event, logprobs=None if first else event.logprobs)
            first = False


class TasksOfItsOwn(Toy):
    """Right, and kept going by a task in the loop where it was first asked."""

    ticks: asyncio.Queue[None] | None = None

    async def generated(self, request: GenerationRequest) -> AsyncIterator[TokenEvent]:
        if self.ticks is None:
            self.ticks = asyncio.Queue(1)
            self.ticking = asyncio.create_task(self.tick(self.ticks))
        async for event in super().generated(request):
            await asyncio.wait_for(self.ticks.get(), 30.0)
            yield event

    async def tick(self, ticks: asyncio.Queue[None]) -> None:
        """Let one step after another go on."""
        while True:
            await ticks.put(None)
