"""Planted faults of the prefix index: each is `RadixIndex` with one thing corrupted.

A fault lists the invariants by which it may be convicted; anything else is a kill for the wrong
reason. Importing this module registers each as ``index-fault-<name>``; `index_controls` holds what
must not be convicted.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace

from kvassay.harness.contract import (
    CacheKey,
    Match,
    OutOfBlocks,
    PrefixIndex,
)
from kvassay.impls.faulty.planting import Fault, planter
from kvassay.impls.radix_index import (
    DECLARATION,
    Handle,
    Node,
    RadixIndex,
)
from kvassay.impls.radix_key import Elements

FAULTS: dict[str, Fault] = {}
fault = planter(FAULTS, "index-fault-", PrefixIndex, DECLARATION)


# --------------------------------------------------------------------------------------- splitting


@fault(
    "split-loses-lock",
    "P6 P7 P8",
    "The lower part keeps its locks, and while it is there nothing above it can go.\n"
    "It must be unlocked, or the walk be looked at, after a split.",
)
class SplitLosesLock(RadixIndex):
    def _split(self, node: Node, count: int) -> Node:
        upper = super()._split(node, count)
        upper.locks = 0
        return upper


@fault(
    "split-moves-holder",
    "P6 P7 P8",
    "Without a lock nobody notices which half is the new one.\n"
    "A locked path must be split: its handle then speaks of the upper half alone.",
)
class SplitMovesHolder(RadixIndex):
    def _split(self, node: Node, count: int) -> Node:
        lower = self._new_node(node, node.elements[count:], node.values[count:])
        lower.children, lower.locks, lower.used = node.children, node.locks, node.used
        for child in lower.children.values():
            child.parent = lower
        node.elements, node.values = node.elements[:count], node.values[:count]
        node.children = {self._page(lower.elements): lower}
        return node


@fault(
    "split-renews-rest",
    "P6 P10",
    "The rest of the edge is cached either way.\n"
    "Another key must be older than the look-up and newer than the edge, and one leaf go.",
    modelled_on="B42",
)
class SplitRenewsRest(RadixIndex):
    def _split(self, node: Node, count: int) -> Node:
        node.used = self._clock + 1
        return super()._split(node, count)


@fault(
    "split-ages-rest",
    "P6 P10",
    "The rest of the edge is the older half anyway.\n"
    "Another key must be older still, and one leaf go.",
)
class SplitAgesRest(RadixIndex):
    def _split(self, node: Node, count: int) -> Node:
        upper = super()._split(node, count)
        node.used = 0
        return upper


@fault(
    "split-wrong-key",
    "P6 P8 P9 P12",
    "The lower half is there and counted; only the way to it is wrong.\n"
    "What is behind the split must be looked up.",
    modelled_on="B44",
)
class SplitWrongKey(RadixIndex):
    def _split(self, node: Node, count: int) -> Node:
        first = self._page(node.elements)
        upper = super()._split(node, count)
        upper.children = {first: node}
        return upper


@fault(
    "split-loses-rest",
    "P6 P8 P9 P12",
    "The look-up that splits is answered in full.\nThe rest of the edge must be asked for.",
)
class SplitLosesRest(RadixIndex):
    def _split(self, node: Node, count: int) -> Node:
        upper = super()._split(node, count)
        upper.children.clear()
        return upper


@fault(
    "split-repeats-values",
    "P1 P2 P6 P8",
    "Lengths are right, and so are the values of the upper half.\nBoth halves must be matched.",
)
class SplitRepeatsValues(RadixIndex):
    def _split(self, node: Node, count: int) -> Node:
        values = list(node.values)
        upper = super()._split(node, count)
        node.values = values[: len(node.elements)]
        return upper


@fault(
    "split-counts-twice",
    "P7 P8",
    "Nothing is lost, and without a lock no count is wrong.\n"
    "A locked edge must be split, and the counts be looked at.",
)
class SplitCountsTwice(RadixIndex):
    def _split(self, node: Node, count: int) -> Node:
        if node.locks:
            self._protected += count
        return super()._split(node, count)


# -------------------------------------------------------------------------------------------- keys


@fault(
    "match-unaligned",
    "P3",
    "With pages of one token there is nothing to round.\n"
    "A key must leave a stored one inside a page.",
)
class MatchUnaligned(RadixIndex):
    def match(self, key: CacheKey) -> Match:
        found = super().match(key)
        extra = min(len(key.tokens) - found.length, self.page_size - 1)
        if not found.length or not extra:
            return found
        values = [*found.values, *found.values[-extra:]]
        return Match(found.length + extra, values, found.handle)


@fault(
    "short-key-stored",
    "P3 P8",
    "Whole pages are stored and found as they should be.\nA key must be shorter than a page.",
    modelled_on="B47",
)
class ShortKeyStored(RadixIndex):
    def _whole_pages(self, key: CacheKey) -> Elements:
        padded = [*key.tokens, *[0] * self.page_size][: self.page_size]
        return super()._whole_pages(key) or array("Q", padded)


@fault(
    "salt-ignored",
    "P2",
    "A single tenant never notices.\nThe same tokens must come under two salts.",
)
class SaltIgnored(RadixIndex):
    def _root(self, key: CacheKey) -> Node:
        return super()._root(replace(key, salt=None))

    def _attach(self, key: CacheKey, node: Node, elements: Elements, values: list[int]) -> Node:
        return super()._attach(replace(key, salt=None), node, elements, values)


@fault(
    "salt-is-adapter",
    "P2",
    "Salts among themselves, and adapters among themselves, are kept apart.\n"
    "A salt and an adapter must have the same name.",
)
class SaltIsAdapter(RadixIndex):
    def _root(self, key: CacheKey) -> Node:
        return super()._root(self._mixed(key))

    def _attach(self, key: CacheKey, node: Node, elements: Elements, values: list[int]) -> Node:
        return super()._attach(self._mixed(key), node, elements, values)

    @staticmethod
    def _mixed(key: CacheKey) -> CacheKey:
        return replace(key, salt=(key.salt or "") + (key.adapter or ""), adapter=None)


@fault(
    "content-ignored",
    "P2",
    "Text is told apart.\nTwo contents must stand behind the same placeholder tokens.",
)
class ContentIgnored(RadixIndex):
    def _whole_pages(self, key: CacheKey) -> Elements:
        return super()._whole_pages(replace(key, spans=()))


@fault(
    "parent-forgotten",
    "P2",
    "Keys that differ behind their first page are told apart.\n"
    "Two first pages must end with the same token.",
)
class ParentForgotten(RadixIndex):
    def _whole_pages(self, key: CacheKey) -> Elements:
        seen: dict[int, Elements] = self.__dict__.setdefault("_seen", {})
        elements, size = super()._whole_pages(key), self.page_size
        if elements:
            elements[:size] = seen.setdefault(elements[size - 1], elements[:size])
        return elements


# ------------------------------------------------------------------------------------------ storing


@fault(
    "insert-overwrites",
    "P1 P11",
    "The new values hold the same KV; but the caller goes on to free them.\n"
    "A stored prefix must be inserted again.",
)
class InsertOverwrites(RadixIndex):
    def insert(self, key: CacheKey, values: Sequence[int]) -> int:
        there = super().insert(key, values)
        node = self._descend(self._root(key), self._whole_pages(key))[0]
        numbers = self._checked_values(key, values)
        for each in reversed(list(self._path(node))):
            each.values, numbers = numbers[: len(each.values)], numbers[len(each.values) :]
        return there


@fault(
    "insert-counts-new",
    "P3 P12 P2 P5",
    "A key that is half there has two equal halves.\nAny other key will do.",
)
class InsertCountsNew(RadixIndex):
    def insert(self, key: CacheKey, values: Sequence[int]) -> int:
        return len(self._whole_pages(key)) - super().insert(key, values)


@fault(
    "refused-insert-stays",
    "A4 P4",
    "The caller is told that there is no room, and frees its values.\n"
    "The refused key must be looked up.",
)
class RefusedInsertStays(RadixIndex):
    def insert(self, key: CacheKey, values: Sequence[int]) -> int:
        limit, self.capacity = self.capacity, None
        there = super().insert(key, values)
        self.capacity = limit
        if limit is not None and self._total * self.page_size > limit:
            raise OutOfBlocks("stored all the same")
        return there


@fault(
    "insert-refused-early",
    "A4",
    "Far from the limit everything is stored.\nAn insert must fill the index to its last page.",
)
class InsertRefusedEarly(RadixIndex):
    def _check_room(self, num_tokens: int) -> None:
        super()._check_room(num_tokens + self.page_size if num_tokens else 0)


@fault(
    "refused-insert-stores-what-fits",
    "A4 P4 P8 P9",
    "The caller is told that there is no room for the whole, and frees all of its values.\n"
    "A part of the key must fit, and be looked up.",
)
class RefusedInsertStoresWhatFits(RadixIndex):
    def insert(self, key: CacheKey, values: Sequence[int]) -> int:
        try:
            return super().insert(key, values)
        except OutOfBlocks:
            head = replace(key, tokens=key.tokens[: self.page_size], spans=())
            super().insert(head, list(values)[: self.page_size])
            raise


@fault(
    "insert-overwrites-last-page",
    "P1 P11",
    "A key that is stored for the first time keeps its values.\n"
    "It must be inserted again, and the end of it be matched.",
)
class InsertOverwritesLastPage(RadixIndex):
    def insert(self, key: CacheKey, values: Sequence[int]) -> int:
        there = super().insert(key, values)
        elements = self._whole_pages(key)
        if elements and there == len(elements):
            node = self._descend(self._root(key), elements)[0]
            last = self._checked_values(key, values)[there - self.page_size : there]
            node.values[-self.page_size :] = last
        return there


@fault(
    "insert-evicts",
    "P8 P9 P12",
    "There is always room, and nobody is told whose values were given up.\nThe index must be full.",
)
class InsertEvicts(RadixIndex):
    def _check_room(self, num_tokens: int) -> None:
        try:
            super()._check_room(num_tokens)
        except OutOfBlocks:
            self.evict(num_tokens)


# ------------------------------------------------------------------------------------------ locking


@fault(
    "unlock-unchecked",
    "P7 P8",
    "Who locks before unlocking never notices.\n"
    "One unlock too many leaves a debt that voids somebody else's lock.",
)
class UnlockUnchecked(RadixIndex):
    def unlock(self, handle: Handle) -> None:
        handle.locks -= 1
        self._add_locks(handle.node, -1)


@fault(
    "unlock-for-all",
    "P7 P8",
    "One reader at a time is served well.\nTwo must hold the same path, and one leave.",
)
class UnlockForAll(RadixIndex):
    def unlock(self, handle: Handle) -> None:
        super().unlock(handle)
        self._add_locks(handle.node, -handle.node.locks)

    def _add_locks(self, node: Node, number: int) -> None:
        for each in self._path(node):
            before = each.locks
            each.locks = max(0, each.locks + number)
            self._protected += (bool(each.locks) - bool(before)) * len(each.elements)


@fault(
    "lock-skips-ancestors",
    "P7 P8",
    "What is above a locked node cannot go as long as that is there.\n"
    "The counts, the walk, or a split must show it.",
)
class LockSkipsAncestors(RadixIndex):
    def _add_locks(self, node: Node, number: int) -> None:
        node.locks += number
        if node.locks == max(number, 0) and node.parent is not None:
            self._protected += number * len(node.elements)


# ----------------------------------------------------------------------------------------- eviction


@fault(
    "evict-ignores-locks",
    "P7",
    "Locked leaves are mostly the most recent ones.\nMore must be asked for than is unlocked.",
)
class EvictIgnoresLocks(RadixIndex):
    def _is_evictable_leaf(self, node: Node) -> bool:
        return node.parent is not None and not node.children


@fault(
    "evict-inner-node",
    "P9",
    "The oldest node is mostly a leaf.\n"
    "A node must be older than any leaf; then what hangs below it is out of reach.",
)
class EvictInnerNode(RadixIndex):
    def _is_evictable_leaf(self, node: Node) -> bool:
        return node.parent is not None and not node.locks

    def _rank(self, leaf: Node) -> int:
        return leaf.id

    def _shorten(self, leaf: Node, num_tokens: int) -> list[int]:
        return super()._shorten(leaf, num_tokens) if leaf.elements else []


@fault(
    "evict-too-much",
    "P9",
    "The values returned are those that went.\nLess than everything must be asked for.",
)
class EvictTooMuch(RadixIndex):
    def evict(self, num_tokens: int) -> list[int]:
        return super().evict(num_tokens + self.page_size)


@fault(
    "evict-too-little",
    "P8 P9",
    "One page is freed as it should be.\nMore than one must be asked for.",
)
class EvictTooLittle(RadixIndex):
    def evict(self, num_tokens: int) -> list[int]:
        return super().evict(max(1, num_tokens - self.page_size))


@fault(
    "evict-most-recent",
    "P10",
    "Any leaf makes room.\nTwo leaves must be there and one of them go.",
)
class EvictMostRecent(RadixIndex):
    def _rank(self, leaf: Node) -> int:
        return -leaf.used


@fault(
    "evict-first-in",
    "P10",
    "Leaves that are not used again go in the right order.\n"
    "An old one must be used again, and still go first.",
    modelled_on="B79",
)
class EvictFirstIn(RadixIndex):
    def _rank(self, leaf: Node) -> int:
        return leaf.id


@fault(
    "evicted-tail-stays",
    "P5 P9",
    "Leaves that go whole are gone.\nA part of one must be evicted, and looked up.",
)
class EvictedTailStays(RadixIndex):
    def _shorten(self, leaf: Node, num_tokens: int) -> list[int]:
        elements, values = leaf.elements[:], leaf.values[:]
        freed = super()._shorten(leaf, num_tokens)
        if leaf.elements:
            leaf.elements, leaf.values = elements, values
        return freed


@fault(
    "reset-keeps-salted",
    "P5 P8 P9",
    "Without salts everything is forgotten.\nA salted key must be looked up after a reset.",
)
class ResetKeepsSalted(RadixIndex):
    def reset(self) -> None:
        kept = {space: root for space, root in self._roots.items() if space[0]}
        super().reset()
        self._roots = kept
