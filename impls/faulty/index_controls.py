"""Controls of the prefix index: correct, but with unusual habits, which must not be convicted.

Each is `RadixIndex` with one habit changed and, where the contract has a word for it, declared.
Importing this module registers each as ``index-control-<name>``.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import TypeVar

from kvassay.harness.contract import (
    CacheKey,
    Capability,
    Declaration,
    Granularity,
    Match,
    Order,
    PrefixIndex,
)
from kvassay.harness.contract import Node as Snapshot
from kvassay.harness.registry import implementation
from kvassay.impls.radix_index import DECLARATION, Handle, Node, RadixIndex

CONTROLS: dict[str, type[RadixIndex]] = {}
Control = TypeVar("Control", bound=type[RadixIndex])


def control(name: str, declaration: Declaration) -> Callable[[Control], Control]:
    """Enter a class into `CONTROLS` and register it as ``index-control-<name>``."""

    def plant(build: Control) -> Control:
        CONTROLS[name] = build
        named = f"index-control-{name}"
        return implementation(named, kind=PrefixIndex, declaration=declaration)(build)

    return plant


WHOLE_LEAVES = replace(DECLARATION, granularity=Granularity.LEAF)
UNORDERED = replace(DECLARATION, order=Order.NONE, stamps=frozenset())
UNLOCKED = replace(
    DECLARATION,
    capabilities=DECLARATION.capabilities - {Capability.LOCK, Capability.VALIDATES_INPUT},
)


@control("whole-leaves", WHOLE_LEAVES)
class WholeLeaves(RadixIndex):
    """Evicts a leaf whole, however little is asked for."""

    def _shorten(self, leaf: Node, num_tokens: int) -> list[int]:
        return super()._shorten(leaf, len(leaf.elements))


@control("renews-leaf", WHOLE_LEAVES)
class RenewsLeaf(WholeLeaves):
    """Renews a whole leaf when a part of it is used, as its granularity allows."""

    def _split(self, node: Node, count: int) -> Node:
        node.used = self._clock + 1
        return super()._split(node, count)


@control("never-splits", WHOLE_LEAVES)
class NeverSplits(WholeLeaves):
    """Splits nothing for a look-up: a lock protects the rest of the edge as well."""

    def match(self, key: CacheKey) -> Match:
        node, _, found = self._follow(self._root(key), self._whole_pages(key))
        self._touch(node)
        return Match(found, self._path_values(node)[:found], Handle(node, self._version))


@control("random-leaves", UNORDERED)
class RandomLeaves(RadixIndex):
    """Evicts any leaf, by a seeded draw; declares no order."""

    def __init__(self, capacity: int | None, page_size: int) -> None:
        super().__init__(capacity, page_size)
        self._random = random.Random(page_size)

    def _rank(self, leaf: Node) -> int:
        return self._random.randrange(100)


@control("fifo", replace(UNORDERED, order=Order.FIFO))
class Fifo(RadixIndex):
    """Evicts the leaf that was stored first, however often it was used since."""

    def _touch(self, node: Node) -> None:
        self._clock += 1
        for each in self._path(node):
            each.used = each.used or self._clock


@control("filo", replace(UNORDERED, order=Order.FILO))
class Filo(Fifo):
    """Evicts the leaf that was stored last."""

    def _rank(self, leaf: Node) -> int:
        return -leaf.used


@control("lfu", replace(DECLARATION, order=Order.LFU))
class Lfu(RadixIndex):
    """Evicts the leaf that was used least often; of several, the one used longest ago."""

    def __init__(self, capacity: int | None, page_size: int) -> None:
        super().__init__(capacity, page_size)
        self._uses: Counter[int] = Counter()

    def _touch(self, node: Node) -> None:
        super()._touch(node)
        self._uses.update(each.id for each in self._path(node))

    def _split(self, node: Node, count: int) -> Node:
        upper = super()._split(node, count)
        self._uses[upper.id] = self._uses[node.id]
        return upper

    def _rank(self, leaf: Node) -> int:
        # Accesses of one leaf are at most as many as there were in all.
        return self._uses[leaf.id] * (self._clock + 1) + leaf.used


@control("no-locks", UNLOCKED)
class NoLocks(RadixIndex):
    """Claims no locks, and so has no handles."""

    def match(self, key: CacheKey) -> Match:
        found = super().match(key)
        return Match(found.length, found.values)


@control("bare", Declaration())
class Bare(NoLocks):
    """Claims nothing beyond `match` and `insert`."""


@control("strict-handles", DECLARATION)
class StrictHandles(RadixIndex):
    """A match makes the handles of earlier ones void, unless they are locked."""

    def match(self, key: CacheKey) -> Match:
        self._version += 1
        return super().match(key)


@control("walks-roots", DECLARATION)
class WalksRoots(RadixIndex):
    """Shows its roots as nodes without tokens."""

    def walk(self) -> list[Snapshot]:
        above: dict[Hashable, Node | None] = {node.id: node.parent for node in self._nodes()}
        shown = [
            replace(node, parent=root.id) if (root := above[node.id]) is not None else node
            for node in super().walk()
        ]
        return [Snapshot(root.id, None, (), ()) for root in self._roots.values()] + shown
