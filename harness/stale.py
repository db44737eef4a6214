"""Declared behaviour that was never observed: not wrong, but worth a look by the implementer."""

from __future__ import annotations

from collections import Counter

from kvassay.harness.contract import Capability, Declaration, Dedup, Order, Refusal
from kvassay.harness.evidence import Seen

NOT_DRIVEN = frozenset(
    {
        Capability.WALK,
        Capability.ZEROES,
        Capability.PRIORITY,
    }
)
"""Capabilities of a CacheManager that no operation uses yet."""


def stale_declarations(declaration: Declaration, met: Counter[Seen]) -> list[str]:
    """What is declared and was never seen in a run, in words."""
    stale = [
        f"{capability.value.upper()} is declared but not driven by this version"
        for capability in sorted(declaration.capabilities & NOT_DRIVEN)
    ]
    if declaration.windowed and declaration.has(Capability.EVENTS):
        stale.append("EVENTS is declared but not driven beside layer groups or a window")
    return stale + never_observed(declaration, met)


def never_observed(declaration: Declaration, met: Counter[Seen]) -> list[str]:
    """What is declared, could have been seen, and was not."""
    observed = {
        "dedup=remap": (declaration.dedup is Dedup.REMAP, Seen.REMAPPED),
        f"drop={declaration.drop}": (declaration.drop > 0, Seen.DROPPED),
        f"order={declaration.order}": (declaration.order is not Order.NONE, Seen.POLICY_TESTED),
        f"refusal={declaration.refusal}": (
            declaration.refusal is Refusal.MAY_DROP_WINDOW,
            Seen.DROPPED_AT_REFUSAL,
        ),
        "COPIES": (declaration.has(Capability.COPIES), Seen.COPIED),
        "FORK": (declaration.has(Capability.FORK), Seen.FORK),
        "EVICT": (declaration.has(Capability.EVICT), Seen.EVICT_CALLED),
        "RESET": (declaration.has(Capability.RESET), Seen.RESET),
    }
    return [
        f"{what} was never observed"
        for what, (declared, seen) in observed.items()
        if declared and not met[seen]
    ]
