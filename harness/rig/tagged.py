"""A device without a model, and its reference, which needs nothing installed and rounds nothing.

What is stored for a token names all that a model's KV depends on: the tag of a token is a function
of the token, of the position it is given, and of the tags *read* through the block table of all
tokens before it; the next token is a function of the tags read of all. So KV that is missing,
stale, someone else's or computed at a wrong position changes what follows. `follows` says the same
of tokens alone, without any memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvassay.harness.rig.checking import Answer
from kvassay.harness.rig.device import Work
from kvassay.harness.rig.plan import Transfer

VOCABULARY = 64
NOTHING = 0
"""What a slot holds that nobody has written."""
_START = 1


def _tag(token: int, position: int, before: int) -> int:
    return hash((token, position, before))


def _read(before: int, tag: int) -> int:
    """Everything up to a tag, from everything before it."""
    return hash((before, tag))


def follows(tokens: Iterable[int]) -> Ranking:
    """What a device must answer behind these tokens."""
    before = _START
    for position, token in enumerate(tokens):
        before = _read(before, _tag(token, position, before))
    return Ranking(before % VOCABULARY)


@dataclass(frozen=True)
class Ranking:
    """Scores: each token is half as probable as the one before it, cyclically."""

    first: int
    """The most probable."""

    def best(self, count: int) -> list[tuple[float, int]]:
        """Log-probabilities, but for the remainder that a ring of finite length leaves."""
        ranks = range(min(count, VOCABULARY))
        return [(-(rank + 1) * math.log(2), (self.first + rank) % VOCABULARY) for rank in ranks]


class TaggedDevice:
    """Slots by block and offset."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._slots: dict[tuple[int, int], int] = {}

    def run(self, transfers: Sequence[Transfer], work: Sequence[Work]) -> Mapping[str, Ranking]:
        """Chunks are written one after the other: one may hit what an earlier one writes."""
        for transfer in transfers:
            self._move(transfer)
        return {one.name: Ranking(self._write(one) % VOCABULARY) for one in work}

    def _write(self, work: Work) -> int:
        """Write a chunk, and read everything up to its end."""
        before = _START
        for position in range(work.start):
            before = _read(before, self._slots.get(self._slot(work, position), NOTHING))
        for offset, token in enumerate(work.tokens):
            tag = _tag(token, work.positions[offset], before)
            self._slots[self._slot(work, work.start + offset)] = tag
            before = _read(before, tag)
        return before

    def _slot(self, work: Work, position: int) -> tuple[int, int]:
        return work.table[position // self._block_size], position % self._block_size

    def _move(self, transfer: Transfer) -> None:
        offsets = range(self._block_size)
        for block in transfer.zeroes:
            self._slots.update({(block, offset): NOTHING for offset in offsets})
        read = {
            (destination, offset): self._slots.get((source, offset), NOTHING)
            for source, destination in transfer.copies
            for offset in offsets
        }
        self._slots.update(read)


class TaggedReference:
    """Exact: scores and tokens are equal, or wrong."""

    vocabulary = VOCABULARY

    def problem(self, answers: Sequence[Answer]) -> str | None:
        """The first token that does not follow, or whose scores are others."""
        for answer in answers:
            tokens = list(answer.job.prompt)
            for index, token in enumerate(answer.output):
                right, got = follows(tokens), answer.scores[index]
                where = f"{answer.job.name}, token {index} of its output"
                if got != right:
                    return f"{where}: expected {right}, got {got}"
                if answer.job.width == 1 and token != right.first:
                    return f"{where}: expected {right.first}, got {token}"
                tokens.append(token)
        return None
