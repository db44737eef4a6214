"""Requests that put a prefix cache under pressure, drawn from a seed.

Prompts share beginnings that end in, at and just behind block boundaries; they repeat an earlier
prompt, go on where an earlier answer ended, hold blocks of one beginning behind another (the same
content under another prefix), or share nothing. Some have salts, some are aborted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from kvassay.harness.contract import CacheKey

TRUNKS = 4
REMEMBERED = 24
"""Earlier conversations that may be taken up again."""


@dataclass(frozen=True)
class Wanted:
    """One request to be made."""

    name: str
    key: CacheKey
    max_tokens: int
    aborted_after: int | None = None
    """Steps of the engine until its caller gives up; None for a caller who waits."""


class Traffic:
    """Draws requests of at most `longest` tokens, output included."""

    def __init__(
        self, seed: int, *, block_size: int, longest: int, vocabulary: int, output: int = 24
    ) -> None:
        self._random = Random(seed)
        self._size, self._longest, self._vocabulary = block_size, longest, vocabulary
        self._output = output
        self._trunks = [self._fresh(longest) for _ in range(TRUNKS)]
        self._earlier: deque[tuple[int, ...]] = deque(maxlen=REMEMBERED)
        self._drawn = 0

    def draw(self) -> Wanted:
        """The next request."""
        rng = self._random
        name, self._drawn = f"r{self._drawn}", self._drawn + 1
        max_tokens = rng.randint(1, self._output)
        prompt = tuple(self._prompt()[: self._longest - max_tokens])
        self._earlier.append(prompt)
        salt = rng.choice(("a", "b")) if rng.random() < 0.1 else None
        aborted = rng.randint(1, 12) if rng.random() < 0.06 else None
        return Wanted(name, CacheKey(prompt, salt=salt), max_tokens, aborted)

    def answered(self, context: Sequence[int]) -> None:
        """Prompt and answer of a request, which a later one may continue."""
        self._earlier.append(tuple(context))

    def among(self, most: int) -> int:
        """A number from 1 to `most`: how many requests are to be there at once."""
        return self._random.randint(1, most)

    def _prompt(self) -> list[int]:
        rng = self._random
        kind = rng.random()
        if kind < 0.15:
            return self._fresh(rng.randint(1, self._longest // 2))
        if kind < 0.3 and self._earlier:
            return list(rng.choice(self._earlier))
        if kind < 0.5 and self._earlier:
            return [*rng.choice(self._earlier), *self._fresh(rng.randint(1, self._size))]
        start = self._recombined() if kind < 0.65 else rng.choice(self._trunks)
        whole = self._size * rng.randint(1, max(1, self._longest // self._size - 1))
        length = max(1, whole + rng.choice((-1, 0, 0, 1, 7)))
        return [*start[:length], *self._fresh(rng.choice((0, 0, 1, self._size // 2)))]

    def _recombined(self) -> list[int]:
        """Blocks that several beginnings have at these places, but none of them in this order."""
        starts = range(0, self._longest, self._size)
        return [
            token
            for start in starts
            for token in self._random.choice(self._trunks)[start : start + self._size]
        ]

    def _fresh(self, count: int) -> list[int]:
        return [self._random.randrange(3, self._vocabulary) for _ in range(count)]
