"""Which victim a declared policy must choose, judged from outside (invariants P9 and P10).

Evictions are not announced. A cached idle block that is handed out again, or is missing at a
look-up right after an `evict`, has *gone*; a block that is hit later in the same tenancy has
*stayed*. At every operation that may evict, the ranks of the idle cached blocks are noted; a
block that went although another, due before it, stayed proves a wrong order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from kvassay.harness.contract import Declaration, Granularity, Order
from kvassay.reference.blocks import Blocks
from kvassay.reference.policy import Access, Rank, goes_before, leaf_ranks, rank

Tenant = tuple[int, int]
"""A block in one tenancy."""
KEPT = 4
"""How many evicting operations are remembered."""


@dataclass(slots=True)
class Noted:
    """A block that was idle and cached when an operation could evict."""

    own: Rank
    due: Rank | None
    """By its latest possible access, raised to the highest rank below it; None while something
    below cannot be evicted."""
    depth: int
    idle_since: int


@dataclass(slots=True)
class Moment:
    """One operation that may have evicted, and what is known of its victims."""

    time: int
    idle: dict[Tenant, Noted]
    gone: set[Tenant] = field(default_factory=set)
    stayed: set[Tenant] = field(default_factory=set)
    allowance: int | None = None
    """For `evict`: the number of blocks that it reported as freed."""
    missing: set[Tenant] = field(default_factory=set)
    """For `evict`: blocks that look-ups found missing afterwards."""
    pressure_before: int = 0
    """The evicting operation before this one."""


@dataclass(frozen=True, slots=True)
class WrongVictim:
    """Block `gone` was evicted in operation `time` although block `stayed` was due before it."""

    time: int
    gone: int
    stayed: int


class EvictionWatch:
    """Remembers the last evicting operations and convicts a wrong order."""

    def __init__(self, declaration: Declaration, blocks: Blocks) -> None:
        self.order = declaration.order
        self.tie = declaration.tie
        self.leaves = declaration.granularity is Granularity.LEAF and self.order is not Order.NONE
        self.blocks = blocks
        self.moments: deque[Moment] = deque(maxlen=KEPT)
        self._chain: dict[int, tuple[int | None, int | None]] = {}
        self._times: list[int] = []
        self.compared = 0
        """How often a victim was compared with a block that stayed."""

    # ---------------------------------------------------------------------------- observations

    def link(self, block: int, tags: Sequence[int], start: int, size: int) -> None:
        """`block` holds positions [start, start + size) of `tags`, as far as they are known."""
        stop = start + size
        above = tags[start - 1] if start else None
        self._chain[block] = (above, tags[stop - 1] if stop <= len(tags) else None)

    def open(self, time: int, pinned: Sequence[int], pressure_before: int) -> Moment:
        """An operation at `time` may evict; `pinned` are the blocks that it hits itself."""
        if self.moments and self.moments[-1].time == time:
            return self.moments[-1]
        self._times.append(time)
        self.may_renew(pinned, time)
        moment = Moment(time, self._note(pinned), pressure_before=pressure_before)
        self.moments.append(moment)
        return moment

    def went(self, block: int) -> WrongVictim | None:
        """`block` was found evicted by the operation that was opened last."""
        moment = self.moments[-1]
        tenant = (block, self.blocks.tenancy[block])
        if tenant not in moment.idle:
            return None
        moment.gone.add(tenant)
        return self._wrong(moment, [tenant], moment.stayed)

    def stay(self, hit: Iterable[int]) -> WrongVictim | None:
        """The blocks of a hit were resident all the time since they were published."""
        tenants = [(block, self.blocks.tenancy.get(block, 0)) for block in hit]
        for moment in self.moments:
            known = [tenant for tenant in tenants if tenant in moment.idle]
            moment.stayed.update(known)
            wrong = self._wrong(moment, moment.gone, known)
            if wrong is not None:
                return wrong
        return None

    def forget(self) -> None:
        """A reset: the past says nothing about what comes."""
        self.moments.clear()
        self._times.clear()
        self._chain.clear()

    # --------------------------------------------------------------------------------- verdict

    def _wrong(
        self, moment: Moment, gone: Iterable[Tenant], stayed: Iterable[Tenant]
    ) -> WrongVictim | None:
        if self.order is Order.NONE:
            return None
        stayers = list(stayed)
        for victim in gone:
            for other in stayers:
                self.compared += 1
                if self._due_before(moment.idle[other], moment.idle[victim]):
                    return WrongVictim(moment.time, victim[0], other[0])
        return None

    def _due_before(self, other: Noted, victim: Noted) -> bool:
        """Whether `other` had to go first at every moment at which `victim` can have gone."""
        if other.due is None or self._evicted_between(victim.idle_since, other.idle_since):
            return False
        return goes_before(self.tie, (other.due, other.depth), (victim.own, victim.depth))

    def _evicted_between(self, start: int, stop: int) -> bool:
        """Whether something may have been evicted after `start` and before `stop`.

        Then `other`, idle only since `stop`, may have been in use when the victim was chosen.
        """
        at = bisect_right(self._times, start)
        return at < len(self._times) and self._times[at] < stop

    def _note(self, pinned: Sequence[int]) -> dict[Tenant, Noted]:
        blocks, order = self.blocks, self.order
        published = blocks.published
        if order is Order.NONE:
            return {
                (block, blocks.tenancy[block]): Noted((), (), 0, 0)
                for block in published
                if block not in blocks.users and block not in pinned
            }
        by_depth = sorted(published, key=lambda block: -published[block].depth)
        own: dict[int, Rank | None] = {
            block: None
            if block in blocks.users or block in pinned
            else rank(order, published[block])
            for block in by_depth
        }
        latest = {
            block: None if ranked is None else rank(order, _latest(published[block]))
            for block, ranked in own.items()
        }
        due = leaf_ranks(latest, self._children(by_depth), by_depth)
        return {
            (block, blocks.tenancy[block]): Noted(
                ranked, due[block], published[block].depth, blocks.idle_since.get(block, 0)
            )
            for block, ranked in own.items()
            if ranked is not None
        }

    def may_renew(self, path: Sequence[int], now: int) -> None:
        """An access of part of a leaf may renew all of it: what hangs below `path` unbranched.

        Only where whole leaves are evicted: a tree that splits a leaf to answer a look-up may
        give the remainder the time of the look-up.
        """
        if not self.leaves:
            return
        published = self.blocks.published
        children = self._children(sorted(published, key=lambda block: -published[block].depth))
        for index, block in enumerate(path):
            onward = path[index + 1 : index + 2]
            if onward and onward[0] in published and published[onward[0]].born < now:
                continue  # the path goes on in an older node: nothing was split here
            below = [child for child in children.get(block, ()) if child not in path]
            while below:
                self.blocks.may_stamp(below, now)
                below = [child for parent in below for child in children.get(parent, ())]

    def _children(self, by_depth: Sequence[int]) -> dict[int, list[int]]:
        ending: dict[int, list[int]] = {}
        for block in by_depth:
            end = self._chain[block][1]
            if end is not None:
                ending.setdefault(end, []).append(block)
        children: dict[int, list[int]] = {}
        for block in by_depth:
            above = self._chain[block][0]
            if above is not None:
                for parent in ending.get(above, ()):
                    children.setdefault(parent, []).append(block)
        return children


def _latest(access: Access) -> Access:
    """The same history, as if everything that may have been an access had been one."""
    return replace(access, stamp=access.latest, count=access.count + access.doubtful)
