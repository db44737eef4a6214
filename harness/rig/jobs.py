"""What the rig is asked for, and what comes of it.

A job is one prompt. It has one branch, a sequence of tokens, until the answer to a step names
several next tokens for it (parallel samples, beams): then it has as many. A branch whose answer is
empty is dropped. A *lockstep* job (beam search) goes on only with all its branches in one step,
since they are chosen among each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvassay.harness.contract import CacheKey, Outcome


@dataclass(frozen=True)
class Job:
    """One request."""

    name: str
    prompt: tuple[int, ...]
    max_tokens: int
    """Output tokens of each branch, at most."""
    stop: frozenset[int] = frozenset()
    """Tokens after which a branch ends; they belong to its output."""
    salt: str | None = None
    width: int = 1
    """Branches that are asked for: parallel samples, or beams."""
    lockstep: bool = False
    """Beams: they are chosen among each other in every step."""

    def __post_init__(self) -> None:
        if not self.prompt or min(self.prompt) < 0:
            raise ValueError(f"{self.name}: expected a prompt of non-negative tokens, got none")
        if self.max_tokens < 1:
            raise ValueError(f"{self.name}: max_tokens: expected at least 1, got {self.max_tokens}")
        if self.width < 1:
            raise ValueError(f"{self.name}: width: expected at least 1, got {self.width}")


class Reason(StrEnum):
    """Why a job ended."""

    DONE = "done"
    """Every branch generated a stop token or as many tokens as were asked for."""
    ABORTED = "aborted"
    NO_ROOM = "no room"
    """The pool, were it empty, or a declared limit has no place for its tokens so far."""

    @property
    def outcome(self) -> Outcome:
        """What the manager is told."""
        return _OUTCOMES[self]


_OUTCOMES = {
    Reason.DONE: Outcome.FINISHED,
    Reason.ABORTED: Outcome.ABORTED,
    Reason.NO_ROOM: Outcome.FAILED,
}


@dataclass(frozen=True)
class Ended:
    """A job that is over."""

    job: Job
    reason: Reason
    detail: str
    """A sentence where the reason is not DONE."""
    outputs: tuple[tuple[int, ...], ...]
    """Of each branch that was not dropped, as far as it came."""
    preemptions: int
    """Of all branches."""


class Branch:
    """One sequence of tokens: the prompt, and what was generated so far."""

    __slots__ = (
        "admitted",
        "arrival",
        "computed",
        "hit",
        "index",
        "job",
        "name",
        "preempted",
        "running",
        "slots",
        "tokens",
        "tried",
    )

    def __init__(self, job: Job, name: str, index: int, arrival: int, tokens: list[int]) -> None:
        self.job = job
        self.name = name
        """What the manager knows it by."""
        self.index = index
        """Number within its job."""
        self.arrival = arrival
        self.tokens = tokens
        self.preempted = 0
        """How often."""
        self.tried = 0
        """Tokens for which it was refused slots while it was alone."""
        self.running = False
        """Whether it has blocks, and is to keep them."""
        self.forget()

    def forget(self) -> None:
        """It is not, or no longer, known to the manager."""
        self.admitted = 0
        """Leading tokens that it was admitted with."""
        self.hit = 0
        """Leading tokens that were found resident then."""
        self.slots = 0
        """Leading tokens that have slots."""
        self.computed = 0
        """Leading tokens whose KV is written."""

    @property
    def order(self) -> tuple[int, int]:
        """First come, first served."""
        return self.arrival, self.index

    @property
    def generated(self) -> int:
        """Tokens of output so far."""
        return len(self.tokens) - len(self.job.prompt)

    @property
    def output(self) -> tuple[int, ...]:
        """Tokens generated so far."""
        return tuple(self.tokens[len(self.job.prompt) :])

    def key(self, salted: bool) -> CacheKey:
        """What it is admitted with.

        The last token of a branch in lockstep is computed with its siblings', hence kept back.
        """
        known = len(self.tokens) - (1 if self.job.lockstep and self.generated else 0)
        tokens: Sequence[int] = self.tokens[:known]
        return CacheKey(tokens, salt=self.job.salt if salted else None)
