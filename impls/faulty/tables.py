"""Planted faults in tables, pages, counts, duplicates and hits: `HashedCache`, one thing corrupted.

As in `managers`, of which this is the second half: what a scheduler reads from a cache is wrong
here, more often than what a request reads from its KV.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kvassay.harness.contract import CacheKey, CacheManager, Capability, Counters, OutOfBlocks
from kvassay.impls.faulty.controls import (
    DRAFTING,
    SIDE_BY_SIDE,
    DraftsAtRelease,
    Lookahead,
    NullBlock,
    OneRun,
    PlainPool,
)
from kvassay.impls.faulty.hashed import DECLARATION, HashedCache, LiveRequest
from kvassay.impls.faulty.managers import TwoStates
from kvassay.impls.faulty.planting import Fault, planter

FAULTS: dict[str, Fault] = {}
fault = planter(FAULTS, "fault-", CacheManager, DECLARATION)
LAYERS = 80


# ------------------------------------------------------------------------------------------ tables


@fault(
    "table-late-at-boundary",
    "A7",
    "Tables are right inside a block.\n"
    "A request must grow from the end of a block, and its table be read before it grows further.",
)
class TableLateAtBoundary(HashedCache):
    def block_table(self, request: str) -> list[int]:
        table, length = super().block_table(request), len(self._live[request].tokens)
        late = length % self.block_size == 1 and self.block_size > 1 and length > 1
        return table[:-1] if late else table


@fault(
    "table-ahead-at-boundary",
    "A7 A1",
    "Whatever fits, fits; one block more is no harm.\nA prompt must end at the end of a block.",
)
class TableAheadAtBoundary(HashedCache):
    def admit(self, request: str, key: CacheKey) -> int:
        hit = super().admit(request, key)
        if len(key.tokens) % self.block_size == 0 and self._room():
            self._live[request].table.append(self._take_block())
        return hit


@fault(
    "table-of-sharer-shrinks",
    "A7",
    "Whoever cuts its own request gets what it asked for.\n"
    "Another must share all of its blocks, and be looked at afterwards.",
)
class TableOfSharerShrinks(HashedCache):
    def _share_on_fork(self, parent: LiveRequest) -> LiveRequest:
        child = super()._share_on_fork(parent)
        child.table = parent.table
        return child


@fault(
    "looks-ahead-undeclared",
    "A7",
    "Nothing is evicted for it, and nobody gets less than its tokens need.\n"
    "A block must be free: a table then has one more than was declared, and others have to wait.",
)
class LooksAheadUndeclared(HashedCache):
    def admit(self, request: str, key: CacheKey) -> int:
        hit = super().admit(request, key)
        if self._free:
            self._live[request].table.append(self._take_block())
        return hit

    def _share_on_fork(self, parent: LiveRequest) -> LiveRequest:
        needed = self._blocks_for(len(parent.tokens))
        return super()._share_on_fork(replace(parent, table=parent.table[:needed]))


@fault(
    "table-of-others-in-reverse",
    "A7",
    "Whoever has just been served reads a table that is right, and so does everybody in turn.\n"
    "A table of two blocks must be read after an operation on another request.",
    modelled_on="B22",
)
class TableOfOthersInReverse(HashedCache):
    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._staged: set[str] = set()

    def admit(self, request: str, key: CacheKey) -> int:
        self._staged = {request}
        return super().admit(request, key)

    def append(self, request: str, tokens: Sequence[int]) -> None:
        self._staged = {request}
        super().append(request, tokens)

    def commit(self, request: str, num_tokens: int) -> None:
        self._staged = {request}
        super().commit(request, num_tokens)

    def fork(self, parent: str, children: Sequence[str]) -> None:
        self._staged = {parent, *children}
        super().fork(parent, children)

    def truncate(self, request: str, num_tokens: int) -> None:
        self._staged = {request}
        super().truncate(request, num_tokens)

    def block_table(self, request: str) -> list[int]:
        table = super().block_table(request)
        return table if request in self._staged else table[::-1]


@fault(
    "run-goes-on-elsewhere",
    "A7",
    "A request that does not grow past its last block lies in one piece.\n"
    "It must grow when the block behind it is taken.",
    declaration=SIDE_BY_SIDE,
)
class RunGoesOnElsewhere(OneRun):
    def append(self, request: str, tokens: Sequence[int]) -> None:
        entry = self._live[request]
        fresh = self._blocks_for(len(entry.tokens) + len(tokens)) - len(entry.table)
        self._require(fresh, len(self._free))
        self._next = list(self._free)[:fresh]
        PlainPool.append(self, request, tokens)


@fault(
    "null-block-handed-out",
    "A7",
    "It is a block like any other, until somebody pads a table with it.\nThe pool must be used.",
    declaration=replace(DECLARATION, reserved_ids=(0,)),
)
class NullBlockHandedOut(NullBlock):
    def _block_ids(self) -> Iterable[int]:
        return range(self.num_blocks)


@fault(
    "look-ahead-is-everybodys",
    "A2",
    "Whoever grows into its look-ahead gets a block of its own in time.\n"
    "Two requests must look ahead: what a worker drafts for one lands in the block of the other.",
    declaration=replace(DECLARATION, lookahead=1),
)
class LookAheadIsEverybodys(Lookahead):
    def _look_ahead(self, entry: LiveRequest) -> None:
        others = [block for each in self._live.values() for block in self._ahead(each)]
        if others and not self._ahead(entry):
            self._hold(others[0])
            entry.table.append(others[0])
        super()._look_ahead(entry)

    def _ahead(self, entry: LiveRequest) -> list[int]:
        return entry.table[self._blocks_for(len(entry.tokens)) :]

    def append(self, request: str, tokens: Sequence[int]) -> None:
        entry = self._live[request]
        shared = [block for block in self._ahead(entry) if self._references[block] > 1]
        entry.table = entry.table[: len(entry.table) - len(shared)]
        try:
            super().append(request, tokens)
        except OutOfBlocks:
            entry.table += shared
            raise
        self._release_blocks(shared)


# ------------------------------------------------------------------------------------------- pages


@fault(
    "cut-page-given-back",
    "A6 A2 A1",
    "A cut at the end of a block is right, and so is one in a block that others hold.\n"
    "A single owner must cut inside a block that nobody can look up, and the pool be used up.",
)
class CutPageGivenBack(TwoStates):
    def truncate(self, request: str, num_tokens: int) -> None:
        super().truncate(request, num_tokens)
        tail = self._open_block(self._live[request])
        if tail is not None and self._references[tail] == 1 and tail not in self._key_of:
            self._give_back(tail)


@fault(
    "rejected-page-given-back",
    "A6 A2 A1",
    "Drafts that fill whole blocks are given back in full when they are rejected.\n"
    "Drafts must be rejected inside a block that the request still covers in part.",
    declaration=DRAFTING,
)
class RejectedPageGivenBack(DraftsAtRelease):
    def accept(self, request: str, num_tokens: int) -> None:
        rejected = self._drafts[request] - num_tokens
        super().accept(request, num_tokens)
        tail = self._open_block(self._live[request])
        if rejected and tail is not None and tail not in self._key_of:
            self._give_back(tail)

    def _unmap(self, block: int) -> None:
        if block in self._key_of:
            super()._unmap(block)


# ------------------------------------------------------------------------------------------ counts


@fault(
    "idle-counted-as-free",
    "P8 P9",
    "The sum is right, and so is what is in use.\nSomething must be cached that nobody uses.",
)
class IdleCountedAsFree(HashedCache):
    def counters(self) -> Counters:
        told = super().counters()
        return Counters(free=told.free + told.cached, cached=0, used=told.used)


@fault(
    "idle-counted-as-free-unasked",
    "P8",
    "The sum is right, and nobody can ask for an eviction that would show it.\n"
    "Something must be cached, and be counted when all requests have left.",
    declaration=replace(DECLARATION, capabilities=DECLARATION.capabilities - {Capability.EVICT}),
)
class IdleCountedAsFreeUnasked(IdleCountedAsFree):
    def counters(self) -> Counters:
        return super().counters()


@fault(
    "one-holder-told",
    "A1",
    "A block that one request holds is told as it is, and sharers are kept apart.\n"
    "Two must hold one block, and the holders be counted.",
)
class OneHolderTold(HashedCache):
    def refcounts(self) -> dict[int, int]:
        return dict.fromkeys(super().refcounts(), 1)


@fault(
    "told-for-every-layer",
    "C2",
    "A copy that is made again copies the same.\n"
    "A block must be copied: it is told as often as the model has layers.",
)
class CopiesToldForEveryLayer(HashedCache):
    def take_copies(self) -> list[tuple[int, int]]:
        return super().take_copies() * LAYERS


@fault(
    "reset-objects-after-a-fork",
    "A5",
    "The reset is done in full.\nA request must have been forked: the count of the live is off.",
)
class ResetObjectsAfterAFork(HashedCache):
    def _share_on_fork(self, parent: LiveRequest) -> LiveRequest:
        self.__dict__["_forked"] = True
        return super()._share_on_fork(parent)

    def reset(self) -> None:
        super().reset()
        if self.__dict__.pop("_forked", False):
            raise ValueError("reset with 1 live request, expected none")


@fault(
    "duplicates-counted-once",
    "P8 P9",
    "One block for each key is counted as it should be.\n"
    "Two blocks must hold the same prefix, and both be idle.",
)
class DuplicatesCountedOnce(HashedCache):
    def counters(self) -> Counters:
        told = super().counters()
        cached = len({self._key_of[block] for block in self._idle})
        return Counters(free=self.num_blocks - told.used - cached, cached=cached, used=told.used)


@fault(
    "shared-counted-by-owner",
    "A1",
    "Without sharing every block has one owner.\nTwo must hold one block.",
)
class SharedCountedByOwner(HashedCache):
    def counters(self) -> Counters:
        told = super().counters()
        used = sum(len(entry.table) for entry in self._live.values())
        return Counters(free=self.num_blocks - told.cached - used, cached=told.cached, used=used)


# -------------------------------------------------------------------------------------- refusals


@fault(
    "append-overlooks-idle",
    "A4",
    "Admission takes what is idle, and so does an append while a block is free.\n"
    "A request must grow in a pool that is full of what nobody uses.",
)
class AppendOverlooksIdle(HashedCache):
    def append(self, request: str, tokens: Sequence[int]) -> None:
        entry = self._live[request]
        fresh = self._blocks_for(len(entry.tokens) + len(tokens)) - len(entry.table)
        self._require(fresh, len(self._free))
        super().append(request, tokens)


# ------------------------------------------------------------------------------------ duplicates


@fault(
    "duplicate-remapped-undeclared",
    "P11",
    "The block that the table shows afterwards holds the same KV.\n"
    "A worker that kept the table of before writes where nobody reads.",
)
class DuplicateRemappedUndeclared(HashedCache):
    def _publish_block(self, entry: LiveRequest, index: int, key: bytes) -> None:
        known = self._lookup(key)
        if known is None:
            super()._publish_block(entry, index, key)
            return
        self._hold(known)
        self._drop(entry.table[index])
        entry.table[index] = known


@fault(
    "duplicate-never-released",
    "P11 A1 A4 A5",
    "The first copy comes back, and the second is not missed in a large pool.\n"
    "The same prefix must be computed twice, and both owners leave.",
)
class DuplicateNeverReleased(HashedCache):
    def _map(self, block: int, key: bytes) -> None:
        if self._lookup(key) is not None:
            self._references[block] += 1
        super()._map(block, key)


# -------------------------------------------------------------------------------------------- hits


@fault(
    "hit-counts-fresh-block",
    "P1 P3 P4 P5 P2",
    "Tables have the right length, and the blocks that are hit are right.\n"
    "The block behind them is counted too, before anybody has written it.",
)
class HitCountsFreshBlock(HashedCache):
    def admit(self, request: str, key: CacheKey) -> int:
        hit = super().admit(request, key)
        return min(hit + self.block_size, self._hit_limit(len(key.tokens)) * self.block_size)


@fault(
    "hit-of-any-prompt",
    "P1 P3 P4",
    "Whatever was computed before may be found.\nSomething must be looked up that nobody computed.",
)
class HitOfAnyPrompt(HashedCache):
    def admit(self, request: str, key: CacheKey) -> int:
        hit = super().admit(request, key)
        return hit or min(1, self._hit_limit(len(key.tokens))) * self.block_size


@fault(
    "look-up-misses-what-is-in-use",
    "P12",
    "What has no owner is found.\nA prompt must come again while its first request lives.",
)
class LookUpMissesWhatIsInUse(HashedCache):
    def _lookup(self, key: bytes) -> int | None:
        block = super()._lookup(key)
        return block if block in self._idle else None


@fault(
    "chain-not-extended",
    "P12",
    "A prompt that comes again hits all of itself.\n"
    "It must have gone on: what was generated has to be hit as well.",
)
class ChainNotExtended(HashedCache):
    def append(self, request: str, tokens: Sequence[int]) -> None:
        super().append(request, tokens)
        entry = self._live[request]
        entry.published = max(entry.published, len(entry.tokens) // self.block_size)


# ---------------------------------------------------------------------------------------- eviction


@fault(
    "pinned-by-the-last-owner-only",
    "P7 A3 A2 A1 C1",
    "One owner at a time pins what it hits.\n"
    "Two must hold an entry, one leave, and the pool be used up.",
)
class PinnedByTheLastOwnerOnly(TwoStates):
    def _drop(self, block: int) -> None:
        super()._drop(block)
        if self._references[block] == 1 and block in self._key_of:
            self._idle[block] = None
