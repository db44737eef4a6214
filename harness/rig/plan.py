"""One step of a continuous batch: what moves in memory, what is computed, and what is wanted of it.

Everything in a plan is to be done in this order: transfers, then the KV of all chunks written, then
attention; layer by layer, so that a chunk may read what another one of the same step writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvassay.harness.rig.jobs import Branch, Ended


@dataclass(frozen=True)
class Transfer:
    """What one operation of the manager asks of the device: first clear, then copy."""

    zeroes: tuple[int, ...]
    copies: tuple[tuple[int, int], ...]
    """(source, destination); all sources are read before any destination is written."""


@dataclass(frozen=True)
class Chunk:
    """Tokens of one branch that are computed in a step."""

    branch: Branch
    start: int
    """Position of its first token, hence the number of tokens whose KV is there already."""
    stop: int
    samples: bool
    """Whether the logits behind its last token are wanted: the next token is chosen by them."""

    @property
    def name(self) -> str:
        """The branch, as the manager and the answers to the step know it."""
        return self.branch.name

    @property
    def job(self) -> str:
        """The job's name."""
        return self.branch.job.name

    @property
    def count(self) -> int:
        """Number of tokens."""
        return self.stop - self.start

    @property
    def tokens(self) -> Sequence[int]:
        """The tokens; not after `Scheduler.complete`."""
        return self.branch.tokens[self.start : self.stop]

    @property
    def decodes(self) -> bool:
        """Whether it is one token that the step before chose."""
        return self.samples and self.count == 1 and self.branch.generated > 0


@dataclass(frozen=True)
class Admission:
    """A branch that entered in this step, for the first time or after preemption."""

    branch: Branch
    hit: int
    """Leading tokens found resident."""
    length: int
    """Tokens it was admitted with."""
    again: bool
    """Whether it had been preempted."""


@dataclass(frozen=True)
class StepPlan:
    """One step."""

    number: int
    chunks: tuple[Chunk, ...]
    """In the order of arrival."""
    transfers: tuple[Transfer, ...]
    """In this order; those that the end of the step before asked for come first."""
    admitted: tuple[Admission, ...]
    preempted: tuple[Branch, ...]
    ended: tuple[Ended, ...]
    """Jobs that ended without a step of their own: refused, aborted, out of room."""

    def chunk(self, name: str) -> Chunk | None:
        """That of a branch."""
        return next((chunk for chunk in self.chunks if chunk.name == name), None)

    @property
    def num_tokens(self) -> int:
        """Tokens computed in the step."""
        return sum(chunk.count for chunk in self.chunks)

    @property
    def prefills(self) -> tuple[Chunk, ...]:
        """Chunks of prompts, and of what is computed again after preemption."""
        return tuple(chunk for chunk in self.chunks if not chunk.decodes)

    @property
    def decodes(self) -> tuple[Chunk, ...]:
        """Chunks of one generated token."""
        return tuple(chunk for chunk in self.chunks if chunk.decodes)
