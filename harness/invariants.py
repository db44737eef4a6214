"""The law as the suites enforce it: what each invariant needs, and what must have been met.

An invariant is *not claimed* by an implementation that lacks the capabilities it speaks of, and
*not reached* by a run that never met the states in which it could have been broken. Neither is
ever folded into a pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvassay.harness.contract import Capability, Declaration, Order, Publish, Reclaim
from kvassay.harness.evidence import Seen

Claim = Callable[[Declaration], str | None]
"""Why an invariant is not claimed, or None if it is."""


@dataclass(frozen=True)
class Invariant:
    """One id of the law."""

    id: str
    title: str
    suite: str
    claim: Claim
    reached: tuple[tuple[Seen, ...], ...]
    """All groups must have been met; of each group, one member."""
    behind_windows: tuple[tuple[Seen, ...], ...] = ()
    """The same, where there are layer groups or a window."""

    def demands(self, declaration: Declaration) -> tuple[tuple[Seen, ...], ...]:
        """What must have been met of an implementation that declares so much."""
        return self.reached + (self.behind_windows if declaration.windowed else ())

    def missing(self, met: Counter[Seen], declaration: Declaration) -> list[str]:
        """What would have to be met for a verdict, and was not."""
        return [
            " or ".join(seen.value for seen in group)
            for group in self.demands(declaration)
            if not any(met[seen] for seen in group)
        ]


def always(declaration: Declaration) -> str | None:
    """Everybody claims it."""
    return None


def needs(*capabilities: Capability) -> Claim:
    """One of the capabilities is enough."""

    def claim(declaration: Declaration) -> str | None:
        if any(declaration.has(capability) for capability in capabilities):
            return None
        return "needs " + " or ".join(capability.value.upper() for capability in capabilities)

    return claim


def needs_all(*capabilities: Capability) -> Claim:
    """All of the capabilities are needed."""

    def claim(declaration: Declaration) -> str | None:
        missing = [c.value.upper() for c in capabilities if not declaration.has(c)]
        return "needs " + " and ".join(missing) if missing else None

    return claim


def _quiescence(declaration: Declaration) -> str | None:
    if declaration.reclaim is Reclaim.RESET and not declaration.has(Capability.RESET):
        return "reclaim=reset, and no RESET to do it"
    return None


def _split(declaration: Declaration) -> str | None:
    if declaration.has(Capability.PREFIX_CACHE) and isinstance(declaration.unit, int):
        return None
    return "needs PREFIX_CACHE with a hit unit below the block, or a PrefixIndex"


def _order(declaration: Declaration) -> str | None:
    if not declaration.has(Capability.PREFIX_CACHE):
        return "needs PREFIX_CACHE"
    if declaration.windowed:
        return "victims are not judged over layer groups and windows"
    return "no victim order declared" if declaration.order is Order.NONE else None


def _events(declaration: Declaration) -> str | None:
    if not declaration.has(Capability.EVENTS):
        return "needs EVENTS"
    if declaration.windowed:
        return "no event of the contract names a layer group, or what a window has passed"
    return None


def _unwritten(declaration: Declaration) -> str | None:
    if not declaration.has(Capability.PREFIX_CACHE):
        return "needs PREFIX_CACHE"
    writes_later = declaration.has(Capability.COMMIT) and (
        declaration.publish is not Publish.RESERVATION
    )
    if writes_later or declaration.publish is Publish.RELEASE:
        return None
    if declaration.has(Capability.TRUNCATE) or declaration.has(Capability.DRAFTS):
        return None
    return "needs COMMIT, TRUNCATE, DRAFTS or publish=release: all is visible once it has slots"


def _copies(declaration: Declaration) -> str | None:
    if declaration.has(Capability.COPIES):
        return None
    if declaration.has(Capability.STORAGE, Capability.FORK):
        return None
    return "needs COPIES, or STORAGE and FORK"


_PREFIX = needs(Capability.PREFIX_CACHE)
_PASSED = ((Seen.WINDOW_PASSED,),)
_SHARED = ((Seen.GROUP_HIT, Seen.WINDOW_HIT),)
_EDGES = ((Seen.BEFORE_BLOCK_END, Seen.AT_BLOCK_END), (Seen.AT_BLOCK_END, Seen.AFTER_BLOCK_END))

LAW: dict[str, Invariant] = {
    entry.id: entry
    for entry in (
        Invariant(
            "A1", "conservation", "allocator", always, ((Seen.REUSED,), (Seen.REFUSED,)), _PASSED
        ),
        Invariant("A2", "fresh hand-out", "allocator", always, ((Seen.REUSED,),)),
        Invariant("A3", "release exactly once", "allocator", always, ((Seen.REUSED,),)),
        Invariant("A4", "refusal is harmless", "allocator", always, ((Seen.REFUSED,),)),
        Invariant("A5", "quiescence", "allocator", _quiescence, ((Seen.QUIESCED,),), _PASSED),
        Invariant(
            "A6",
            "page granularity",
            "allocator",
            _quiescence,
            ((Seen.PARTIAL_PAGE_RELEASED,), (Seen.QUIESCED,)),
        ),
        Invariant("A7", "table coherence", "allocator", always, _EDGES, _PASSED),
        Invariant(
            "C1",
            "sharers are isolated",
            "cow",
            needs(Capability.FORK, Capability.PREFIX_CACHE),
            ((Seen.FORK_THEN_WRITE, Seen.HIT),),
        ),
        Invariant("C2", "copies are complete", "cow", _copies, ((Seen.COPIED,),)),
        Invariant(
            "P1", "a hit is resident", "prefix", _PREFIX, ((Seen.HIT,),), ((Seen.WINDOW_HIT,),)
        ),
        Invariant(
            "P2",
            "key identity",
            "prefix",
            _PREFIX,
            ((Seen.HIT,), (Seen.NEAR_KEY, Seen.DIVERGED)),
            _SHARED,
        ),
        Invariant("P3", "declared hit law", "prefix", _PREFIX, ((Seen.FULL_HIT,),), _SHARED),
        Invariant(
            "P4",
            "written before read",
            "prefix",
            _unwritten,
            (
                (
                    Seen.UNWRITTEN_KEY,
                    Seen.UNPUBLISHED_KEY,
                    Seen.CUT_THEN_WRITE,
                    Seen.DRAFTS_REJECTED,
                ),
            ),
        ),
        Invariant("P5", "look-ups tell the truth", "prefix", _PREFIX, ((Seen.STALE_KEY,),)),
        Invariant(
            "P6", "splitting is invisible", "prefix", _split, ((Seen.DIVERGED,), (Seen.MUST_HIT,))
        ),
        Invariant(
            "P7",
            "pins protect",
            "prefix",
            needs_all(Capability.PREFIX_CACHE, Capability.CHUNKED),
            ((Seen.PINNED_PRESSURE,),),
        ),
        Invariant(
            "P8",
            "accounting of the cache",
            "prefix",
            needs_all(Capability.PREFIX_CACHE, Capability.COUNTERS),
            ((Seen.CACHED_COUNTED,),),
        ),
        Invariant(
            "P9", "evict contract", "prefix", needs(Capability.EVICT), ((Seen.EVICTED_ON_DEMAND,),)
        ),
        Invariant("P10", "declared order", "prefix", _order, ((Seen.POLICY_TESTED,),)),
        Invariant("P11", "duplicates", "prefix", _PREFIX, ((Seen.DUPLICATE, Seen.REMAPPED),)),
        Invariant("P12", "effectiveness", "prefix", _PREFIX, ((Seen.MUST_HIT,),)),
        Invariant(
            "E1",
            "events mirror the cache",
            "events",
            _events,
            ((Seen.MIRRORED,),),
        ),
        Invariant(
            "E2",
            "events are complete",
            "events",
            _events,
            ((Seen.MIRRORED,), (Seen.EVICTED, Seen.EVICTED_ON_DEMAND)),
        ),
    )
}
"""Every invariant that a CacheManager shows to an outsider, in the order of the law.

A8 (in-flight fence) is not among them: contract v1 has no operation that outlives its call.
"""


def of_suite(suite: str, law: Mapping[str, Invariant] = LAW) -> list[Invariant]:
    """The invariants of one suite."""
    return [entry for entry in law.values() if entry.suite == suite]
