"""Prompts whose lengths and common beginnings lie at and around the boundaries of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from kvassay.harness.contract import GenerationRequest
from kvassay.harness.engines.asking import Sending

OUTPUT = 6


class Prompts:
    """Draws requests under names of their own; another `seed` draws other tokens."""

    def __init__(self, vocabulary: int, block_size: int, seed: str) -> None:
        self.block_size = block_size
        self._vocabulary = vocabulary
        self._rng = Random(f"20261 {seed}")
        self._seed = seed
        self._made = 0

    def run(self, length: int) -> tuple[int, ...]:
        """So many tokens."""
        return tuple(self._rng.randrange(3, self._vocabulary) for _ in range(length))

    def request(
        self, prompt: Sequence[int], max_tokens: int = OUTPUT, **options: Any
    ) -> GenerationRequest:
        """Under a new name."""
        self._made += 1
        name = f"{self._seed.replace(' ', '-')}-{self._made}"
        return GenerationRequest(name, tuple(prompt), max_tokens, {"logprobs": True, **options})

    def sending(self, prompt: Sequence[int], max_tokens: int = OUTPUT) -> Sending:
        """One, at once."""
        return Sending(self.request(prompt, max_tokens))

    def unrelated(self) -> list[GenerationRequest]:
        """From one token to three blocks and a bit."""
        size = self.block_size
        lengths = (1, 2, size - 1, size, size + 1, 2 * size, 3 * size - 1, 3 * size + 2)
        return [self.request(self.run(length)) for length in lengths if length > 0]

    def family(self) -> list[GenerationRequest]:
        """One prompt twice, then others that begin like it."""
        size = self.block_size
        whole = self.run(3 * size)
        cuts = (size - 1, size, size + 1, 2 * size, 3 * size - 2)
        begun = [whole[:cut] for cut in cuts if cut > 0]
        longer = [start + self.run(3) for start in begun]
        return [self.request(prompt) for prompt in (whole, whole, *longer, *begun[-2:])]

    def growing(self, count: int, length: int) -> list[GenerationRequest]:
        """Unrelated, with outputs as long as their prompts: `length` tokens in the end."""
        half = length // 2
        return [self.request(self.run(half), length - half) for _ in range(count)]
