"""Which faults a single check finds and nothing else does: what would be missed without it.

What a check is, `checks` says. Rigs and instruments are asked for all of them anyway, so that this
is read off the convictions; a kernel is asked once more, until two have convicted it. A manager, an
index or a pair is tried once more with the check taken out, if that was the only one that had found
it: where another had, that one would have without it too, as taking a check out changes no run in
which it finds nothing. Managers and indexes are judged with the inspection that they offer, and
once more without: then fewer checks see anything. Triton's kernels, for which the checks are those
of the others, are left out: they are slow where they are interpreted; and engines seen from inside,
of which one run is judged until somebody is convicted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kvassay.harness.trial.checks import checks_of
from kvassay.harness.trial.fate import Ended, Fate
from kvassay.harness.trial.found import Effort
from kvassay.harness.trial.planted import Family, Planted
from kvassay.harness.trial.workers import Asked

BLIND = frozenset({Family.MANAGER, Family.INDEX})
"""Families that are judged without their inspection, too."""
TRIED_WITHOUT = BLIND | {Family.PAIR}
ASKED_IN_FULL = frozenset({Family.RIG, Family.METRICS})
"""Families whose convictions are all of them."""
OF_KERNELS = Effort(enough=2, cases=40, seconds=4.0, shrink_seconds=0.0)
AllOf = Callable[[list[Asked]], list[Ended]]
"""Tries all of these."""


def sole_finder(one: Ended) -> str | None:
    """The only check that found a fault; None if there were several, or none."""
    found = {check for check, _ in one.finders}
    return found.pop() if one.fate is Fate.KILLED and len(found) == 1 else None


def with_only(
    ended: Sequence[Ended], known: Mapping[str, Planted], effort: Effort, all_of: AllOf
) -> tuple[Ended, ...]:
    """The same trials, with all that was seen to find each fault, and what alone does."""
    seen = [one for one in ended if one.is_fault and one.fate is Fate.KILLED]
    kernels = _asked(seen, known, frozenset({Family.TORCH}), OF_KERNELS)
    full = [*all_of(kernels), *(one for one in seen if known[one.key].family in ASKED_IN_FULL)]
    hidden = all_of(_asked(seen, known, BLIND, replace(effort, blind=True)))
    only: dict[str, set[str]] = defaultdict(set)
    for one in full:
        only[one.key] |= {sole_finder(one) or ""} - {""}
    for view, how in ((seen, effort), (hidden, replace(effort, blind=True))):
        for key, check in _missed(view, known, how, all_of):
            only[key].add(check)
    finders: dict[str, dict[tuple[str, str], None]] = defaultdict(dict)
    for one in (*seen, *full, *hidden):
        finders[one.key] |= dict.fromkeys(one.finders)
    return tuple(
        replace(one, finders=tuple(finders[one.key]), only_by=tuple(sorted(only[one.key])))
        if one.key in finders
        else one
        for one in ended
    )


def _asked(
    ended: Iterable[Ended], known: Mapping[str, Planted], families: frozenset[Family], how: Effort
) -> list[Asked]:
    return [Asked(known[one.key], how) for one in ended if known[one.key].family in families]


def _missed(
    view: Sequence[Ended], known: Mapping[str, Planted], how: Effort, all_of: AllOf
) -> Iterable[tuple[str, str]]:
    """Faults of which one check is the only finder and that survive without it, with the check."""
    sole = {one.key: check for one in view if (check := sole_finder(one)) is not None}
    asked = [
        Asked(known[key], replace(how, without=frozenset({check})))
        for key, check in sole.items()
        if known[key].family in TRIED_WITHOUT
    ]
    return [(one.key, sole[one.key]) for one in all_of(asked) if one.fate is Fate.SURVIVED]


@dataclass(frozen=True)
class Need:
    """One check, and what it is needed for."""

    family: str
    check: str
    invariants: tuple[str, ...]
    """As which it was seen to convict."""
    only: tuple[str, ...]
    """Faults that it alone finds."""


def needs(ended: Iterable[Ended]) -> list[Need]:
    """Of every check of the families that were tried."""
    faults = [one for one in ended if one.is_fault]
    tried = [family for family in Family if any(one.family == family.value for one in faults)]
    return [
        _need(family.value, check, [one for one in faults if one.family == family.value])
        for family in tried
        for check in checks_of(family)
    ]


def _need(family: str, check: str, faults: Sequence[Ended]) -> Need:
    names = {name for one in faults for found, name in one.finders if found == check}
    only = {one.name for one in faults if check in one.only_by}
    return Need(family, check, tuple(sorted(names)), tuple(sorted(only)))
