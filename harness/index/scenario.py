"""A scenario of a prefix index: an engine-neutral list of operations, as a small JSON file.

In the same style as the scenario of a cache manager, and with the same rule: an operation that is
not legal in the state it meets is skipped, so that any sub-list is a scenario too. Values do not
stand in the file: the harness gives every inserted position a slot number of its own, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from kvassay.harness.contract import CacheKey
from kvassay.harness.scenario import (
    SCHEMA_VERSION,
    BadScenario,
    Peek,
    Reset,
    parsed,
    text_of,
    written,
)

FORMAT = "kvassay index scenario"


@dataclass(frozen=True, slots=True)
class Match:
    """Look up a key; `request` is who may lock what was found."""

    request: str
    key: CacheKey
    op: Literal["match"] = "match"


@dataclass(frozen=True, slots=True)
class Insert:
    """Store a key, with a new value for each token."""

    key: CacheKey
    op: Literal["insert"] = "insert"


@dataclass(frozen=True, slots=True)
class Lock:
    """Lock what `request` has found."""

    request: str
    op: Literal["lock"] = "lock"


@dataclass(frozen=True, slots=True)
class Unlock:
    """Take one lock back; with none to take, a misuse that is refused where that is claimed."""

    request: str
    op: Literal["unlock"] = "unlock"


@dataclass(frozen=True, slots=True)
class Evict:
    """Free at least so many tokens."""

    num_tokens: int
    op: Literal["evict"] = "evict"


Operation: TypeAlias = Match | Insert | Lock | Unlock | Evict | Reset | Peek


@dataclass(frozen=True)
class IndexScenario:
    """Operations on one index, with what is known about where they come from."""

    capacity: int | None
    """Tokens that may be stored; None for no limit."""
    page_size: int
    operations: tuple[Operation, ...]
    name: str = ""
    note: str = ""
    """What it shows: for a person."""
    violates: str | None = None
    """The invariant that it was found to break, and in which implementation."""
    schema: int = SCHEMA_VERSION
    format: str = FORMAT

    def __post_init__(self) -> None:
        if self.page_size < 1 or (self.capacity is not None and self.capacity < 1):
            raise BadScenario(
                f"an index of {self.capacity} tokens in pages of {self.page_size}: expected >= 1"
            )

    @property
    def num_counted(self) -> int:
        """Operations."""
        return len(self.operations)

    @property
    def shape(self) -> tuple[int, int]:
        """Pages (0 for no limit), and tokens per page."""
        return (self.capacity or 0) // self.page_size, self.page_size


def from_json(text: str, source: str = "scenario") -> IndexScenario:
    """Parse and validate a scenario; `BadScenario` says what is wrong and where."""
    return parsed(text, source, IndexScenario, kinds(), FORMAT)


def load(path: Path | str) -> IndexScenario:
    """Read a scenario file."""
    return from_json(text_of(path), str(path))


def to_json(scenario: IndexScenario) -> str:
    """The file form: one operation a line, defaults left out."""
    shape = {"capacity": scenario.capacity, "page_size": scenario.page_size}
    return written(scenario, {"format": scenario.format, "schema": scenario.schema}, shape)


def kinds() -> Sequence[type]:
    """All kinds of operation."""
    return get_args(Operation)
