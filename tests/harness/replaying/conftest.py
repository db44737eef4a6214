"""The listed counts, and the streams that they are of."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kvassay.harness.replaying.stream import Prompt, prompts
from kvassay.harness.traces.finding import KNOWN, requests

STREAMS = {
    "mooncake_fast25_conversation/all_ids": ("mooncake-conversation", False),
    "mooncake_fast25_conversation/full_blocks_only": ("mooncake-conversation", True),
    "mooncake_fast25_synthetic/all_ids": ("mooncake-synthetic", False),
    "agentic/one_conversation_after_another": ("agentic", False),
}


class Listed:
    """The listed cases, and their streams."""

    def __init__(self, real: Callable[[str], Path]) -> None:
        self._real = real
        self.counts: dict[str, Any] = json.loads(real("expected_stats.json").read_text())

    def stream(self, name: str) -> Iterator[Prompt]:
        trace, full_only = STREAMS[name]
        self._real(KNOWN[trace].file)
        return prompts(requests(trace), full_only=full_only)


@pytest.fixture
def listed(real: Callable[[str], Path]) -> Listed:
    return Listed(real)


@pytest.fixture
def random_prompts() -> Callable[[Random, int, int], list[list[int]]]:
    """Draws prompts along a random tree of so many ids: the parent of an id is a smaller one."""

    def draw(rng: Random, ids: int, count: int) -> list[list[int]]:
        parents = [rng.choice([-1, *range(id)][-3:]) for id in range(ids)]

        def path(id: int) -> list[int]:
            return [] if id < 0 else [*path(parents[id]), id]

        return [path(rng.randrange(ids)) for _ in range(count)]

    return draw
