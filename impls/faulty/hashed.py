"""A block-granular prefix cache with chained keys, written apart from the harness and its model.

The healthy body that `managers` corrupts and `controls` bends: every decision is a method of its
own, so that a variant overrides exactly one. Full blocks are published when their KV is committed.
A key may stand for several blocks (duplicates are kept, look-ups return the oldest); a published
block without owner is idle and evicted in the order of release, the tail of a table first. A write
into a block that others hold goes to a copy; a write into a published block that nobody else holds
withdraws it first.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from kvassay.harness.contract import (
    CacheKey,
    CacheManager,
    Capability,
    Counters,
    Declaration,
    Order,
    Outcome,
    OutOfBlocks,
    Stamp,
)
from kvassay.harness.registry import implementation

DECLARATION = Declaration(
    capabilities=frozenset(
        {
            Capability.PREFIX_CACHE,
            Capability.SALT,
            Capability.ADAPTER,
            Capability.COMMIT,
            Capability.FORK,
            Capability.COPIES,
            Capability.TRUNCATE,
            Capability.EVICT,
            Capability.RESET,
            Capability.COUNTERS,
            Capability.REFCOUNTS,
        }
    ),
    order=Order.LRU,
    stamps=frozenset({Stamp.RELEASE}),
)


@dataclass
class LiveRequest:
    """One live request: what it is made of, and how far it has come."""

    tokens: list[int]
    salt: str | None
    adapter: str | None
    table: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    """Chained keys of the leading full blocks, as far as they were needed."""
    committed: int = 0
    """Leading tokens whose KV is written."""
    published: int = 0
    """Leading blocks that were published or hit."""


@implementation("hashed", kind=CacheManager, declaration=DECLARATION)
class HashedCache:
    """Block pool, block tables and a map from chained keys to blocks."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free: deque[int] = deque(self._block_ids())
        self._references: dict[int, int] = dict.fromkeys(self._free, 0)
        self._idle: dict[int, None] = {}
        self._blocks_of: dict[bytes, list[int]] = {}
        self._key_of: dict[int, bytes] = {}
        self._live: dict[str, LiveRequest] = {}
        self._copies: list[tuple[int, int]] = []

    # -------------------------------------------------------------------------------- operations

    def admit(self, request: str, key: CacheKey) -> int:
        """Slots for the whole prompt; returns the leading tokens already resident."""
        entry = LiveRequest([int(token) for token in key.tokens], key.salt, key.adapter)
        hits = self._match(entry)
        fresh = self._blocks_for(len(entry.tokens)) - len(hits)
        self._require(fresh, self._room_for_admission(hits))
        for block in hits:
            self._reuse(block)
        entry.table = [*hits, *self._take_blocks(fresh)]
        entry.committed = len(hits) * self.block_size
        entry.published = len(hits)
        self._live[request] = entry
        return entry.committed

    def append(self, request: str, tokens: Sequence[int]) -> None:
        """Slots for further tokens."""
        entry = self._live[request]
        fresh = self._blocks_for(len(entry.tokens) + len(tokens)) - len(entry.table)
        tail = self._open_block(entry)
        copying = tail is not None and self._needs_copy(tail)
        self._require(max(fresh, 0) + copying, self._room())
        if copying:
            self._copy_on_write(entry)
        elif tail in self._key_of:
            self._withdraw(tail)
        entry.table += self._take_blocks(fresh)
        entry.tokens += map(int, tokens)

    def commit(self, request: str, num_tokens: int) -> None:
        """The KV of the first `num_tokens` is written: full blocks become visible."""
        entry = self._live[request]
        if not entry.committed < num_tokens <= len(entry.tokens):
            raise ValueError(
                f"num_tokens: expected more than {entry.committed} and at most "
                f"{len(entry.tokens)}, got {num_tokens}"
            )
        entry.committed = num_tokens
        self._publish(entry, num_tokens // self.block_size)

    def fork(self, parent: str, children: Sequence[str]) -> None:
        """The children start with the tokens and the blocks of the parent."""
        entry = self._live[parent]
        if entry.committed < len(entry.tokens):
            raise ValueError(f"{parent}: only {entry.committed} tokens are committed")
        for child in children:
            self._live[child] = self._share_on_fork(entry)

    def truncate(self, request: str, num_tokens: int) -> None:
        """Only the first `num_tokens` remain."""
        entry = self._live[request]
        if not 1 <= num_tokens <= len(entry.tokens):
            raise ValueError(f"num_tokens: expected 1 to {len(entry.tokens)}, got {num_tokens}")
        kept = self._blocks_for(num_tokens)
        self._release_blocks(entry.table[kept:])
        del entry.table[kept:]
        del entry.tokens[num_tokens:]
        entry.committed = min(entry.committed, num_tokens)
        entry.published = min(entry.published, num_tokens // self.block_size)
        self._forget_keys(entry)

    def release(self, request: str, outcome: Outcome = Outcome.FINISHED) -> None:
        """The request leaves; what it published stays until the room is needed."""
        self._release_blocks(self._live.pop(request).table)

    def evict(self, num_blocks: int) -> int:
        """Free up to `num_blocks` idle blocks; returns how many."""
        freed = min(num_blocks, len(self._idle))
        for _ in range(freed):
            self._give_back(self._evict_block())
        return freed

    def reset(self) -> None:
        """Forget everything cached; `ValueError` while requests are live."""
        if self._live:
            raise ValueError(f"reset with {len(self._live)} live requests, expected none")
        self._clear()

    def take_copies(self) -> list[tuple[int, int]]:
        """The copies that became due since the last call."""
        copies, self._copies = self._copies, []
        return copies

    # -------------------------------------------------------------------------------- inspection

    def block_table(self, request: str) -> list[int]:
        """Physical block of logical block 0, 1, ..."""
        return list(self._live[request].table)

    def counters(self) -> Counters:
        """Blocks by state."""
        return Counters(free=len(self._free), cached=len(self._idle), used=len(self.refcounts()))

    def refcounts(self) -> dict[int, int]:
        """For each block in use, how many requests hold it."""
        return {block: count for block, count in self._references.items() if count > 0}

    # -------------------------------------------------------------------------------- keys, look-up

    def _block_key(
        self, parent: bytes, tokens: Sequence[int], salt: str | None, adapter: str | None
    ) -> bytes:
        """Identity of a full block: its tokens and all that comes before them."""
        parts = (parent, tuple(tokens), salt, adapter)
        return hashlib.sha256(repr(parts).encode()).digest()

    def _parent_key(self, entry: LiveRequest) -> bytes:
        return entry.keys[-1] if entry.keys else b""

    def _keys(self, entry: LiveRequest, count: int) -> list[bytes]:
        """Keys of the first `count` blocks."""
        for index in range(len(entry.keys), count):
            start = index * self.block_size
            tokens = entry.tokens[start : start + self.block_size]
            parent = self._parent_key(entry)
            entry.keys.append(self._block_key(parent, tokens, entry.salt, entry.adapter))
        return entry.keys[:count]

    def _forget_keys(self, entry: LiveRequest) -> None:
        """Drop the keys of blocks that are full no longer."""
        del entry.keys[len(entry.tokens) // self.block_size :]

    def _hit_limit(self, length: int) -> int:
        """Most blocks that a prompt of `length` tokens may hit: one token is left to compute."""
        return (length - 1) // self.block_size

    def _match(self, entry: LiveRequest) -> list[int]:
        """Resident blocks of the longest known prefix."""
        hits = []
        for key in self._keys(entry, self._hit_limit(len(entry.tokens))):
            block = self._lookup(key)
            if block is None:
                break
            hits.append(block)
        return hits

    def _lookup(self, key: bytes) -> int | None:
        blocks = self._blocks_of.get(key)
        return blocks[0] if blocks else None

    # -------------------------------------------------------------------------------- publishing

    def _publish(self, entry: LiveRequest, count: int) -> None:
        """Make the first `count` blocks visible."""
        keys = self._keys(entry, count)
        for index in range(entry.published, count):
            self._publish_block(entry, index, keys[index])
        entry.published = max(entry.published, count)

    def _publish_block(self, entry: LiveRequest, index: int, key: bytes) -> None:
        self._map(entry.table[index], key)

    def _map(self, block: int, key: bytes) -> None:
        self._blocks_of.setdefault(key, []).append(block)
        self._key_of[block] = key

    def _unmap(self, block: int) -> None:
        key = self._key_of.pop(block)
        blocks = self._blocks_of[key]
        blocks.remove(block)
        if not blocks:
            del self._blocks_of[key]

    def _withdraw(self, block: int) -> None:
        """Before its only owner writes into a published block."""
        self._unmap(block)

    # -------------------------------------------------------------------------------- pool

    def _block_ids(self) -> Iterable[int]:
        return range(self.num_blocks)

    def _blocks_for(self, length: int) -> int:
        return -(-length // self.block_size)

    def _room(self) -> int:
        return len(self._free) + len(self._idle)

    def _room_for_admission(self, hits: Sequence[int]) -> int:
        return self._room() - sum(block in self._idle for block in hits)

    def _require(self, needed: int, room: int) -> None:
        """Refuse before anything has changed."""
        if needed > room:
            raise OutOfBlocks(f"{needed} blocks needed, {room} free or evictable")

    def _take_block(self) -> int:
        block = self._free.popleft() if self._free else self._recycle()
        self._references[block] = 1
        return block

    def _take_blocks(self, count: int) -> list[int]:
        return [self._take_block() for _ in range(count)]

    def _recycle(self) -> int:
        """A block for a new owner, taken from the cache."""
        return self._evict_block()

    def _give_back(self, block: int) -> None:
        self._free.append(block)

    def _clear(self) -> None:
        """Nothing is cached any more, and every block is free."""
        self.evict(self.num_blocks)

    def _victim(self) -> int:
        """The idle block to go next: the first that was released."""
        return next(iter(self._idle))

    def _evict_block(self) -> int:
        block = self._victim()
        del self._idle[block]
        self._unmap(block)
        return block

    # -------------------------------------------------------------------------------- sharing

    def _hold(self, block: int) -> None:
        """One more owner, who takes an idle block out of the reach of eviction."""
        self._references[block] += 1
        self._idle.pop(block, None)

    def _reuse(self, block: int) -> None:
        """Hold a block that a look-up found."""
        self._hold(block)

    def _drop(self, block: int) -> None:
        """One owner less; after the last the block is idle if published, else free."""
        self._references[block] -= 1
        if self._references[block] > 0:
            return
        if block in self._key_of:
            self._idle[block] = None
        else:
            self._give_back(block)

    def _release_order(self, blocks: Sequence[int]) -> Iterable[int]:
        return reversed(blocks)

    def _release_blocks(self, blocks: Sequence[int]) -> None:
        for block in self._release_order(blocks):
            self._drop(block)

    def _share_on_fork(self, parent: LiveRequest) -> LiveRequest:
        for block in parent.table:
            self._hold(block)
        return replace(parent, tokens=[*parent.tokens], table=[*parent.table], keys=[*parent.keys])

    def _open_block(self, entry: LiveRequest) -> int | None:
        """The partly filled block that the next token goes into, if there is one."""
        index, filled = divmod(len(entry.tokens), self.block_size)
        return entry.table[index] if filled else None

    def _needs_copy(self, block: int) -> bool:
        """Whether a write into `block` would be seen by another owner."""
        return self._references[block] > 1

    def _copy_on_write(self, entry: LiveRequest) -> None:
        index = len(entry.tokens) // self.block_size
        source = entry.table[index]
        entry.table[index] = self._take_block()
        self._record_copy(source, entry.table[index])
        self._drop(source)

    def _record_copy(self, source: int, destination: int) -> None:
        self._copies.append((source, destination))
