"""Planted faults in the built-in `radix` manager: pins, splits, promises and events.

What the hash-block cache of `managers` has not: look-ups that pin before anything is reserved, hits
that end inside a block, and events. The class that is written is the manager, or its tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvassay.harness.contract import CacheEvent, CacheKey, CacheManager, EventKind
from kvassay.harness.registry import find
from kvassay.impls.faulty.planting import Fault, planter
from kvassay.impls.radix import RadixManager
from kvassay.impls.radix_request import RequestTables
from kvassay.impls.radix_state import RadixRequest, TreeNode
from kvassay.impls.radix_tree import RadixTree

(HOST,) = (entry for entry in find("kvassay.impls.radix") if entry.kind is CacheManager)
FAULTS: dict[str, Fault] = {}


def _made_with(corrupted: type[Any]) -> type[Any]:
    """The manager itself, or one with this tree or these tables."""
    if issubclass(corrupted, RadixManager):
        return corrupted
    tree = corrupted if issubclass(corrupted, RadixTree) else RadixTree
    tables = corrupted if issubclass(corrupted, RequestTables) else RequestTables

    class Made(RadixManager):
        def __init__(self, num_blocks: int, block_size: int) -> None:
            super().__init__(num_blocks, block_size)
            self._tree = tree(self._pool, self.block_size)
            self._tables = tables(self._pool, self._tree, self.block_size)

    return Made


fault = planter(FAULTS, "fault-radix-", CacheManager, HOST.declaration, _made_with)


# -------------------------------------------------------------------------------------------- pins


@fault(
    "begin-pins-whole-blocks",
    "P7 P1 P5 C2 A1 A2",
    "Hits that end at the end of a block are pinned in full.\n"
    "A hit must end inside one, and the pool be used up before the rest is reserved.",
)
class BeginPinsWholeBlocks(RadixManager):
    def begin(self, request: str, key: CacheKey) -> int:
        hit = super().begin(request, key)
        state = self._live[request]
        self._tables._move_pin(state, self._tree.cut(state.node, hit - hit % self.block_size))
        return hit


@fault(
    "begin-pins-nothing",
    "P7 A1 A2 A3",
    "Whoever reserves at once never notices.\n"
    "Others must use the pool up between the look-up and the reservation.",
    modelled_on="B72",
)
class BeginPinsNothing(RadixManager):
    def begin(self, request: str, key: CacheKey) -> int:
        hit = super().begin(request, key)
        state = self._live[request]
        self._tables._move_pin(state, self._tree.cut(state.node, 0))
        return hit


# --------------------------------------------------------------------------------------- splitting


@fault(
    "split-hides-rest",
    "P6 P12 P8 A5",
    "The key that splits an edge finds what it came for.\n"
    "The key that was there first must be looked up behind the split.",
)
class SplitHidesRest(RadixTree):
    def _split(self, node: TreeNode, position: int) -> TreeNode:
        upper = super()._split(node, position)
        upper.children = {node.elements[-1] + 1: node}
        return upper


@fault(
    "stops-at-split",
    "P6 P12 A1",
    "Edges that nobody has split are followed to their end.\n"
    "A key must go on behind a place where another one left it; what it publishes there replaces "
    "what was, and nobody counts those blocks from then on.",
)
class StopsAtSplit(RadixTree):
    def descend(self, node: TreeNode, elements: Any, stop: int) -> tuple[TreeNode, int]:
        child = node.children.get(elements[node.end]) if node.end < stop else None
        if child is not None and len(child.children) > 1:
            stop = min(stop, child.end)
        return super().descend(node, elements, stop)


# -------------------------------------------------------------------------------------- duplicates


@fault(
    "remap-keeps-own-blocks",
    "P11 A1 A4 A5",
    "The table is right, and holds the same KV.\n"
    "The blocks that it held before never come back: the same prefix must be computed twice.",
)
class RemapKeepsOwnBlocks(RequestTables):
    def _remap(self, state: RadixRequest, bottom: TreeNode, position: int) -> None:
        first, last = self.blocks(state.node.end), position // self._block_size
        for block in state.table[first:last]:
            self._pool.share(block)
        super()._remap(state, bottom, position)


# ---------------------------------------------------------------------------------------- promises


@fault(
    "promise-forgets-copy",
    "A4",
    "Prompts that hit whole blocks are promised what they need.\n"
    "A hit must end inside a block, and the pool have one block less than it takes.",
)
class PromiseForgetsCopy(RadixManager):
    def can_admit(self, key: CacheKey) -> bool:
        plan = self._plan(key, self._elements(key))
        return plan.need - (plan.hit % self.block_size > 0) <= plan.room


@fault(
    "promise-is-a-number",
    "A4",
    "Whoever takes it for true or false is served well.\n"
    "The answer must be looked at: it says how many blocks would be left, and one more.",
)
class PromiseIsANumber(RadixManager):
    def can_admit(self, key: CacheKey) -> int:  # type: ignore[override]
        plan = self._plan(key, self._elements(key))
        return max(0, plan.room - plan.need + 1)


@fault(
    "reserve-tells-the-piece",
    "A7",
    "A prompt that is reserved in one piece behind no hit gets the right answer.\n"
    "A second piece must be reserved, or one behind a hit; the slots are right.",
)
class ReserveTellsThePiece(RadixManager):
    def reserve(self, request: str, num_tokens: int) -> int:
        super().reserve(request, num_tokens)
        return num_tokens


# -------------------------------------------------------------------------------------------- hits


@fault(
    "hit-of-one-is-true",
    "P3",
    "It counts as 1 wherever it is added or compared.\n"
    "A hit must be of one token, and its type be looked at.",
)
class HitOfOneIsTrue(RadixManager):
    def admit(self, request: str, key: CacheKey) -> int:
        hit = super().admit(request, key)
        return hit == 1 or hit


# ------------------------------------------------------------------------------------------ events


@fault(
    "events-without-evictions",
    "E1 E2",
    "What is stored is told in full, and as long as there is room nothing else happens.\n"
    "Something must be evicted, and be looked up.",
)
class EventsWithoutEvictions(RadixManager):
    def take_events(self) -> list[CacheEvent]:
        return [each for each in super().take_events() if each.kind is not EventKind.REMOVED]


@fault(
    "events-without-reset",
    "E1 E2",
    "Evictions are told one by one.\nA key from before a reset must come again.",
)
class EventsWithoutReset(RadixManager):
    def take_events(self) -> list[CacheEvent]:
        return [each for each in super().take_events() if each.kind is not EventKind.CLEARED]


@fault(
    "events-without-salt",
    "E1",
    "A single tenant never notices.\nThe same tokens must be looked up under another salt.",
)
class EventsWithoutSalt(RadixManager):
    def take_events(self) -> list[CacheEvent]:
        return [replace(each, salt=None) for each in super().take_events()]


@fault(
    "events-out-of-order",
    "E2",
    "One event at a time has no order.\nA parent and its child must be stored between two reads.",
)
class EventsOutOfOrder(RadixManager):
    def take_events(self) -> list[CacheEvent]:
        return super().take_events()[::-1]


@fault(
    "removal-told-twice",
    "E2",
    "A mirror that forgets what it does not know never notices.\n"
    "Something must be evicted, and removals be counted.",
)
class RemovalToldTwice(RadixManager):
    def take_events(self) -> list[CacheEvent]:
        told: Sequence[CacheEvent] = super().take_events()
        gone = [each for each in told if each.kind is EventKind.REMOVED]
        return [*told, *gone]


@fault(
    "stored-again-at-the-root",
    "E1 E2",
    "What is told first is right, and a mirror that keeps to it answers as the cache does.\n"
    "Something must be stored behind something else: its start is told again, without a parent.",
)
class StoredAgainAtTheRoot(RadixManager):
    def take_events(self) -> list[CacheEvent]:
        told = super().take_events()
        return [*told, *(self._at_the_root(each) for each in told if each.parent is not None)]

    def _at_the_root(self, event: CacheEvent) -> CacheEvent:
        return replace(event, parent=None, entries=event.entries[:1], tokens=event.tokens[:1])
