"""Which faults a single check kills and nothing else does: what would be missed without it.

Where everything is asked anyway (rigs, instruments), this is read off the convictions. A manager or
an index is tried once more with the check taken out, if it was the only one that convicted: where
another had, that one would have convicted without it too, as taking a check out changes no run in
which it finds nothing. Kernels and pairs stop at the first check that convicts, and are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kvassay.harness.trial.fate import Ended, Fate
from kvassay.harness.trial.found import Effort
from kvassay.harness.trial.planted import Family, Planted
from kvassay.harness.trial.workers import Asked

ASKED_IN_FULL = frozenset({Family.RIG, Family.METRICS})
"""Families whose convictions are all of them."""
TRIED_WITHOUT = frozenset({Family.MANAGER, Family.INDEX})
FAMILIES = ASKED_IN_FULL | TRIED_WITHOUT


def only_killer(one: Ended) -> str | None:
    """The only invariant that convicted; None if there were several, or none."""
    invariants = {invariant for _, invariant in one.killers}
    return invariants.pop() if one.fate is Fate.KILLED and len(invariants) == 1 else None


def to_try(ended: Iterable[Ended], known: Mapping[str, Planted], effort: Effort) -> list[Asked]:
    """The faults to be tried again, each without the only check that convicted it."""
    asked = []
    for one in ended:
        planted, only = known[one.key], only_killer(one)
        if only is not None and planted.family in TRIED_WITHOUT:
            asked.append(Asked(planted, replace(effort, without=frozenset({only}))))
    return asked


def with_only(ended: Sequence[Ended], without: Sequence[Ended]) -> tuple[Ended, ...]:
    """The same trials, with `only_by` where nothing else convicted."""
    missed = {one.key for one in without if one.fate is Fate.SURVIVED}
    in_full = {family.value for family in ASKED_IN_FULL}
    return tuple(
        replace(one, only_by=only_killer(one) or "")
        if one.key in missed or one.family in in_full
        else one
        for one in ended
    )


def needed_for(ended: Iterable[Ended]) -> dict[tuple[str, str], list[str]]:
    """By family and check that convicted something, the faults that only it kills."""
    needed: dict[tuple[str, str], list[str]] = defaultdict(list)
    families = {family.value for family in FAMILIES}
    for one in ended:
        if one.is_fault and one.family in families:
            for _, invariant in one.killers:
                needed[one.family, invariant] += [one.name] if one.only_by == invariant else []
    return {place: sorted(set(names)) for place, names in sorted(needed.items())}


# ----------------------------------------------------------------------------------------- places


@dataclass(frozen=True)
class Place:
    """One function of the checkers that compares something."""

    name: str
    invariants: tuple[str, ...]
    """As which it was seen to convict."""
    only: tuple[str, ...]
    """Faults that it alone finds, with or without the inspection that they offer."""


def blindly(known: Mapping[str, Planted], ended: Iterable[Ended], effort: Effort) -> list[Asked]:
    """The same faults judged without their own inspection: then fewer checks see anything."""
    faults = [known[one.key] for one in ended if one.fate is Fate.KILLED]
    hidden = replace(effort, blind=True)
    return [Asked(one, hidden) for one in faults if one.family in TRIED_WITHOUT]


def without_place(
    known: Mapping[str, Planted], ended: Iterable[Ended], effort: Effort
) -> list[Asked]:
    """Faults that were found at one place alone, to be tried again without it."""
    return [
        Asked(known[one.key], replace(effort, without=frozenset(one.places)))
        for one in ended
        if len(one.places) == 1 and known[one.key].family in TRIED_WITHOUT
    ]


def places(ended: Sequence[Ended], missed: Iterable[tuple[Ended, Ended]]) -> tuple[Place, ...]:
    """Of all convictions in `ended`; `missed` pairs one with the survivor that it left."""
    invariants: dict[str, set[str]] = defaultdict(set)
    for one in ended:
        for place in one.places:
            invariants[place] |= {name for _, name in one.killers}
    only: dict[str, set[str]] = defaultdict(set)
    for before, after in missed:
        if after.fate is Fate.SURVIVED:
            only[before.places[0]].add(before.key)
    return tuple(
        Place(name, tuple(sorted(invariants[name])), tuple(sorted(only[name])))
        for name in sorted(invariants)
    )
