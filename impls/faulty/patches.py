"""What planted faults in an engine have in common: a stock object, with one operation corrupted.

Each engine's module registers its own faults: where a registration comes from is how it is found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Patch = Callable[[Any], None]
"""Corrupts one object of the engine, never its class."""


@dataclass(frozen=True)
class PatchedFault:
    """One planted fault."""

    name: str
    description: str
    accepted: frozenset[str]
    """Ids of the invariants that may convict it."""
    patch: Patch
    replacing: Callable[..., None]
    """Whose inner functions replace those of the engine: the patch, or what it calls to do so."""

    @classmethod
    def of(
        cls, name: str, accepted: str, patch: Patch, replacing: Callable[..., None] | None = None
    ) -> PatchedFault:
        """Described by the docstring of the patch; `accepted` lists ids."""
        description = (patch.__doc__ or "").strip()
        return cls(name, description, frozenset(accepted.split()), patch, replacing or patch)
