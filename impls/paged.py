"""PagedAttention's cache manager: block tables over a fixed pool, shared with copy-on-write.

KV memory is a pool of equal blocks. The KV of a request's token at position p lies in block
``table[p // B]`` at offset ``p % B``, wherever in the pool that block may be. So a request takes
blocks one by one as it grows, wastes less than one block, and requests can share blocks.

Invariants:

* a table has exactly ceil(length / B) blocks, all of them distinct;
* a block that several tables hold is not written. Sharing comes from `fork` alone, and a shared
  block is full or is the last of its table; so only the first write into a partially filled last
  block can meet sharers, and it goes to a fresh copy of that block;
* an operation counts what it needs before it changes anything, so a refusal has no effect.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvassay.harness.contract import (
    CacheKey,
    CacheManager,
    Capability,
    Counters,
    Declaration,
    Outcome,
    OutOfBlocks,
)
from kvassay.harness.registry import implementation
from kvassay.impls.block_pool import BlockPool
from kvassay.impls.inputs import (
    field_of,
    live_request,
    new_children,
    new_request,
    token_array,
    whole,
)


class _Request:
    """One live request: how long it is, and where its KV lies."""

    __slots__ = ("length", "table")

    def __init__(self, length: int, table: list[int]) -> None:
        self.length = length
        self.table = table


@implementation(
    "paged",
    kind=CacheManager,
    declaration=Declaration(
        capabilities=frozenset(
            {
                Capability.FORK,
                Capability.COPIES,
                Capability.TRUNCATE,
                Capability.QUERY,
                Capability.COUNTERS,
                Capability.REFCOUNTS,
                Capability.DRAIN,
                Capability.VALIDATES_INPUT,
            }
        )
    ),
)
class PagedManager:
    """Blocks on demand, copy-on-write, no prefix cache."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = whole(num_blocks, "num_blocks", 1)
        self.block_size = whole(block_size, "block_size", 1)
        self._pool = BlockPool(self.num_blocks)
        self._live: dict[str, _Request] = {}
        self._copies: list[tuple[int, int]] = []

    def admit(self, request: str, key: CacheKey) -> int:
        """Slots for the whole prompt; nothing of it is ever resident."""
        new_request(request, self._live)
        length = len(token_array(field_of(key, "tokens")))
        self._require(self._blocks(length))
        self._live[request] = _Request(length, self._pool.take(self._blocks(length)))
        return 0

    def append(self, request: str, tokens: Sequence[int]) -> None:
        """Slots for further tokens; copies the last block if others would see the write."""
        state = live_request(request, self._live)
        length = state.length + len(token_array(tokens))
        shared = state.length % self.block_size and self._pool.users[state.table[-1]] > 1
        needed = self._blocks(length) - len(state.table) + (1 if shared else 0)
        self._require(needed)
        fresh = self._pool.take(needed)
        if shared:
            source = state.table.pop()
            self._copies.append((source, fresh[0]))
            self._pool.drop(source)
        state.table += fresh
        state.length = length

    def fork(self, parent: str, children: Sequence[str]) -> None:
        """Each child shares all blocks of the parent; this takes no block at all."""
        state = live_request(parent, self._live)
        for child in new_children(children, self._live):
            self._live[child] = _Request(state.length, list(state.table))
            for block in state.table:
                self._pool.share(block)

    def truncate(self, request: str, num_tokens: int) -> None:
        """Give back the blocks past the first `num_tokens` tokens."""
        state = live_request(request, self._live)
        state.length = whole(num_tokens, "num_tokens", 1, state.length)
        kept = self._blocks(state.length)
        for block in reversed(state.table[kept:]):
            self._pool.drop(block)
        del state.table[kept:]

    def release(self, request: str, outcome: Outcome = Outcome.FINISHED) -> None:
        """The request leaves; blocks that nobody shares are free at once."""
        Outcome(outcome)
        for block in reversed(live_request(request, self._live).table):
            self._pool.drop(block)
        del self._live[request]

    def block_table(self, request: str) -> list[int]:
        """Physical block of logical block 0, 1, ..."""
        return list(live_request(request, self._live).table)

    def take_copies(self) -> list[tuple[int, int]]:
        """The copies (source, destination) that the device must do before the next write."""
        copies, self._copies = self._copies, []
        return copies

    def can_admit(self, key: CacheKey) -> bool:
        """Whether `admit` would succeed now."""
        length = len(token_array(field_of(key, "tokens")))
        return self._blocks(length) <= len(self._pool.free)

    def drain(self) -> None:
        """Nothing is ever deferred."""

    def counters(self) -> Counters:
        """Blocks by state."""
        free = len(self._pool.free)
        return Counters(free=free, cached=0, used=self.num_blocks - free)

    def refcounts(self) -> dict[int, int]:
        """For each block in use, the number of tables that hold it."""
        return {block: users for block, users in enumerate(self._pool.users) if users}

    def _blocks(self, length: int) -> int:
        return -(-length // self.block_size)

    def _require(self, needed: int) -> None:
        free = len(self._pool.free)
        if needed > free:
            raise OutOfBlocks(f"{needed} blocks needed, {free} free")
