"""The stages of a scheduler step, as they are timed.

A *contender* offers each stage for a batch of requests, so that an engine's batched calls can be
used where it has them. What a stage covers is the same for all:

==============  ====================================================================================
prepare         from a Python list of tokens to what the look-up takes: hashing, conversion. An
                engine may do this outside its scheduler's thread.
look_up         the longest resident prefix, and what keeps it resident.
reserve         slots for the rest of the prompt, and a block table (or row) that shows them.
publish         the prompt becomes findable; nothing where the reservation publishes.
append          one decode step: a slot for one more token of each request, which becomes findable
                where the engine publishes as it decodes.
release         the request leaves; publishes where only the release does.
==============  ====================================================================================

Every contender gets the same lists in the same order, and answers in lists of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

STAGES = ("prepare", "look_up", "reserve", "publish", "append", "release")
SCHEDULER = STAGES[1:]
"""What remains where keys are prepared elsewhere."""

Prompt = tuple[str, list[int]]
"""A request's id and its tokens."""


class Stages(Protocol):
    """One contender over one pool."""

    def prepare(self, prompts: Sequence[Prompt]) -> list[Any]:
        """A handle for each prompt."""

    def look_up(self, handles: Sequence[Any]) -> list[int]:
        """Leading tokens of each that are resident, now kept."""

    def reserve(self, handles: Sequence[Any]) -> None:
        """Slots for the rest of each prompt."""

    def publish(self, handles: Sequence[Any]) -> None:
        """The KV of each prompt is written."""

    def append(self, handles: Sequence[Any], token: int) -> None:
        """One token more for each, written at once."""

    def release(self, handles: Sequence[Any]) -> None:
        """Each finishes."""


@dataclass(frozen=True)
class Contender:
    """What is timed, and how a fresh one is made."""

    name: str
    version: str
    build: Callable[[int, int, int], Stages]
    """From blocks in the pool, tokens per block, and requests at once."""
