"""Planted faults in what an index tells: what it stores, locks and frees is right.

As in `indexes`, of which this is the second half: `RadixIndex` with one answer corrupted, an error
raised where there is nothing to object to, or a count that lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvassay.harness.contract import CacheKey, Capability, IndexCounters, Match, PrefixIndex
from kvassay.harness.contract import Node as Snapshot
from kvassay.impls.faulty.index_controls import NeverSplits
from kvassay.impls.faulty.planting import Fault, planter
from kvassay.impls.radix_index import DECLARATION, Handle, RadixIndex

FAULTS: dict[str, Fault] = {}
fault = planter(FAULTS, "index-fault-", PrefixIndex, DECLARATION)


# ----------------------------------------------------------------------------------------- look-up


@fault(
    "values-from-the-leaf",
    "P1",
    "A match that ends in the first node is right, and so is every length.\n"
    "It must end in a second node: the path is told as it is climbed.",
)
class ValuesFromTheLeaf(RadixIndex):
    def match(self, key: CacheKey) -> Match:
        found = super().match(key)
        climbed = [value for node in self._path(found.handle.node) for value in node.values]
        return Match(found.length, climbed, found.handle)


@fault(
    "peek-ignores-salt",
    "P2",
    "A match keeps tenants apart; only who looks before it asks is told of another's.\n"
    "The same tokens must be peeked at under two salts.",
)
class PeekIgnoresSalt(RadixIndex):
    def peek(self, key: CacheKey) -> int:
        return super().peek(replace(key, salt=None))


@fault(
    "peek-is-no-integer",
    "P3",
    "The number is right, and compares as it should.\nIts type must be looked at.",
)
class PeekIsNoInteger(RadixIndex):
    def peek(self, key: CacheKey) -> float:  # type: ignore[override]
        return super().peek(key) / self.page_size * self.page_size


# ------------------------------------------------------------------------------------------ storing


@fault(
    "limit-forgotten",
    "P8",
    "Nothing is lost and all counts are right.\nThe index must be full, and be given more.",
)
class LimitForgotten(RadixIndex):
    def _check_room(self, num_tokens: int) -> None:
        """There is always room."""


# ------------------------------------------------------------------------------------------ locking


@fault(
    "second-lock-objects",
    "P7",
    "One lock for each handle is right, and the second is taken all the same.\n"
    "A handle must be locked twice.",
)
class SecondLockObjects(RadixIndex):
    def lock(self, handle: Handle) -> None:
        super().lock(handle)
        if handle.locks > 1:
            raise KeyError("handle: locked already")


@fault(
    "unlock-objects-after-a-change",
    "P7",
    "The lock is given back; as long as nothing else is stored, without a word.\n"
    "Something must be stored or evicted between lock and unlock.",
)
class UnlockObjectsAfterAChange(RadixIndex):
    def unlock(self, handle: Handle) -> None:
        super().unlock(handle)
        if handle.version != self._version:
            raise KeyError("handle: what it matched has changed since")


@fault(
    "unlock-of-nothing-accepted",
    "P7",
    "It changes nothing; but whoever counts its locks wrongly is never told.\n"
    "A handle must be unlocked that is not locked.",
)
class UnlockOfNothingAccepted(RadixIndex):
    def unlock(self, handle: Handle) -> None:
        if handle.locks:
            super().unlock(handle)


@fault(
    "reset-objects-after-a-lock",
    "P7",
    "The reset is done in full.\nSomething must have been locked before it, and be unlocked.",
)
class ResetObjectsAfterALock(RadixIndex):
    def lock(self, handle: Handle) -> None:
        super().lock(handle)
        self.__dict__["_locked"] = True

    def reset(self) -> None:
        super().reset()
        if self.__dict__.pop("_locked", False):
            raise ValueError("reset: a lock is held")


# ----------------------------------------------------------------------------------------- eviction


@fault(
    "evict-names-one-twice",
    "P9",
    "What is freed is right; but the caller frees one slot twice.\nAnything must be evicted.",
)
class EvictNamesOneTwice(RadixIndex):
    def evict(self, num_tokens: int) -> list[int]:
        freed = super().evict(num_tokens)
        return [*freed, *freed[-1:]]


# ----------------------------------------------------------------------------------------- the walk


@fault(
    "walk-numbers-inner-nodes-alone",
    "P8",
    "Parents are found by their ids.\nTwo leaves must be there: both have the id that leaves have.",
)
class WalkNumbersInnerNodesAlone(RadixIndex):
    def walk(self) -> list[Snapshot]:
        nodes = super().walk()
        parents = {node.parent for node in nodes}
        return [node if node.id in parents else replace(node, id=0) for node in nodes]


@fault(
    "walk-shows-what-came-second",
    "P11 P8",
    "A match returns the values that were there first.\n"
    "A stored prefix must be inserted again, and the walk be looked at.",
)
class WalkShowsWhatCameSecond(RadixIndex):
    def __init__(self, capacity: int | None, page_size: int) -> None:
        super().__init__(capacity, page_size)
        self._offered: dict[int, int] = {}

    def insert(self, key: CacheKey, values: Sequence[int]) -> int:
        there = super().insert(key, values)
        kept = self._path_values(self._descend(self._root(key), self._whole_pages(key))[0])
        self._offered.update(zip(kept, self._checked_values(key, values), strict=False))
        return there

    def walk(self) -> list[Snapshot]:
        return [
            replace(node, values=tuple(self._offered.get(value, value) for value in node.values))
            for node in super().walk()
        ]


@fault(
    "walk-without-parents",
    "P2 P8",
    "Every node is there, with its own tokens and values.\nOne must hang below another.",
)
class WalkWithoutParents(RadixIndex):
    def walk(self) -> list[Snapshot]:
        return [replace(node, parent=None) for node in super().walk()]


@fault(
    "walk-leaves-tenants-out",
    "P8 P12",
    "Without a salt everything is shown.\nA salted key must be stored that nobody has locked.",
)
class WalkLeavesTenantsOut(RadixIndex):
    def walk(self) -> list[Snapshot]:
        salted = [root for space, root in self._roots.items() if space[0]]
        hidden = {id for root in salted for id in self._unlocked_below(root)}
        return [node for node in super().walk() if node.id not in hidden]

    def _unlocked_below(self, root: object) -> set[int]:
        found, below = set(), [root]
        while below:
            node = below.pop()
            below += node.children.values()  # type: ignore[attr-defined]
            found |= set() if node.locks else {node.id}  # type: ignore[attr-defined]
        return found


@fault(
    "walk-shows-locks-where-they-end",
    "P7 P8",
    "The whole path is protected.\nA locked path must have two nodes, and the walk be looked at.",
    declaration=replace(DECLARATION, capabilities=DECLARATION.capabilities - {Capability.COUNTERS}),
)
class WalkShowsLocksWhereTheyEnd(RadixIndex):
    def walk(self) -> list[Snapshot]:
        nodes = super().walk()
        locked = {node.parent for node in nodes if node.locks}
        return [replace(node, locks=0) if node.id in locked else node for node in nodes]


# ------------------------------------------------------------------------------------------- counts


@fault(
    "total-in-pages",
    "P8",
    "With pages of one token it is the same.\nA page must have more than one.",
)
class TotalInPages(RadixIndex):
    def counters(self) -> IndexCounters:
        told = super().counters()
        return replace(told, total=told.total // self.page_size)


@fault(
    "protected-as-far-as-matched",
    "P8",
    "Where a lock ends at the end of a node, the count is right; elsewhere nobody need know.\n"
    "It must end inside one, which the walk shows as locked in full.",
    declaration=replace(DECLARATION, capabilities=DECLARATION.capabilities - {Capability.EVICT}),
)
class ProtectedAsFarAsMatched(NeverSplits):
    def __init__(self, capacity: int | None, page_size: int) -> None:
        super().__init__(capacity, page_size)
        self._beyond: dict[Handle, int] = {}

    def match(self, key: CacheKey) -> Match:
        found = super().match(key)
        self._beyond[found.handle] = len(self._path_values(found.handle.node)) - found.length
        return found

    def counters(self) -> IndexCounters:
        told = super().counters()
        locked = [beyond for handle, beyond in self._beyond.items() if handle.locks]
        free = locked[0] if len(locked) == 1 else 0
        return replace(told, evictable=told.evictable + free, protected=told.protected - free)
