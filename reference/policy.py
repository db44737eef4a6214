"""Replacement policies: which of the idle cached blocks goes first.

A policy is a rank computed from the accesses that an outsider can observe; the block with the
lowest rank is the next victim (invariant P10). A prefix tree drops only leaves, so a block is
never due before what hangs below it: its rank is raised to the highest one in its subtree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvassay.harness.contract import Order, Tie

Rank = tuple[int, ...]


@dataclass(slots=True)
class Access:
    """The observed history of one cached block."""

    born: int = 0
    """Operation that published it."""
    stamp: int = 0
    """Last operation that counts as an access."""
    latest: int = 0
    """Last operation that may have been one: a block due by its `stamp` may have been renewed."""
    count: int = 0
    """Number of accesses since publication."""
    doubtful: int = 0
    """Number of operations since that may have been accesses as well."""
    depth: int = 0
    """Its logical index in the prefix."""
    priority: int = 0
    tag: int = -1
    """Tag of the last token that was published from it."""


def rank(order: Order, access: Access) -> Rank:
    """Sort key of the policy; lower goes first. Ties are settled by `goes_before`."""
    if order is Order.LRU:
        return (access.stamp,)
    if order is Order.LFU:
        return (access.count, access.stamp)
    if order is Order.FIFO:
        return (access.born,)
    if order is Order.FILO:
        return (-access.born,)
    if order is Order.PRIORITY:
        return (access.priority, access.stamp)
    raise ValueError(f"{order!r} ranks nothing")


def goes_before(tie: Tie, one: tuple[Rank, int], other: tuple[Rank, int]) -> bool:
    """Whether (rank, depth) `one` must be evicted before `other`; False also when undecided."""
    if one[0] != other[0]:
        return one[0] < other[0]
    if tie is Tie.TAIL_FIRST:
        return one[1] > other[1]
    if tie is Tie.HEAD_FIRST:
        return one[1] < other[1]
    return False


def leaf_ranks(
    ranks: Mapping[int, Rank | None], children: Mapping[int, Iterable[int]], by_depth: Sequence[int]
) -> dict[int, Rank | None]:
    """Ranks raised to the highest in each block's subtree; None is 'not evictable' and wins.

    `by_depth` lists the blocks deepest first, so that children are settled before parents.
    """
    settled: dict[int, Rank | None] = {}
    for block in by_depth:
        highest = ranks[block]
        for child in children.get(block, ()):
            below = settled.get(child)
            if highest is None or child not in settled:
                continue
            highest = None if below is None else max(highest, below)
        settled[block] = highest
    return settled
