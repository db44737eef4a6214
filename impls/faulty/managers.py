"""Planted faults: each is `HashedCache` with one operation corrupted.

A fault lists the invariants by which it may be convicted; anything else is a kill for the wrong
reason. Importing this module registers each as implementation ``fault-<name>``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvassay.harness.contract import CacheKey, CacheManager, Outcome, OutOfBlocks, Tie
from kvassay.impls.faulty.controls import (
    AT_FINISH,
    DRAFTING,
    SPENT,
    BumpAllocator,
    DraftsAtRelease,
    HeadFirst,
    PublishAtFinish,
)
from kvassay.impls.faulty.hashed import DECLARATION, HashedCache, LiveRequest
from kvassay.impls.faulty.planting import Fault, planter

FAULTS: dict[str, Fault] = {}
fault = planter(FAULTS, "fault-", CacheManager, DECLARATION)


class TwoStates(HashedCache):
    """For faults that leave a block both idle and in use: its key may go twice without a crash."""

    def _unmap(self, block: int) -> None:
        if block in self._key_of:
            super()._unmap(block)


# ------------------------------------------------------------------------------------ key identity


@fault(
    "key-drops-last-token",
    "P2",
    "Prompts that differ in any other token of a block are told apart.\n"
    "Two prompts must differ in nothing but the last token of a full block.",
)
class KeyDropsLastToken(HashedCache):
    def _block_key(
        self, parent: bytes, tokens: Sequence[int], salt: str | None, adapter: str | None
    ) -> bytes:
        return super()._block_key(parent, tokens[:-1], salt, adapter)


@fault(
    "key-drops-parent",
    "P2",
    "Depth is still in the key, so equal blocks at different places are told apart.\n"
    "Two prompts must share their second block but not their first, and both firsts be cached.",
)
class KeyDropsParent(HashedCache):
    def _parent_key(self, entry: LiveRequest) -> bytes:
        return str(len(entry.keys)).encode()


@fault(
    "key-is-linear",
    "P2",
    "Keys are wide and chained, and random tokens never collide.\n"
    "One token must grow by one and the next shrink by 31.",
    modelled_on="B154",
)
class KeyIsLinear(HashedCache):
    def _block_key(
        self, parent: bytes, tokens: Sequence[int], salt: str | None, adapter: str | None
    ) -> bytes:
        value = int.from_bytes(parent or super()._block_key(b"", (), salt, adapter), "big")
        for token in tokens:
            value = (value * 31 + token) % 2**256
        return value.to_bytes(32, "big")


@fault(
    "salt-ignored",
    "P2",
    "A single tenant never notices.\nThe same tokens must come under two salts.",
)
class SaltIgnored(HashedCache):
    def _block_key(
        self, parent: bytes, tokens: Sequence[int], salt: str | None, adapter: str | None
    ) -> bytes:
        return super()._block_key(parent, tokens, None, adapter)


@fault(
    "adapter-ignored",
    "P2",
    "Salts are honoured, and without adapters all is well.\n"
    "The same tokens must come under two adapters.",
    modelled_on="B66",
)
class AdapterIgnored(HashedCache):
    def _block_key(
        self, parent: bytes, tokens: Sequence[int], salt: str | None, adapter: str | None
    ) -> bytes:
        return super()._block_key(parent, tokens, salt, None)


@fault(
    "salt-and-adapter-confused",
    "P2",
    "Different salts differ, and so do different adapters.\n"
    "The name of an adapter must come as the salt of a request without one.",
    modelled_on="B67",
)
class SaltAndAdapterConfused(HashedCache):
    def _block_key(
        self, parent: bytes, tokens: Sequence[int], salt: str | None, adapter: str | None
    ) -> bytes:
        return super()._block_key(parent, tokens, (salt or "") + (adapter or ""), None)


# ---------------------------------------------------------------------------------------- look-up


@fault(
    "full-hit",
    "P3",
    "Prompts that do not end at a block boundary are right.\n"
    "A prompt of whole blocks must come again.",
)
class FullHit(HashedCache):
    def _hit_limit(self, length: int) -> int:
        return length // self.block_size


@fault(
    "match-past-hole",
    "P3 P4 P2 P5",
    "Holes need an eviction that takes the head of a chain and leaves its rest.\n"
    "Heads go first as declared; only the look-up that reads on is wrong.",
    modelled_on="B77",
    declaration=replace(DECLARATION, tie=Tie.HEAD_FIRST),
)
class MatchPastHole(HeadFirst):
    def _match(self, entry: LiveRequest) -> list[int]:
        keys = self._keys(entry, self._hit_limit(len(entry.tokens)))
        found = map(self._lookup, keys)
        return [block for block in found if block is not None]


@fault(
    "refcount-off-on-hit",
    "A1 A3 A2 C1",
    "Hits on idle blocks are counted, and so are forks.\n"
    "A hit must fall on a block in use, and its first owner must leave first.",
)
class RefcountOffOnHit(TwoStates):
    def _reuse(self, block: int) -> None:
        if block in self._idle:
            super()._reuse(block)


# ------------------------------------------------------------------------------------- publishing


@fault(
    "published-before-commit",
    "P4",
    "As long as every admission is followed by its commit, nothing shows.\n"
    "Another request must look the prompt up in between.",
)
class PublishedBeforeCommit(HashedCache):
    def admit(self, request: str, key: CacheKey) -> int:
        hit = super().admit(request, key)
        self._publish(self._live[request], len(key.tokens) // self.block_size)
        return hit


@fault(
    "aborted-is-published",
    "P4",
    "What an aborted request leaves behind is right, and so is every slot that is hit.\n"
    "An aborted request must be looked up, before one that finishes publishes the same.",
    declaration=AT_FINISH,
)
class AbortedIsPublished(PublishAtFinish):
    def release(self, request: str, outcome: Outcome = Outcome.FINISHED) -> None:
        published = outcome in (Outcome.FINISHED, Outcome.ABORTED)
        super().release(request, Outcome.FINISHED if published else outcome)


@fault(
    "drafts-published-at-release",
    "P4",
    "Drafts that were judged before the request leaves are kept or dropped as they should be.\n"
    "A request must leave with drafts pending that fill a block, and be looked up.",
    declaration=DRAFTING,
)
class DraftsPublishedAtRelease(DraftsAtRelease):
    def release(self, request: str, outcome: Outcome = Outcome.FINISHED) -> None:
        self._drafts.pop(request, None)
        super().release(request, outcome)


@fault(
    "published-on-truncated",
    "P2 P5 P4",
    "What was published before the truncation is withdrawn as it should be.\n"
    "The refilled block is published again, under the key that it had before.",
)
class PublishedOnTruncated(HashedCache):
    def _forget_keys(self, entry: LiveRequest) -> None:
        """Keep them: they name tokens that are gone."""


@fault(
    "truncation-keeps-key",
    "P4 P5 C1",
    "Truncation at a block boundary is harmless, and so is one in a shared block.\n"
    "A single owner must cut a published block and write on.",
)
class TruncationKeepsKey(HashedCache):
    def _withdraw(self, block: int) -> None:
        """Leave the key where it is."""


@fault(
    "duplicate-frees-canonical",
    "A2 A3 P5 P11 A1",
    "Duplicates arise only when two requests compute the same prefix side by side.\n"
    "The freed block keeps its key and its owners until it is handed out again.",
    modelled_on="B04",
)
class DuplicateFreesCanonical(TwoStates):
    def _map(self, block: int, key: bytes) -> None:
        canonical = self._lookup(key)
        super()._map(block, key)
        if canonical is not None:
            self._idle.pop(canonical, None)
            self._give_back(canonical)


# ---------------------------------------------------------------------------------- copy-on-write


@fault(
    "cow-above-two",
    "C1",
    "Three owners or more are kept apart.\n"
    "Exactly two must share a partly filled block when one of them writes.",
)
class CowAboveTwo(HashedCache):
    def _needs_copy(self, block: int) -> bool:
        return self._references[block] > 2


@fault(
    "copy-forgotten",
    "C2",
    "Tables, counters and reference counts are all right.\n"
    "The new block must be read before it was filled from its start.",
    modelled_on="B29",
)
class CopyForgotten(HashedCache):
    def _record_copy(self, source: int, destination: int) -> None:
        """Tell nobody."""


@fault(
    "copy-reversed",
    "C2 C1",
    "Tables, counters and reference counts are all right.\n"
    "The two blocks must differ, and source or destination be read afterwards.",
)
class CopyReversed(HashedCache):
    def _record_copy(self, source: int, destination: int) -> None:
        super()._record_copy(destination, source)


@fault(
    "fork-forgets-parent-reference",
    "A1 A3 A2 C1",
    "The last block is counted, so that copy-on-write works.\n"
    "One of the two must leave and the pool be filled while the other lives.",
    modelled_on="B27",
)
class ForkForgetsParentReference(TwoStates):
    def _share_on_fork(self, parent: LiveRequest) -> LiveRequest:
        child = super()._share_on_fork(parent)
        for block in parent.table[:-1]:
            self._references[block] -= 1
        return child


# ---------------------------------------------------------------------------- pool and conservation


@fault(
    "refusal-keeps-blocks",
    "A4 A5 A1",
    "Refused appends are clean, and a refusal with no free block loses none.\n"
    "A large prompt must be refused while some blocks are free.",
    modelled_on="B36",
)
class RefusalKeepsBlocks(HashedCache):
    def admit(self, request: str, key: CacheKey) -> int:
        try:
            return super().admit(request, key)
        except OutOfBlocks:
            self._take_blocks(len(self._free))
            raise


@fault(
    "refusal-evicts",
    "A4 P12",
    "Nobody loses KV, and no block is lost.\n"
    "A refusal must come while idle entries are cached, and one be asked for afterwards.",
)
class RefusalEvicts(HashedCache):
    def admit(self, request: str, key: CacheKey) -> int:
        try:
            return super().admit(request, key)
        except OutOfBlocks:
            self.evict(self.num_blocks)
            raise


@fault(
    "tail-leaked",
    "A5 A4 A1",
    "Requests of whole blocks are given back in full.\n"
    "The pool shrinks by one block with every other one.",
    modelled_on="B17",
)
class TailLeaked(HashedCache):
    def release(self, request: str, outcome: Outcome = Outcome.FINISHED) -> None:
        entry = self._live[request]
        tail = self._open_block(entry)
        if tail is not None and tail not in self._key_of:
            entry.table.remove(tail)
        super().release(request, outcome)


@fault(
    "abort-leaks",
    "A5 A4 A1",
    "Requests that finish, are preempted or fail are given back in full.\n"
    "One must be aborted while KV is outstanding.",
)
class AbortLeaks(HashedCache):
    def release(self, request: str, outcome: Outcome = Outcome.FINISHED) -> None:
        entry = self._live[request]
        if outcome is Outcome.ABORTED:
            del entry.table[self._blocks_for(entry.committed) :]
        super().release(request, outcome)


@fault(
    "recycled-keeps-key",
    "P5 P2 A2",
    "Explicit eviction is clean, and so is a pool with free blocks.\n"
    "A full pool must recycle a cached block, and its former key be asked for.",
    modelled_on="B61",
)
class RecycledKeepsKey(HashedCache):
    def _recycle(self) -> int:
        block = self._victim()
        del self._idle[block]
        return block

    def _map(self, block: int, key: bytes) -> None:
        if self._key_of.get(block) != key:
            super()._map(block, key)


@fault(
    "reset-keeps-keys",
    "P5 P2",
    "Every block is free after the reset, and the first requests find fresh ones.\n"
    "A prompt from before the reset must come again.",
    modelled_on="B74",
)
class ResetKeepsKeys(HashedCache):
    def _clear(self) -> None:
        self._free.extend(self._idle)
        self._idle.clear()


@fault(
    "first-block-lost-at-reset",
    "A5",
    "Before the first reset the pool is whole, and a refusal is never wrong: blocks come back at a "
    "reset alone.\nThe whole pool must be asked for after one.",
    declaration=SPENT,
)
class ResetSkipsTheFirstBlock(BumpAllocator):
    def _clear(self) -> None:
        super()._clear()
        if self.num_blocks > 1:
            self._free.popleft()


# ---------------------------------------------------------------------------------------- eviction


@fault(
    "wrong-victim",
    "P10",
    "Eviction frees the right amount and never what is in use.\n"
    "The entry released last goes first, where the first should.",
)
class WrongVictim(HashedCache):
    def _victim(self) -> int:
        return next(reversed(self._idle))


@fault(
    "wrong-victim-fifo",
    "P10",
    "Entries that were released in the order of their publication go in the right order.\n"
    "An old one must be used again, and still go first.",
    modelled_on="B79",
)
class WrongVictimFifo(HashedCache):
    def _victim(self) -> int:
        return next(block for block in self._key_of if block in self._idle)


@fault(
    "recycles-the-most-recent",
    "P10",
    "Eviction on demand takes the right ones.\n"
    "The pool must be used up, and what was released first be found, which should have gone.",
)
class RecyclesTheMostRecent(HashedCache):
    def _recycle(self) -> int:
        block = next(reversed(self._idle))
        del self._idle[block]
        self._unmap(block)
        return block


@fault(
    "evict-too-much",
    "P9",
    "The number returned is true, and no block in use is touched.\n"
    "Less than everything must be asked for.",
)
class EvictTooMuch(HashedCache):
    def evict(self, num_blocks: int) -> int:
        return super().evict(num_blocks + 1)


@fault(
    "evict-too-much-silently",
    "P9",
    "The number returned is the one that was asked for.\n"
    "Only what is found afterwards, or the counters, show that one more went.",
)
class EvictTooMuchSilently(HashedCache):
    def evict(self, num_blocks: int) -> int:
        return min(num_blocks, super().evict(num_blocks + 1))


@fault(
    "evict-everything",
    "P9",
    "Asked for all that is cached, it does as it should.\n"
    "The count of what was freed is not kept, so that the loop runs to the end.",
    modelled_on="B82",
)
class EvictEverything(HashedCache):
    def evict(self, num_blocks: int) -> int:
        return super().evict(self.num_blocks)


@fault(
    "evict-pinned",
    "P7 P9 A3 A2 A1",
    "Idle entries go first, and one is nearly always left.\n"
    "More must be asked for than is idle while published blocks are in use.",
    modelled_on="B84",
)
class EvictPinned(TwoStates):
    def evict(self, num_blocks: int) -> int:
        freed = super().evict(num_blocks)
        pinned = list(self._key_of)[: num_blocks - freed]
        for block in pinned:
            self._unmap(block)
            self._give_back(block)
        return freed + len(pinned)
