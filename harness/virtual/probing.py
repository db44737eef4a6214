"""Steps of a real engine, measured from outside: prefills by length, decodes by batch and context.

A prefill is a prompt that nobody sent before, alone: its time to the first token is one step, with
what the engine does around it. A decode is the gap between two steps that both brought a token to
every request of a batch, which an engine stamps with one time per step.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import aclosing
from itertools import pairwise
from random import Random
from statistics import median
from typing import Any

from kvassay.harness.contract import Engine, GenerationRequest, TokenEvent
from kvassay.harness.virtual.cost import StepWork
from kvassay.harness.virtual.fitting import Observed

PREFILLS = (32, 64, 128, 256, 512, 1024, 2048)
"""Tokens."""
DECODES = (
    (1, 64),
    (1, 512),
    (1, 1024),
    (4, 256),
    (4, 1024),
    (8, 64),
    (8, 512),
    (16, 256),
    (32, 64),
)
"""Sequences, and tokens of each."""
PAUSE = 0.1
"""Seconds before a prefill: in traffic, requests come to an engine that was not busy just now."""
STEPS = 16
"""Decode steps that are measured."""


class Prober:
    """Asks one engine; prompts are of tokens below `vocabulary`."""

    def __init__(self, engine: Engine, vocabulary: int, seed: int = 0) -> None:
        self.engine, self.vocabulary = engine, vocabulary
        self._random, self._asked = Random(seed), 0

    async def observe(
        self,
        prefills: Iterable[int] = PREFILLS,
        decodes: Iterable[tuple[int, int]] = DECODES,
        rounds: int = 8,
    ) -> list[Observed]:
        """The least disturbed of `rounds` for each, in turns, after one that is not counted."""
        lengths, batches = list(prefills), list(decodes)
        seconds: dict[Any, list[float]] = {case: [] for case in (*lengths, *batches)}
        for number in range(rounds + 1):
            for length in lengths:
                taken = await self._prefill(length)
                if number:
                    seconds[length].append(taken)
            for batch in batches:
                taken = await self._decode(*batch)
                if number:
                    seconds[batch].append(taken)
        return [Observed(_prefilled(one), min(seconds[one])) for one in lengths] + [
            Observed(_decoded(*one), min(seconds[one])) for one in batches
        ]

    async def _prefill(self, length: int) -> float:
        await asyncio.sleep(PAUSE)
        start = time.monotonic()
        (first,) = await self._events(self._request(length, 1))
        return first.time - start

    async def _decode(self, batch: int, context: int) -> float:
        # Prompts may come in over several steps: as many tokens more, so that all overlap.
        asked = [self._request(context, STEPS + batch) for _ in range(batch)]
        answers = await asyncio.gather(*map(self._events, asked))
        together = Counter(event.time for events in answers for event in events[1:])
        gaps = [
            after - before
            for before, after in pairwise(sorted(together))
            if together[before] == together[after] == batch
        ]
        if not gaps:
            raise ValueError(f"no two steps decoded all {batch} sequences together")
        return median(gaps)

    async def _events(self, request: GenerationRequest) -> list[TokenEvent]:
        stream: Any = self.engine.stream(request)
        async with aclosing(stream):
            return [event async for event in stream]

    def _request(self, length: int, tokens: int) -> GenerationRequest:
        self._asked += 1
        prompt = self._random.choices(range(self.vocabulary), k=length)
        return GenerationRequest(f"probe{self._asked}", prompt, tokens)


def _prefilled(length: int) -> StepWork:
    work = StepWork(1)
    work.add(0, length, True)
    return work


def _decoded(batch: int, context: int) -> StepWork:
    """The middle of the steps that were measured."""
    work, at = StepWork(), context + (STEPS + batch) // 2
    for _ in range(batch):
        work.add(at, at + 1, True)
    return work
