"""Planted faults in layer groups and windows: each is `GroupedCache` with one operation corrupted.

As in `managers`, a fault lists the invariants by which it may be convicted. Importing this module
registers each as implementation ``fault-<name>``.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvassay.harness.contract import CacheKey, CacheManager
from kvassay.impls.faulty.group_controls import (
    IN_STEP,
    ONE_WINDOW,
    GroupsInStep,
    OneWindow,
    WindowShown,
)
from kvassay.impls.faulty.grouped import DECLARATION, NULL, GroupedCache, Strand
from kvassay.impls.faulty.planting import Fault, planter

FAULTS: dict[str, Fault] = {}
fault = planter(FAULTS, "fault-", CacheManager, DECLARATION)


class Counted(GroupedCache):
    """For faults that give a block back too often: it is counted down to 0, and no further."""

    def _drop(self, block: int) -> None:
        if self._references[block] > 0:
            super()._drop(block)


# ----------------------------------------------------------------------------------------- windows


@fault(
    "window-short-by-one",
    "A7 P1",
    "Inside a block it does not matter which of its tokens a window reaches.\n"
    "A window must end with the first token of a block.",
)
class WindowShortByOne(GroupedCache):
    def _first(self, strand: Strand, num_tokens: int) -> int:
        window = strand.group.window
        return 0 if window is None else max(0, num_tokens - window + 2) // self.block_size


@fault(
    "all-layers-short-by-one",
    "A7 P1",
    "The same, where all layers have one window and nothing is said of groups.",
    declaration=ONE_WINDOW,
)
class AllLayersShortByOne(OneWindow):
    def _first(self, strand: Strand, num_tokens: int) -> int:
        window = strand.group.window
        assert window is not None
        return max(0, num_tokens - window + 2) // self.block_size


@fault(
    "window-freed-early",
    "A1 A2 A3 A7",
    "The table goes on showing the block, whose KV is there until somebody else gets it.\n"
    "A window must end inside a block, and the pool be used up before it moves on.",
)
class WindowFreedEarly(WindowShown):
    def _drop_passed(self, strand: Strand) -> None:
        if strand.group.window is None:
            return
        early = self._first(strand, strand.committed) + 1
        for index in reversed(range(min(early, strand.committed // self.block_size))):
            if strand.table[index] != NULL:
                self._pass(strand, index)


@fault(
    "window-of-the-end",
    "A7",
    "Tokens that are decoded one by one, inside a block, never show it.\n"
    "An append must carry a window past a block that its first token still sees.",
    declaration=IN_STEP,
)
class WindowOfTheEnd(GroupsInStep):
    def append(self, request: str, tokens: Sequence[int]) -> None:
        super().append(request, tokens)
        for strand in self._strands[request]:
            self._drop_passed(strand)


@fault(
    "window-leaked",
    "A1 A4 A5",
    "Nobody misses what no query sees, and requests give back what they still show.\n"
    "A window must pass a block.",
)
class WindowLeaked(GroupedCache):
    def _pass(self, strand: Strand, index: int) -> None:
        strand.table[index] = NULL


@fault(
    "window-dropped-at-refusal",
    "A4",
    "What a refusal drops here nobody sees any more.\n"
    "A request must be refused more tokens after its window has passed a block.",
)
class WindowDroppedAtRefusal(GroupedCache):
    def append(self, request: str, tokens: Sequence[int]) -> None:
        for strand in self._strands[request]:
            super()._drop_passed(strand)
        super().append(request, tokens)

    def _drop_passed(self, strand: Strand) -> None:
        """Not with the commit."""


@fault(
    "window-given-back-per-sharer",
    "A1 A2 A3",
    "A block of one request is given back once.\n"
    "Requests must share a block by a fork, and the window of one pass it.",
    modelled_on="B01",
)
class WindowGivenBackPerSharer(Counted):
    def _pass(self, strand: Strand, index: int) -> None:
        block = strand.table[index]
        super()._pass(strand, index)
        self._drop(block)


# ------------------------------------------------------------------------------------------ groups


@fault(
    "groups-share-a-block",
    "A2",
    "Every table has blocks of its own, all but one.\n"
    "There must be two groups: what one writes lies over what the other has written.",
)
class GroupsShareABlock(GroupedCache):
    def admit(self, request: str, key: CacheKey) -> int:
        hit = super().admit(request, key)
        first, *others = self._strands[request]
        for strand in others:
            self._drop(strand.table[-1])
            strand.table[-1] = first.table[-1]
            self._hold(first.table[-1])
        return hit


@fault(
    "copied-in-one-group",
    "C2",
    "The block that is copied is copied whole, and so is every block without sharers.\n"
    "A fork must write into a shared block, and be read back in the second group.",
)
class CopiedInOneGroup(GroupedCache):
    def _copy_on_write(self, entry: Strand) -> None:  # type: ignore[override]
        super()._copy_on_write(entry)
        if entry.group != self.groups[0]:
            self._copies.pop()


@fault(
    "group-left-out-of-the-key",
    "P2",
    "With one group there is nothing to confuse.\n"
    "A prompt must be looked up that two groups have cached.",
)
class GroupLeftOutOfTheKey(GroupedCache):
    def _root(self, strand: Strand) -> bytes:
        return b""


# ------------------------------------------------------------------------------------------- hits


@fault(
    "hit-without-the-window",
    "P1",
    "As long as nothing is evicted, what one group has the other has too.\n"
    "A block must be evicted that a window still sees, and its prompt be looked up.",
)
class HitWithoutTheWindow(GroupedCache):
    def _has(self, strand: Strand, count: int) -> bool:
        asked = strand.group.window is None or strand.group == self.groups[0]
        return not asked or super()._has(strand, count)

    def _cached(self, key: bytes) -> int:
        block = self._lookup(key)
        return NULL if block is None else block


@fault(
    "hit-of-one-group",
    "P1 P2 P5",
    "Groups that were filled together have the same, until one of them loses a block.\n"
    "A block of the group that is not asked must be evicted, and its prompt be looked up: what is "
    "handed out instead holds nothing, or what it held before.",
)
class HitOfOneGroup(GroupedCache):
    def _count(self, strands: Sequence[Strand]) -> int:
        return super()._count(strands[-1:])

    def _cached(self, key: bytes) -> int:
        block = self._lookup(key)
        return NULL if block is None else block

    def admit(self, request: str, key: CacheKey) -> int:
        hit = super().admit(request, key)
        for strand in self._strands[request]:
            for index in range(self._first(strand, hit), hit // self.block_size):
                if strand.table[index] == NULL and self._room():
                    strand.table[index] = self._take_block()
        return hit


@fault(
    "window-hits-nothing",
    "P12",
    "Nothing that is counted is wrong.\n"
    "A prompt within the window must be looked up again, with nothing evicted since.",
)
class WindowHitsNothing(GroupedCache):
    def _has(self, strand: Strand, count: int) -> bool:
        return strand.group.window is None and super()._has(strand, count)
