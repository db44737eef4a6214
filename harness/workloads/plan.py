"""A workload: requests in the order in which they are sent, and the hits that they intend.

What a request computes, and a later one may hit, is the KV of its prompt and of its output
*without the last token*, which nobody ever feeds back to the model. `Planned.shared` is stated by
whoever makes the workload, from the lengths of the parts that are shared; that no more and no less
is there to be hit is for a test to count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Planned:
    """One request."""

    name: str
    prompt: Tokens
    output: Tokens
    """What it is to generate: forced, so that later prompts can contain it."""
    shared: int = 0
    """Leading tokens of the prompt that earlier requests have computed."""
    after: tuple[str, ...] = ()
    """Requests whose answers it needs."""
    think_time: float = 0.0
    """Seconds from the last of these answers to this request."""
    group: str | None = None
    """Requests that are branches of one: samples, beams, a chat's turns."""
    step: int = 0
    """Which step of its group it belongs to."""

    def hit(self, block_size: int = 1) -> int:
        """Tokens to be hit in whole blocks; one token is always left to compute."""
        return min(self.shared, len(self.prompt) - 1) // block_size * block_size

    def computed(self) -> Tokens:
        """Tokens whose KV exists once it has been answered."""
        return self.prompt + self.output[:-1]


@dataclass(frozen=True)
class Workload:
    """Requests, and what they were made from."""

    name: str
    seed: int
    requests: tuple[Planned, ...]
    parameters: Mapping[str, object] = field(default_factory=dict)

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts."""
        return sum(len(one.prompt) for one in self.requests)

    def hits(self, block_size: int = 1) -> int:
        """Tokens hit when requests are sent one after another and nothing is ever evicted."""
        return sum(one.hit(block_size) for one in self.requests)

    def hit_rate(self, block_size: int = 1) -> float | None:
        """Of the prompts' tokens; None without any."""
        tokens = self.prompt_tokens
        return self.hits(block_size) / tokens if tokens else None
