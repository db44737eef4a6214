"""Checks that are drawn at random and taken out, one at a time: what survives then?

What is tried without a check are the faults of which a trial has said that nothing else finds them;
here it is seen whether that is so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from kvassay.harness.trial.fate import Fate
from kvassay.harness.trial.found import Effort
from kvassay.harness.trial.necessity import BLIND, OF_KERNELS, AllOf, Need
from kvassay.harness.trial.planted import Family, Planted
from kvassay.harness.trial.workers import Asked


@dataclass(frozen=True)
class Removed:
    """One check that was taken out."""

    family: str
    check: str
    tried: tuple[str, ...]
    """Faults that were judged without it."""
    survived: tuple[str, ...]
    """Those that nothing found then."""

    @classmethod
    def of_dict(cls, data: dict[str, Any]) -> Removed:
        """The same from what JSON makes of it."""
        return cls(**{**data, "tried": tuple(data["tried"]), "survived": tuple(data["survived"])})


def drawn(needs: Sequence[Need], number: int, seed: int) -> list[Need]:
    """So many checks of all, each at most once; the same for the same seed."""
    ordered = sorted(needs, key=lambda need: (need.family, need.check))
    return Random(seed).sample(ordered, min(number, len(ordered)))


def removed(need: Need, known: Mapping[str, Planted], effort: Effort, all_of: AllOf) -> Removed:
    """The faults that need a check, judged without it."""
    without = frozenset({need.check})
    how = replace(effort, without=without)
    if need.family == Family.TORCH.value:
        how = replace(OF_KERNELS, enough=1, without=without)
    faults = [known[f"{need.family}: {name}"] for name in need.only]
    survived = _survivors([Asked(fault, how) for fault in faults], all_of)
    left = [fault for fault in faults if fault.name not in survived and fault.family in BLIND]
    survived |= _survivors([Asked(fault, replace(how, blind=True)) for fault in left], all_of)
    return Removed(need.family, need.check, need.only, tuple(sorted(survived)))


def _survivors(asked: list[Asked], all_of: AllOf) -> set[str]:
    return {one.name for one in all_of(asked) if one.fate is Fate.SURVIVED}
