"""What every part of the index checker shares: the index, the model, its readers, the evidence."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from kvassay.harness.calling import Calling
from kvassay.harness.contract import Capability, Declaration
from kvassay.harness.evidence import Seen
from kvassay.reference.index_model import IndexModel


@dataclass(slots=True)
class Reader:
    """Who has matched a key, and may lock what was found."""

    places: list[int]
    """Places of what was found."""
    handle: Any
    since: int
    """Time of the match."""
    locks: list[list[int]] = field(default_factory=list)
    """One entry for each lock: the places beyond the match that it may reach."""


class IndexState(Calling):
    """One index under test together with its model."""

    def __init__(
        self, index: Any, declaration: Declaration, capacity: int | None, page_size: int
    ) -> None:
        self.tree = index
        self.declaration = declaration
        self.model = IndexModel(page_size, capacity, declaration)
        self.readers: dict[str, Reader] = {}
        self.changed = 0
        """Time of the last operation that may make a handle void."""
        self.looked = 0
        """Time of the last operation that was more than a peek."""
        self.evidence: Counter[Seen] = Counter()
        self._walks = declaration.has(Capability.WALK)
        self._counters = declaration.has(Capability.COUNTERS)
        self._locks = declaration.has(Capability.LOCK)
        self._peeks = declaration.has(Capability.PEEK)

    def has(self, *capabilities: Capability) -> bool:
        """Whether the index declares all of these."""
        return self.declaration.has(*capabilities)

    def locked(self) -> list[str]:
        """Readers that hold a lock."""
        return [name for name, reader in self.readers.items() if reader.locks]
