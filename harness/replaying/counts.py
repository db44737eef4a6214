"""Hits counted in blocks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Counts:
    """What a replay hit, from the first, cold, request on."""

    requests: int
    blocks: int
    """Block references: the blocks of all prompts."""
    hits: int
    """References to leading blocks that were resident."""

    @property
    def ratio(self) -> float | None:
        """Hits / references; None if nothing was asked for."""
        return self.hits / self.blocks if self.blocks else None
