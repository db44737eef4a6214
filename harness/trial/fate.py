"""What became of one fault or control: plain data that crosses processes and is recorded."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from kvassay.harness.trial.planted import Planted


class Fate(StrEnum):
    """How a trial ended."""

    KILLED = "killed"
    """Convicted by an accepted invariant; its code was run, and its host is not convicted."""
    SURVIVED = "survived"
    WRONG = "killed by the wrong invariant"
    DEAD = "dead"
    """What was corrupted had no part in it: it was never run, or the host is convicted as well."""
    ACQUITTED = "acquitted"
    """A control that nothing convicted."""
    CONVICTED = "convicted"
    """A control that something convicted: the worst fault of all."""
    BROKEN = "could not be tried"
    LEFT = "over its time"


GOOD = frozenset({Fate.KILLED, Fate.ACQUITTED})


@dataclass(frozen=True)
class Ended:
    """The trial of one fault or control."""

    family: str
    name: str
    is_fault: bool
    fate: Fate
    accepted: tuple[str, ...] = ()
    killers: tuple[tuple[str, str], ...] = ()
    """Check and invariant of every conviction, the nearest to the cause first."""
    examples: int | None = None
    """Until the first of them; of a control or a survivor, tried in all."""
    operations: int | None = None
    """Of its shrunk counterexample."""
    seconds: float | None = None
    """Of processor time, for judging it, shrinking included."""
    reached: bool | None = None
    """Whether the corrupted code was run in the counterexample; None for a control."""
    told: str = ""
    """The verdict, or what is wrong with the trial."""
    modelled_on: str = "none"
    hides: str = ""
    only_by: tuple[str, ...] = ()
    """The checks without which it survives, if that was tried: one, or another one blindly."""
    notes: tuple[str, ...] = field(default_factory=tuple)
    """What else was seen."""
    finders: tuple[tuple[str, str], ...] = ()
    """Checks that found it, and as which invariant, the nearest to the cause first."""

    @property
    def key(self) -> str:
        """Family and name."""
        return f"{self.family}: {self.name}"

    @property
    def good(self) -> bool:
        """Whether it ended as it should."""
        return self.fate in GOOD

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def of_dict(cls, data: dict[str, Any]) -> Ended:
        """The same from what JSON makes of it."""
        return cls(
            **{
                **data,
                "fate": Fate(data["fate"]),
                "accepted": tuple(data["accepted"]),
                "killers": tuple((check, invariant) for check, invariant in data["killers"]),
                "notes": tuple(data["notes"]),
                "only_by": tuple(data["only_by"]),
                "finders": tuple((check, invariant) for check, invariant in data["finders"]),
            }
        )


def ended(planted: Planted, fate: Fate, told: str = "", **more: Any) -> Ended:
    """How the trial of this one ended."""
    return Ended(
        family=planted.family.value,
        name=planted.name,
        is_fault=planted.is_fault,
        fate=fate,
        accepted=tuple(sorted(planted.accepted)),
        told=told,
        modelled_on=planted.modelled_on,
        hides=planted.hides,
        **more,
    )
