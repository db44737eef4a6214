"""What a trial has to know of a planted fault or of a control, of whatever family.

A fault is judged as its *subject* (a registration, a kernel, a rig, an instrument); its *host* is
the same without the fault. The marks name the functions that were corrupted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from kvassay.harness.trial.marks import Mark


class Family(StrEnum):
    """What kind of thing is corrupted; each has its judge."""

    MANAGER = "manager"
    INDEX = "index"
    TORCH = "torch kernel"
    TRITON = "triton kernel"
    PAIR = "pair"
    RIG = "rig"
    METRICS = "metrics"
    INSIDE = "inside"


@dataclass(frozen=True)
class Planted:
    """One fault or one control; a control has no host, and nothing may convict it."""

    family: Family
    name: str
    subject: Callable[[], Any]
    accepted: frozenset[str] = frozenset()
    """Ids of the invariants that may convict it."""
    host: Callable[[], Any] | None = None
    """The subject without the fault; None for a control."""
    marks: Callable[[], frozenset[Mark]] = frozenset
    """The corrupted functions."""
    checks: tuple[str, ...] = ()
    """The checks that are asked, if not all of the family."""
    first: str = ""
    """The check that is asked before all others, where it would take long to come to it."""
    modelled_on: str = "none"
    """Public report that it restates."""
    hides: str = ""
    """What keeps it out of sight, and what brings it out; of a control, what is odd about it."""
    key: str = field(init=False, default="")
    """Family and name."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"{self.family.value}: {self.name}")

    @property
    def is_fault(self) -> bool:
        """Whether it is to be convicted."""
        return self.host is not None


class Catalogue(Protocol):
    """A module that knows faults and controls."""

    def everything(self) -> list[Planted]:
        """All faults, then all controls; keys are unique."""
        ...

    def prepare(self, families: set[Family]) -> None:
        """Import and compute what all subjects of these families share; called before forking."""
        ...
