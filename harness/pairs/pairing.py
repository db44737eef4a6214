"""Which managers are tested with which kernels: all that were named, each with each.

Where only one half is named and nothing but pairs is assayed, the other is supplied from the
built-ins and that is told. A manager with layer groups or a window is not paired: a pair has one
table for each request, and its kernel reads all of it. A manager in another process (``exec:``) is
paired only with a kernel that is named too: to check it nothing has to be installed here that
kernels need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvassay.harness.contract import CacheManager, PagedAttention
from kvassay.harness.registry import Registration, find

MANAGERS = ("paged", "radix")
KERNELS = ("torch",)
ELSEWHERE = "exec:"


@dataclass(frozen=True)
class Pairing:
    """The pairs, and what was supplied to make them."""

    pairs: tuple[tuple[Registration, Registration], ...]
    note: str = ""
    """What was not named by the user, or left out; empty if nothing."""
    supplied: bool = False
    """Whether one half was not named by the user."""


def pairing(chosen: Sequence[Registration]) -> Pairing:
    """Pairs of what was chosen, completed from the built-ins."""
    named = [entry for entry in chosen if entry.kind is CacheManager]
    managers = [entry for entry in named if not entry.declaration.windowed]
    if len(managers) < len(named):
        alone = _names([entry for entry in named if entry.declaration.windowed])
        rest = pairing([entry for entry in chosen if entry not in named or entry in managers])
        note = f"not paired, having layer groups or a window: {alone}"
        return replace(rest, note="; ".join(filter(None, (note, rest.note))))
    kernels = [entry for entry in chosen if entry.kind is PagedAttention]
    if managers and kernels:
        return Pairing(_each_with_each(managers, kernels))
    if kernels:
        supplied = _built_in(MANAGERS, CacheManager)
        note = f"no manager named: kernels are paired with {_names(supplied)}"
        return Pairing(_each_with_each(supplied, kernels), note, supplied=True)
    here = [entry for entry in managers if not entry.reference.startswith(ELSEWHERE)]
    if not here:
        note = "no kernel named: managers in another process are not paired" if managers else ""
        return Pairing((), note)
    supplied = _built_in(KERNELS, PagedAttention)
    note = f"no kernel named: managers are paired with {_names(supplied)}"
    return Pairing(_each_with_each(here, supplied), note, supplied=True)


def _each_with_each(
    managers: Sequence[Registration], kernels: Sequence[Registration]
) -> tuple[tuple[Registration, Registration], ...]:
    return tuple((manager, kernel) for manager in managers for kernel in kernels)


def _built_in(names: Sequence[str], kind: type) -> list[Registration]:
    return [entry for name in names for entry in find(name) if entry.kind is kind]


def _names(entries: Sequence[Registration]) -> str:
    return " and ".join(entry.name for entry in entries)
