"""Controls: correct managers with unusual habits, which the harness must not convict.

Each is `HashedCache` with one habit changed and, where the contract has a word for it, declared.
Importing this module registers each as implementation ``control-<name>``.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from kvassay.harness.contract import (
    TORN,
    CacheKey,
    CacheManager,
    Capability,
    Counters,
    Declaration,
    Dedup,
    Granularity,
    Order,
    Outcome,
    OutOfBlocks,
    Placement,
    Publish,
    Reclaim,
    Refusal,
    Tie,
)
from kvassay.harness.registry import implementation
from kvassay.impls.faulty.hashed import DECLARATION, HashedCache, LiveRequest

CACHE_ONLY = frozenset(
    {Capability.PREFIX_CACHE, Capability.SALT, Capability.ADAPTER, Capability.EVICT}
)
PLAIN = Declaration(capabilities=DECLARATION.capabilities - CACHE_ONLY)
AT_FINISH = replace(DECLARATION, publish=Publish.RELEASE, publish_on=frozenset({Outcome.FINISHED}))
WRITERS = frozenset({Capability.COMMIT, Capability.FORK, Capability.COPIES, Capability.TRUNCATE})
DRAFTING = replace(
    DECLARATION,
    publish=Publish.RELEASE,
    capabilities=DECLARATION.capabilities - WRITERS | {Capability.DRAFTS},
)
STORED = replace(
    DECLARATION,
    capabilities=DECLARATION.capabilities - {Capability.COPIES} | {Capability.STORAGE},
)
SPENT = replace(PLAIN, reclaim=Reclaim.RESET)
SIDE_BY_SIDE = replace(
    PLAIN,
    capabilities=PLAIN.capabilities - {Capability.FORK, Capability.COPIES},
    placement=Placement.CONTIGUOUS,
)
UNORDERED: dict[str, Any] = {"order": Order.NONE, "stamps": frozenset()}

Control = TypeVar("Control", bound=type[HashedCache])


def control(name: str, declaration: Declaration) -> Callable[[Control], Control]:
    """Register a class as ``control-<name>``."""
    return implementation(f"control-{name}", kind=CacheManager, declaration=declaration)


# ------------------------------------------------------------------------------ no prefix cache


class PlainPool(HashedCache):
    """Blocks and tables alone: nothing is ever published."""

    def _publish(self, entry: LiveRequest, count: int) -> None:
        """Keep nothing."""


@control("bump", SPENT)
class BumpAllocator(PlainPool):
    """Hands every block out once, and again only after a reset."""

    def _give_back(self, block: int) -> None:
        """Never before the reset."""

    def _clear(self) -> None:
        self._free.clear()
        self._free.extend(self._block_ids())

    def counters(self) -> Counters:
        """A spent block is neither in use nor cached, hence free by the contract's words."""
        used = len(self.refcounts())
        return Counters(free=self.num_blocks - used, cached=0, used=used)


@control("random-order", PLAIN)
class RandomOrder(PlainPool):
    """Takes any free block, by a seeded draw."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._random = random.Random(num_blocks)

    def _take_block(self) -> int:
        self._free.rotate(self._random.randrange(len(self._free)))
        return super()._take_block()


@control("one-run", SIDE_BY_SIDE)
class OneRun(PlainPool):
    """A request's blocks lie side by side: it grows in place, or not at all."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._next: list[int] = []

    def admit(self, request: str, key: CacheKey) -> int:
        count = self._blocks_for(len(key.tokens))
        starts = (self._run(block, count) for block in sorted(self._free))
        self._next = next((run for run in starts if self._is_free(run)), [])
        if not self._next:
            raise OutOfBlocks(f"no {count} free blocks lie side by side")
        return super().admit(request, key)

    def append(self, request: str, tokens: Sequence[int]) -> None:
        entry = self._live[request]
        fresh = self._blocks_for(len(entry.tokens) + len(tokens)) - len(entry.table)
        self._next = self._run(entry.table[-1] + 1, fresh)
        if not self._is_free(self._next):
            raise OutOfBlocks(f"the {fresh} blocks behind block {entry.table[-1]} are not free")
        super().append(request, tokens)

    @staticmethod
    def _run(start: int, count: int) -> list[int]:
        return list(range(start, start + count))

    def _is_free(self, run: Sequence[int]) -> bool:
        return set(run) <= set(self._free)

    def _take_block(self) -> int:
        block = self._next.pop(0)
        self._free.remove(block)
        self._references[block] = 1
        return block


# ------------------------------------------------------------------------------------ pool habits


@control("few-sizes", DECLARATION)
class FewSizes(HashedCache):
    """Offers blocks of 1, 3 and 544 tokens only, and refuses to be built with others."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if block_size not in (1, 3, 544):
            raise ValueError(f"block_size: expected 1, 3 or 544, got {block_size}")
        super().__init__(num_blocks, block_size)


@control("null-block", replace(DECLARATION, reserved_ids=(0,)))
class NullBlock(HashedCache):
    """Block 0 is no storage."""

    def _block_ids(self) -> Iterable[int]:
        return range(1, self.num_blocks + 1)


@control("sparse-ids", DECLARATION)
class SparseIds(HashedCache):
    """Ids are neither dense nor below the number of blocks."""

    def _block_ids(self) -> Iterable[int]:
        return range(5, 5 + 3 * self.num_blocks, 3)


@control("watermark", replace(DECLARATION, watermark=1))
class Watermark(HashedCache):
    """Admission leaves one block free or evictable; append takes the last."""

    def _room_for_admission(self, hits: Sequence[int]) -> int:
        return super()._room_for_admission(hits) - 1


@control("lookahead", replace(DECLARATION, lookahead=1))
class Lookahead(HashedCache):
    """Tables hold one block more than needed whenever one is free; none is evicted for it."""

    def admit(self, request: str, key: CacheKey) -> int:
        hit = super().admit(request, key)
        self._look_ahead(self._live[request])
        return hit

    def append(self, request: str, tokens: Sequence[int]) -> None:
        super().append(request, tokens)
        self._look_ahead(self._live[request])

    def _look_ahead(self, entry: LiveRequest) -> None:
        if self._free and len(entry.table) == self._blocks_for(len(entry.tokens)):
            entry.table.append(self._take_block())

    def _share_on_fork(self, parent: LiveRequest) -> LiveRequest:
        needed = self._blocks_for(len(parent.tokens))
        return super()._share_on_fork(replace(parent, table=parent.table[:needed]))


@control("row-limit", replace(DECLARATION, max_requests=2))
class RowLimit(HashedCache):
    """Two rows: the third live request is refused."""

    def admit(self, request: str, key: CacheKey) -> int:
        self._require_rows(1)
        return super().admit(request, key)

    def fork(self, parent: str, children: Sequence[str]) -> None:
        self._require_rows(len(children))
        super().fork(parent, children)

    def _require_rows(self, count: int) -> None:
        if len(self._live) + count > 2:
            raise OutOfBlocks(f"{count} rows needed, {2 - len(self._live)} free")


@control("length-limit", replace(DECLARATION, max_tokens=8))
class LengthLimit(HashedCache):
    """No request may be longer than 8 tokens."""

    def admit(self, request: str, key: CacheKey) -> int:
        self._require_short(len(key.tokens))
        return super().admit(request, key)

    def append(self, request: str, tokens: Sequence[int]) -> None:
        self._require_short(len(self._live[request].tokens) + len(tokens))
        super().append(request, tokens)

    def _require_short(self, length: int) -> None:
        if length > 8:
            raise OutOfBlocks(f"{length} tokens in one request, at most 8 are served")


@control("may-evict", replace(DECLARATION, refusal=Refusal.MAY_EVICT))
class MayEvict(HashedCache):
    """Makes room before it finds that it is not enough."""

    def _require(self, needed: int, room: int) -> None:
        if needed > room:
            self.evict(self.num_blocks)
        super()._require(needed, room)


# ------------------------------------------------------------------------------------- replacement


@control("head-first", replace(DECLARATION, tie=Tie.HEAD_FIRST))
class HeadFirst(HashedCache):
    """Of one request's blocks, the first goes first: chains lose their head and become holes."""

    def _release_order(self, blocks: Sequence[int]) -> Iterable[int]:
        return blocks


@control("fifo", replace(DECLARATION, order=Order.FIFO, stamps=frozenset(), tie=Tie.HEAD_FIRST))
class Fifo(HashedCache):
    """The idle block that was published first goes first, however often it was used since."""

    def _victim(self) -> int:
        return next(block for block in self._key_of if block in self._idle)


@control("filo", replace(DECLARATION, order=Order.FILO, stamps=frozenset()))
class Filo(HashedCache):
    """The idle block that was published last goes first."""

    def _victim(self) -> int:
        return next(block for block in reversed(self._key_of) if block in self._idle)


@control("lfu", replace(DECLARATION, order=Order.LFU))
class Lfu(HashedCache):
    """The idle block that was released least often goes first; of several, the oldest."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._uses: Counter[int] = Counter()

    def _map(self, block: int, key: bytes) -> None:
        super()._map(block, key)
        self._uses[block] = 0

    def _drop(self, block: int) -> None:
        self._uses[block] += 1
        super()._drop(block)

    def _victim(self) -> int:
        return min(self._idle, key=self._uses.__getitem__)


@control(
    "priority",
    replace(
        DECLARATION,
        order=Order.PRIORITY,
        capabilities=DECLARATION.capabilities | {Capability.PRIORITY},
    ),
)
class Priority(HashedCache):
    """The idle block of the lowest priority goes first; of several, the oldest."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._priority: Counter[int] = Counter()

    def admit(self, request: str, key: CacheKey, priority: int = 0) -> int:
        hit = super().admit(request, key)
        for block in self._live[request].table:
            self._priority[block] = max(priority, self._priority[block])
        return hit

    def _victim(self) -> int:
        return min(self._idle, key=self._priority.__getitem__)

    def _evict_block(self) -> int:
        block = super()._evict_block()
        del self._priority[block]
        return block


@control("evict-all", replace(DECLARATION, **UNORDERED, granularity=Granularity.ALL))
class EvictAll(HashedCache):
    """Has no replacement policy: when room is needed, everything idle goes."""

    def _recycle(self) -> int:
        self.evict(1)
        return self._free.popleft()

    def evict(self, num_blocks: int) -> int:
        return super().evict(self.num_blocks if num_blocks else 0)


# ---------------------------------------------------------------------------- publishing, hit law


@control("remap", replace(DECLARATION, dedup=Dedup.REMAP))
class Remap(HashedCache):
    """A duplicate gives way: the table gets the block that is known, its own becomes free."""

    def _publish_block(self, entry: LiveRequest, index: int, key: bytes) -> None:
        canonical = self._lookup(key)
        if canonical is None:
            super()._publish_block(entry, index, key)
            return
        self._hold(canonical)
        self._drop(entry.table[index])
        entry.table[index] = canonical


@control("first-copy", DECLARATION)
class FirstCopy(HashedCache):
    """A duplicate stays in its table but is not made known, and is free after its request."""

    def _map(self, block: int, key: bytes) -> None:
        if self._lookup(key) is None:
            super()._map(block, key)


@control("publish-at-finish", AT_FINISH)
class PublishAtFinish(HashedCache):
    """Only requests that finish leave something behind, at the moment they leave."""

    def release(self, request: str, outcome: Outcome = Outcome.FINISHED) -> None:
        entry = self._live[request]
        if outcome is Outcome.FINISHED:
            super()._publish(entry, entry.committed // self.block_size)
        super().release(request, outcome)

    def _publish(self, entry: LiveRequest, count: int) -> None:
        """Not yet."""

    def _map(self, block: int, key: bytes) -> None:
        if block not in self._key_of:
            super()._map(block, key)


@control("publish-at-reservation", replace(DECLARATION, publish=Publish.RESERVATION))
class PublishAtReservation(HashedCache):
    """What has slots is visible at once: who looks it up runs after it."""

    def admit(self, request: str, key: CacheKey) -> int:
        hit = super().admit(request, key)
        self._publish(self._live[request], len(key.tokens) // self.block_size)
        return hit

    def append(self, request: str, tokens: Sequence[int]) -> None:
        super().append(request, tokens)
        entry = self._live[request]
        self._publish(entry, len(entry.tokens) // self.block_size)


@control("drafts-at-release", DRAFTING)
class DraftsAtRelease(HashedCache):
    """Knows no commit: what is verified becomes visible when its request leaves."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._drafts: dict[str, int] = {}

    def append(self, request: str, tokens: Sequence[int], drafts: int = 0) -> None:
        super().append(request, tokens)
        self._drafts[request] = drafts

    def accept(self, request: str, num_tokens: int) -> None:
        kept = self._verified(request) + num_tokens
        self._drafts[request] = 0
        self.truncate(request, kept)

    def release(self, request: str, outcome: Outcome = Outcome.FINISHED) -> None:
        entry = self._live[request]
        self._publish(entry, self._verified(request) // self.block_size)
        self._drafts.pop(request, None)
        super().release(request, outcome)

    def _verified(self, request: str) -> int:
        return len(self._live[request].tokens) - self._drafts.get(request, 0)


@control("reserve-two", replace(DECLARATION, reserve=2))
class ReserveTwo(HashedCache):
    """Leaves at least two tokens of every prompt to compute."""

    def _hit_limit(self, length: int) -> int:
        return max(0, length - 2) // self.block_size


@control("drop-one", replace(DECLARATION, drop=1))
class DropOne(HashedCache):
    """Leaves the last block of every hit to compute, as draft models need it."""

    def _match(self, entry: LiveRequest) -> list[int]:
        return super()._match(entry)[:-1]


# ---------------------------------------------------------------------------------- copy-on-write


@control("copy-published", replace(DECLARATION, **UNORDERED))
class CopyPublished(HashedCache):
    """Never withdraws: a write into a published block goes to a copy even for its only owner."""

    def _needs_copy(self, block: int) -> bool:
        return super()._needs_copy(block) or block in self._key_of


# ------------------------------------------------------------------------------- tensors of its own


@control("stored", STORED)
class Stored(HashedCache):
    """Keeps keys and values itself, and has copied what it copies before it says so."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._key_slots = [0] * (num_blocks * block_size)
        self._value_slots = [0] * (num_blocks * block_size)

    def write(self, group: int, slots: Sequence[int], tags: Sequence[int]) -> None:
        """Whatever a worker would write."""
        for slot, tag in zip(slots, tags, strict=True):
            self._key_slots[slot] = self._value_slots[slot] = tag

    def read(self, group: int, slots: Sequence[int]) -> list[int]:
        """What keys and values agree on."""
        parts = [(self._key_slots[slot], self._value_slots[slot]) for slot in slots]
        return [key if key == value else TORN for key, value in parts]

    def _record_copy(self, source: int, destination: int) -> None:
        for part in (self._key_slots, self._value_slots):
            self._copy(part, source * self.block_size, destination * self.block_size)

    def _copy(self, part: list[int], source: int, destination: int) -> None:
        """One block of keys, or of values, from its first slot on."""
        part[destination : destination + self.block_size] = part[source : source + self.block_size]
