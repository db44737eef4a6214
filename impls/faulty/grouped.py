"""`HashedCache` over layer groups and windows: one pool, a table for each group, one hit for all.

The healthy body that `group_faults` corrupts and `group_controls` bends; every decision is a method
of its own. A request is a strand in each group, whose keys begin with the group's name. What a
window has passed is given back, and its entry becomes the null block 0, with the commit that takes
the window on. A hit is the longest prefix of which every group has what the next query sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from kvassay.harness.contract import (
    CacheKey,
    CacheManager,
    Capability,
    Declaration,
    GroupSpec,
    Outcome,
)
from kvassay.harness.registry import implementation
from kvassay.impls.faulty.hashed import HashedCache, LiveRequest

NULL = 0
USUAL = (GroupSpec("full"), GroupSpec("window", window=8))
DECLARATION = Declaration(
    capabilities=frozenset(
        {
            Capability.GROUPS,
            Capability.PREFIX_CACHE,
            Capability.SALT,
            Capability.ADAPTER,
            Capability.COMMIT,
            Capability.FORK,
            Capability.COPIES,
            Capability.EVICT,
            Capability.RESET,
            Capability.QUERY,
            Capability.PEEK,
            Capability.COUNTERS,
            Capability.REFCOUNTS,
        }
    ),
    reserved_ids=(NULL,),
)


@dataclass
class Strand(LiveRequest):
    """One live request in one layer group."""

    group: GroupSpec = field(default_factory=lambda: USUAL[0])


@implementation("grouped", kind=CacheManager, declaration=DECLARATION)
class GroupedCache(HashedCache):
    """A pool that layer groups share, and a map from chained keys to blocks."""

    def __init__(
        self, num_blocks: int, block_size: int, groups: Sequence[GroupSpec] = USUAL
    ) -> None:
        self.groups = tuple(groups)
        super().__init__(num_blocks, block_size)
        self._strands: dict[str, list[Strand]] = {}

    def _block_ids(self) -> Iterable[int]:
        return range(NULL + 1, NULL + 1 + self.num_blocks)

    # -------------------------------------------------------------------------------- operations

    def admit(self, request: str, key: CacheKey) -> int:
        """Slots for the whole prompt in every group; returns the leading tokens that all have."""
        strands = self._new_strands(key)
        count = self._count(strands)
        found = [self._found(strand, count) for strand in strands]
        hits = [block for table in found for block in table if block != NULL]
        fresh = self._blocks_for(len(key.tokens)) - count
        self._require(fresh * len(strands), self._room_for_admission(hits))
        for block in hits:
            self._reuse(block)
        for strand, table in zip(strands, found, strict=True):
            strand.table = [*table, *self._take_blocks(fresh)]
            strand.committed, strand.published = count * self.block_size, count
        self._strands[request], self._live[request] = strands, strands[0]
        return count * self.block_size

    def append(self, request: str, tokens: Sequence[int]) -> None:
        """Slots for further tokens in every group."""
        strands = self._strands[request]
        length = len(strands[0].tokens) + len(tokens)
        fresh = self._blocks_for(length) - len(strands[0].table)
        copying = [strand for strand in strands if self._tail_is_shared(strand)]
        self._require(fresh * len(strands) + len(copying), self._room())
        for strand in copying:
            self._copy_on_write(strand)
        for strand in strands:
            strand.table += self._take_blocks(fresh)
            strand.tokens += map(int, tokens)

    def commit(self, request: str, num_tokens: int) -> None:
        """The KV is written in every group; windows move on."""
        strands = self._strands[request]
        if not strands[0].committed < num_tokens <= len(strands[0].tokens):
            raise ValueError(
                f"num_tokens: expected more than {strands[0].committed} and at most "
                f"{len(strands[0].tokens)}, got {num_tokens}"
            )
        for strand in strands:
            strand.committed = num_tokens
            self._publish(strand, num_tokens // self.block_size)
        for strand in strands:
            self._drop_passed(strand)

    def fork(self, parent: str, children: Sequence[str]) -> None:
        """The children start with the tokens and the blocks of the parent."""
        strands = self._strands[parent]
        if strands[0].committed < len(strands[0].tokens):
            raise ValueError(f"{parent}: only {strands[0].committed} tokens are committed")
        for child in children:
            shared = [self._share_strand(strand) for strand in strands]
            self._strands[child], self._live[child] = shared, shared[0]

    def release(self, request: str, outcome: Outcome = Outcome.FINISHED) -> None:
        """The request leaves every group."""
        del self._live[request]
        for strand in self._strands.pop(request):
            self._release_blocks(strand.table)

    def can_admit(self, key: CacheKey) -> bool:
        """Whether `admit` would find room for this key."""
        strands = self._new_strands(key)
        count = self._count(strands)
        found = [block for strand in strands for block in self._found(strand, count)]
        fresh = self._blocks_for(len(key.tokens)) - count
        hits = [block for block in found if block != NULL]
        return fresh * len(strands) <= self._room_for_admission(hits)

    def peek(self, key: CacheKey) -> int:
        """What `admit` would return."""
        return self._count(self._new_strands(key)) * self.block_size

    def block_table(self, request: str, group: str | None = None) -> list[int]:
        """Physical block of logical block 0, 1, ... in one group; 0 where its window has passed."""
        return list(self._strand(request, group).table)

    # ------------------------------------------------------------------------------------ strands

    def _new_strands(self, key: CacheKey) -> list[Strand]:
        return [
            Strand([int(token) for token in key.tokens], key.salt, key.adapter, group=group)
            for group in self.groups
        ]

    def _strand(self, request: str, group: str | None) -> Strand:
        strands = self._strands[request]
        return next(each for each in strands if group in (None, each.group.name))

    def _share_strand(self, strand: Strand) -> Strand:
        for block in strand.table:
            if block != NULL:
                self._hold(block)
        return replace(strand, tokens=[*strand.tokens], table=[*strand.table], keys=[*strand.keys])

    def _tail_is_shared(self, strand: Strand) -> bool:
        tail = self._open_block(strand)
        return tail is not None and self._needs_copy(tail)

    # ------------------------------------------------------------------------------------ windows

    def _first(self, strand: Strand, num_tokens: int) -> int:
        """First logical block that the query at position `num_tokens` sees."""
        window = strand.group.window
        return 0 if window is None else max(0, num_tokens - window + 1) // self.block_size

    def _drop_passed(self, strand: Strand) -> None:
        """Give back what no query sees any more, the last first."""
        for index in reversed(range(self._first(strand, strand.committed))):
            if strand.table[index] != NULL:
                self._pass(strand, index)

    def _pass(self, strand: Strand, index: int) -> None:
        self._drop(strand.table[index])
        strand.table[index] = NULL

    # ------------------------------------------------------------------------------------ look-up

    def _parent_key(self, entry: LiveRequest) -> bytes:
        assert isinstance(entry, Strand)
        return entry.keys[-1] if entry.keys else self._root(entry)

    def _root(self, strand: Strand) -> bytes:
        return strand.group.name.encode()

    def _count(self, strands: Sequence[Strand]) -> int:
        """Blocks of the longest prefix of which every group has what is needed."""
        limit = self._hit_limit(len(strands[0].tokens))
        for count in range(limit, 0, -1):
            if all(self._has(strand, count) for strand in strands):
                return count
        return 0

    def _has(self, strand: Strand, count: int) -> bool:
        """Whether all that is seen behind a hit of `count` blocks is cached in this group."""
        keys = self._keys(strand, count)
        seen = min(count - 1, self._first(strand, count * self.block_size))
        return all(self._lookup(key) is not None for key in keys[seen:])

    def _found(self, strand: Strand, count: int) -> list[int]:
        """The blocks of a hit, null where they are not seen."""
        first = self._first(strand, count * self.block_size)
        keys = self._keys(strand, count)
        return [NULL] * min(first, count) + [self._cached(key) for key in keys[first:]]

    def _cached(self, key: bytes) -> int:
        block = self._lookup(key)
        assert block is not None
        return block

    def _release_blocks(self, blocks: Sequence[int]) -> None:
        super()._release_blocks([block for block in blocks if block != NULL])
