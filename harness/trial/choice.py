"""Which faults and controls one run tries, and how hard; what it leaves out is counted and told.

In `CI` the kernels take turns: each run tries one part of them, chosen by name alone, so that the
same part is always the same faults. Everything else is tried in full every time. Triton's kernels
are slow where they are interpreted, and so fewer of them are tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

from kvassay.harness.trial.found import Effort
from kvassay.harness.trial.planted import Family, Planted
from kvassay.harness.trial.workers import Asked

IN_CI = {Family.TORCH: 4, Family.TRITON: 5}
"""Of these, one of so many parts is tried."""
SLOW = frozenset(IN_CI)
LIVES = {Family.TRITON: 3}
"""Where an address that is wrong is read, a process may end of it."""


@dataclass(frozen=True)
class Profile:
    """How much one run tries."""

    name: str
    parts: Mapping[Family, int]
    """Of these families one of so many parts is tried."""
    faults: Effort
    controls: Effort


FULL = Profile("full", {}, Effort(), Effort(examples=40, pairs=8, cases=3, seconds=0.2))
CI = Profile(
    "ci", IN_CI, Effort(shrink_seconds=1.5), Effort(examples=15, pairs=3, cases=2, seconds=0.1)
)
PROFILES = {profile.name: profile for profile in (FULL, CI)}
MANY = 5000
"""Examples of the recorded run on controls; kernels then have `MANY_CASES`."""
MANY_CASES = 300


def of_controls(examples: int) -> Effort:
    """So many examples of each control of a manager or an index, in proportion of the others."""
    cases = max(1, examples * MANY_CASES // MANY)
    return Effort(examples=examples, pairs=max(1, examples // 50), cases=cases, seconds=60.0)


@dataclass(frozen=True)
class Choice:
    """What one run tries."""

    asked: tuple[Asked, ...]
    left_out: tuple[Planted, ...] = ()
    """By the profile; not what the user did not ask for."""

    def told(self) -> str:
        """What was left out, in words."""
        if not self.left_out:
            return "nothing was left out"
        counts: dict[str, int] = {}
        for each in self.left_out:
            counts[each.family.value] = counts.get(each.family.value, 0) + 1
        listed = ", ".join(f"{count} of family {family!r}" for family, count in counts.items())
        return f"left out by the profile: {listed}"


def choose(
    planted: Sequence[Planted],
    profile: Profile,
    part: int = 0,
    without: frozenset[str] = frozenset(),
) -> Choice:
    """The part of these that a profile tries, the slowest first: no core waits at the end."""
    chosen = [one for one in planted if _in_part(one, profile.parts, part)]
    left_out = tuple(one for one in planted if not _in_part(one, profile.parts, part))
    chosen.sort(key=lambda one: (one.family not in SLOW, one.is_fault))
    asked = (
        Asked(
            one,
            replace(profile.faults if one.is_fault else profile.controls, without=without),
            LIVES.get(one.family, 1),
        )
        for one in chosen
    )
    return Choice(tuple(asked), left_out)


def _in_part(planted: Planted, parts: Mapping[Family, int], part: int) -> bool:
    number = parts.get(planted.family, 1)
    return crc32(planted.name.encode()) % number == part % number
