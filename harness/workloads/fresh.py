"""Token runs that nobody shares: the first token of each is used for no other run's start.

So two prompts with the same parts up to a position, and different runs there, differ in that very
token: what they share is what they were made to share, and no more.
"""

from __future__ import annotations

from random import Random

from kvassay.harness.workloads.plan import Tokens

VOCABULARY = 32000

Length = int | tuple[int, int]
"""Tokens: so many, or any number from the first to the second, both included."""


class Fresh:
    """Draws runs of tokens in [0, vocabulary), and numbers for whatever else is random."""

    def __init__(self, seed: int, vocabulary: int = VOCABULARY) -> None:
        self.rng = Random(seed)
        self.vocabulary = vocabulary
        self._starts = list(range(vocabulary))
        self.rng.shuffle(self._starts)

    def run(self, length: Length) -> Tokens:
        """A new run; `ValueError` for one without a token, or if all starts have been used."""
        count = length if isinstance(length, int) else self.rng.randint(*length)
        if count < 1:
            raise ValueError(f"length: expected at least 1 token, got {length!r}")
        if not self._starts:
            raise ValueError(f"more than {self.vocabulary} parts: expected a larger vocabulary")
        rest = self.rng.choices(range(self.vocabulary), k=count - 1)
        return (self._starts.pop(), *rest)

    def seconds(self, mean: float) -> float:
        """An exponentially distributed time; 0 if the mean is."""
        return self.rng.expovariate(1 / mean) if mean else 0.0
