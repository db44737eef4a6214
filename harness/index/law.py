"""The law as an index shows it, and what a campaign must have met for a verdict or to be healthy.

The ids are those of the law for cache managers; what they need, and how they can be seen to be
broken, differs. An index tells exactly what it stores and frees, so each id has one meaning here:

=== ============================================================================================
A4  an insert is refused only for want of room, and then changes nothing
P1  a match returns the values that were inserted for its positions
P2  never those of another key: tokens, whole prefix, salt, adapter, contents, number of resets
P3  a match is the longest stored prefix, in whole pages, and no more
P4  what a refused insert offered is never returned
P5  what was evicted or forgotten in a reset is never returned
P6  splitting an edge changes no match, no lock and no recency
P7  what is locked is not evicted, and an unlock gives back exactly what a lock took
P8  counts are the sums over what is stored; evictable is what evict really frees
P9  evict frees what was asked for as far as it can, tells what, and leaves nothing out of reach
P10 victims follow the declared order
P11 of what is inserted twice, the first values stay, and the second are the caller's
P12 what was inserted and not evicted is found
=== ============================================================================================
"""

from __future__ import annotations

from kvassay.harness.contract import Capability, Declaration, Order
from kvassay.harness.evidence import Seen
from kvassay.harness.health import Floor
from kvassay.harness.invariants import Claim, Invariant, always, needs, needs_all

SUITE = "index"


def _order(declaration: Declaration) -> str | None:
    if not declaration.has(Capability.EVICT):
        return "needs EVICT"
    return "no victim order declared" if declaration.order is Order.NONE else None


_REACHED: dict[str, tuple[str, Claim, tuple[tuple[Seen, ...], ...]]] = {
    "A4": ("refusal is harmless", always, ((Seen.REFUSED,),)),
    "P1": ("a hit is resident", always, ((Seen.HIT,),)),
    "P2": ("key identity", always, ((Seen.HIT,), (Seen.NEAR_KEY, Seen.DIVERGED))),
    "P3": ("declared hit law", always, ((Seen.FULL_HIT,), (Seen.DIVERGED,))),
    "P4": ("written before read", always, ((Seen.REFUSED_KEY,),)),
    "P5": (
        "look-ups tell the truth",
        needs(Capability.EVICT, Capability.RESET),
        ((Seen.STALE_KEY,),),
    ),
    "P6": ("splitting is invisible", always, ((Seen.DIVERGED,), (Seen.MUST_HIT,))),
    "P7": (
        "locks protect",
        needs_all(Capability.LOCK, Capability.EVICT),
        ((Seen.PINNED_PRESSURE,), (Seen.LOCKED_SPLIT,), (Seen.UNLOCKED,)),
    ),
    "P8": (
        "accounting of the cache",
        needs(Capability.COUNTERS, Capability.WALK),
        ((Seen.COUNTED, Seen.WALKED),),
    ),
    "P9": (
        "evict contract",
        needs(Capability.EVICT),
        ((Seen.EVICT_LESS,), (Seen.EVICT_EXACT,), (Seen.EVICT_MORE,), (Seen.EVICTED_ON_DEMAND,)),
    ),
    "P10": ("declared order", _order, ((Seen.POLICY_TESTED,),)),
    "P11": ("duplicates", always, ((Seen.DUPLICATE,),)),
    "P12": ("effectiveness", always, ((Seen.MUST_HIT,),)),
}

LAW: dict[str, Invariant] = {
    id: Invariant(id, title, SUITE, claim, reached)
    for id, (title, claim, reached) in _REACHED.items()
}
"""Every invariant that an index shows to an outsider, in the order of the law."""

FLOORS = (
    Floor("refusals", Seen.REFUSED, 0.01),
    Floor("hits", Seen.HIT, 0.08),
    Floor("splits", Seen.DIVERGED, 0.03),
    Floor("keys that do not fill a page", Seen.UNALIGNED_KEY, 0.08),
    Floor("duplicates", Seen.DUPLICATE, 0.03),
    Floor("locks", Seen.LOCKED, 0.02, Capability.LOCK),
    Floor("splits below locks", Seen.LOCKED_SPLIT, 0.003, Capability.LOCK),
    Floor("evictions", Seen.EVICTED_ON_DEMAND, 0.05, Capability.EVICT),
    Floor("evictions of a part", Seen.EVICT_LESS, 0.02, Capability.EVICT),
    Floor("evictions of all, exactly", Seen.EVICT_EXACT, 0.01, Capability.EVICT),
    Floor("evictions of more than there is", Seen.EVICT_MORE, 0.01, Capability.EVICT),
)
"""Shares of all operations below which a campaign is a failed one."""
