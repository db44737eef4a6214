"""What a request holds over its life, and what of it is KV.

A request has its prompt's slots filled when it starts, and one more after each of its steps, one
per output token; step s of a request with prompt P ends with ``P + s`` of them filled. What it
holds at that moment is

* a run of slots that is reserved at the start and kept: `MAX` the longest sequence that the model
allows; `POWER_OF_TWO` the prompt and the output's length rounded up to a power of two; `ORACLE`
the final length, known beforehand. These are the three baselines of the PagedAttention paper. * or
blocks on demand (`Paged`), the last of them partly filled.

Every slot held is *filled*, *for later* (the request will fill it) or *never* filled. Of blocks,
both of the latter are in the last block. Amounts are in slot-steps: one slot held for one step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvassay.harness.memory.lengths import Ints, Lengths, ModelShape, power_of_two


@dataclass(frozen=True)
class Use:
    """Slot-steps (or slots, at one moment) by what is in them."""

    filled: int
    later: int
    never: int

    @property
    def held(self) -> int:
        """All of them."""
        return self.filled + self.later + self.never

    @property
    def waste(self) -> float:
        """The share that is not filled."""
        return (self.later + self.never) / self.held

    def gib_seconds(self, shape: ModelShape, step_seconds: float) -> tuple[float, float, float]:
        """Filled, for later, never: GiB held times seconds, with steps of that duration."""
        unit = shape.token_bytes * step_seconds / 2**30
        return self.filled * unit, self.later * unit, self.never * unit


Reserve = Callable[[Lengths, int], Ints]


@dataclass(frozen=True)
class Contiguous:
    """A run of slots, reserved at the start."""

    name: str
    reserve: Reserve
    """Slots of each request, given the length limit."""


def _max(lengths: Lengths, limit: int) -> Ints:
    return np.full_like(lengths.prompt, limit)


def _power_of_two(lengths: Lengths, limit: int) -> Ints:
    rounded = np.array([power_of_two(int(output)) for output in lengths.output], dtype=np.int64)
    reserved: Ints = np.minimum(lengths.prompt + rounded, limit)
    return reserved


def _oracle(lengths: Lengths, limit: int) -> Ints:
    return lengths.final


MAX = Contiguous("contiguous, max length", _max)
POWER_OF_TWO = Contiguous("contiguous, power of two", _power_of_two)
ORACLE = Contiguous("contiguous, oracle", _oracle)


@dataclass(frozen=True)
class Paged:
    """Blocks on demand."""

    block_size: int

    @property
    def name(self) -> str:
        """For tables."""
        return f"paged, block {self.block_size}"

    def blocks(self, tokens: Ints) -> Ints:
        """That hold so many tokens."""
        return -(-tokens // self.block_size)

    def slots_up_to(self, tokens: Ints) -> Ints:
        """Slots held at lengths 1, 2, ... up to `tokens`, added up."""
        full, rest = np.divmod(tokens, self.block_size)
        blocks = self.block_size * full * (full + 1) // 2 + rest * (full + 1)
        slots: Ints = blocks * self.block_size
        return slots


Policy = Contiguous | Paged
POLICIES: tuple[Policy, ...] = (
    MAX,
    POWER_OF_TWO,
    ORACLE,
    *(Paged(size) for size in (8, 16, 32, 64, 128)),
)


def at_the_end(policy: Policy, lengths: Lengths, limit: int) -> Use:
    """Slots when each request has generated its last token; `limit` is the longest sequence."""
    _check(lengths, limit)
    if isinstance(policy, Paged):
        held = policy.blocks(lengths.final) * policy.block_size
    else:
        held = policy.reserve(lengths, limit)
    filled = int(lengths.final.sum())
    return Use(filled, 0, int(held.sum()) - filled)


def over_life(policy: Policy, lengths: Lengths, limit: int) -> Use:
    """Slot-steps of all requests, each from its start to its last token."""
    _check(lengths, limit)
    prompt, output, final = lengths.prompt, lengths.output, lengths.final
    filled = int((output * prompt + output * (output + 1) // 2).sum())
    if isinstance(policy, Paged):
        held = int((policy.slots_up_to(final) - policy.slots_up_to(prompt)).sum())
        return Use(filled, *_tail(policy, lengths, held - filled))
    held = int((policy.reserve(lengths, limit) * output).sum())
    later = int((output * final).sum()) - filled
    return Use(filled, later, held - filled - later)


def _tail(policy: Paged, lengths: Lengths, slack: int) -> tuple[int, int]:
    """Slack of the last block, by whether the request fills it later.

    What it never fills is what its very last block lacks, from the step in which it takes that
    block.
    """
    final = lengths.final
    last = policy.blocks(final)
    steps = np.minimum(lengths.output, final - (last - 1) * policy.block_size)
    never = int(((last * policy.block_size - final) * steps).sum())
    return slack - never, never


def _check(lengths: Lengths, limit: int) -> None:
    longest = int(lengths.final.max())
    if longest > limit:
        raise ValueError(f"limit: expected at least {longest}, the longest request, got {limit}")
