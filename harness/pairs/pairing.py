"""Which managers are tested with which kernels: all that were named, each with each.

A manager that attends by itself (ATTEND) is tested with its own attention, and with the kernels
that are named. Where only one half is named and nothing but pairs is assayed, the other is supplied
from the built-ins and that is told. A manager with layer groups or a window is not paired: a pair
has one table for each request, and its kernel reads all of it. Nor is one that copies in its own
tensors (STORAGE) and tells nobody (COPIES). A manager in another process (``exec:``) is paired only
with a kernel that is named too: to check it nothing has to be installed here that kernels need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvassay.harness.contract import (
    CAPABILITY_METHODS,
    CacheManager,
    Capability,
    Declaration,
    PagedAttention,
)
from kvassay.harness.registry import Registration, find

MANAGERS = ("paged", "radix")
KERNELS = ("torch",)
ELSEWHERE = "exec:"
OWN = "attend"
"""The name of a manager's own attention, as the half of a pair."""
Pairs = tuple[tuple[Registration, Registration], ...]


@dataclass(frozen=True)
class Pairing:
    """The pairs, and what was supplied to make them."""

    pairs: Pairs
    note: str = ""
    """What was not named by the user, or left out; empty if nothing."""
    supplied: Pairs = ()
    """Those pairs of which one half was not named by the user."""


def pairing(chosen: Sequence[Registration]) -> Pairing:
    """Pairs of what was chosen, completed from the built-ins."""
    managers = [entry for entry in chosen if entry.kind is CacheManager]
    notes = []
    for why, unfit in UNFIT.items():
        if alone := [entry.name for entry in managers if unfit(entry)]:
            notes.append(f"not paired, {why}: {_names(alone)}")
            managers = [entry for entry in managers if not unfit(entry)]
    found = _paired(managers, [entry for entry in chosen if entry.kind is PagedAttention])
    return replace(found, note="; ".join(filter(None, (*notes, found.note))))


def _paired(managers: Sequence[Registration], kernels: Sequence[Registration]) -> Pairing:
    own = [(entry, own_attention(entry)) for entry in managers if _attends(entry)]
    if managers and kernels:
        return Pairing((*own, *_each_with_each(managers, kernels)))
    if kernels:
        supplied = _each_with_each(_built_in(MANAGERS, CacheManager), kernels)
        note = f"no manager named: kernels are paired with {_names(MANAGERS)}"
        return Pairing(supplied, note, supplied)
    others = [entry for entry in managers if not _attends(entry)]
    here = [entry for entry in others if not entry.reference.startswith(ELSEWHERE)]
    if not here:
        note = "no kernel named: managers in another process are not paired" if others else ""
        return Pairing(tuple(own), note)
    supplied = _each_with_each(here, _built_in(KERNELS, PagedAttention))
    note = f"no kernel named: managers are paired with {_names(KERNELS)}"
    return Pairing((*own, *supplied), note, supplied)


def _windowed(manager: Registration) -> bool:
    return manager.declaration.windowed


def _copies_untold(manager: Registration) -> bool:
    """Whether it may have copied in its own tensors what nobody can copy in others."""
    declared = manager.declaration
    return declared.has(Capability.STORAGE) and not declared.has(Capability.COPIES)


UNFIT: dict[str, Callable[[Registration], bool]] = {
    "having layer groups or a window": _windowed,
    "as their copies are told to nobody": _copies_untold,
}
"""Which managers are not paired, and why."""


def _attends(manager: Registration) -> bool:
    return manager.declaration.has(Capability.ATTEND)


def own_attention(manager: Registration) -> Registration:
    """What a manager with ATTEND is paired with; it cannot be asked for by a reference."""

    def build() -> object:
        from kvassay.harness.pairs.own import OwnAttention

        return OwnAttention(manager)

    declared = manager.declaration
    return Registration(
        OWN,
        PagedAttention,
        build,
        Declaration(
            capabilities=declared.capabilities & CAPABILITY_METHODS[PagedAttention].keys(),
            rounding=declared.rounding,
            empty_row=declared.empty_row,
            tail=declared.tail,
            determinism=declared.determinism,
        ),
        manager.packages,
    )


def _each_with_each(managers: Sequence[Registration], kernels: Sequence[Registration]) -> Pairs:
    return tuple((manager, kernel) for manager in managers for kernel in kernels)


def _built_in(names: Sequence[str], kind: type) -> list[Registration]:
    return [entry for name in names for entry in find(name) if entry.kind is kind]


def _names(names: Sequence[str]) -> str:
    return " and ".join(names)
