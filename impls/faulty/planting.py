"""How a fault of a manager or of an index is entered: a class with one operation corrupted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kvassay.harness.contract import Declaration
from kvassay.harness.registry import Registration, add


@dataclass(frozen=True)
class Fault:
    """One planted fault."""

    name: str
    accepted: frozenset[str]
    """Ids of the invariants that may convict it."""
    modelled_on: str
    """Public report that it restates, or ``none``."""
    hides: str
    """What keeps it out of sight, and what brings it out."""
    build: type[Any]
    declaration: Declaration
    corrupted: type[Any]
    """The class that is written here: `build` itself, or a part that it is made with."""

    @property
    def healthy(self) -> type[Any]:
        """What it was made from: the first class above it that was not written to be faulty."""
        return next(each for each in self.build.__mro__ if each.__module__ not in WRITTEN)


WRITTEN: set[str] = set()
"""Modules of faults."""
Planted = TypeVar("Planted", bound=type[Any])
Plant = Callable[..., Callable[[Planted], Planted]]


def planter(
    faults: dict[str, Fault],
    prefix: str,
    kind: type,
    usual: Declaration,
    made_with: Callable[[type[Any]], type[Any]] = lambda corrupted: corrupted,
) -> Plant[Any]:
    """A decorator that enters a class into `faults` and registers it as ``<prefix><name>``.

    `made_with` makes the implementation from the class that is decorated, where that is a part.
    """

    def fault(
        name: str,
        accepted: str,
        hides: str,
        *,
        modelled_on: str = "none",
        declaration: Declaration = usual,
    ) -> Callable[[Planted], Planted]:
        def plant(corrupted: Planted) -> Planted:
            WRITTEN.add(corrupted.__module__)
            build, ids = made_with(corrupted), frozenset(accepted.split())
            faults[name] = Fault(name, ids, modelled_on, hides, build, declaration, corrupted)
            add(_registration(f"{prefix}{name}", kind, build, declaration, corrupted.__module__))
            return corrupted

        return plant

    return fault


def _registration(
    name: str, kind: type, build: type[Any], declaration: Declaration, module: str
) -> Registration:
    """As it would register itself: where it is written is how it is found."""
    written_in = sys.modules[module]
    return Registration(
        name=name,
        kind=kind,
        factory=build,
        declaration=declaration,
        reference=name,
        origin=Path(written_in.__file__ or "").resolve(),
        execution=written_in.__spec__,
    )
