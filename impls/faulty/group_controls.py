"""Controls with layer groups and windows: correct managers with habits of their own.

Each is `GroupedCache` with one habit changed and, where the contract has a word for it, declared.
Importing this module registers each as implementation ``control-<name>``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvassay.harness.contract import (
    CacheKey,
    CacheManager,
    Capability,
    GroupSpec,
    Outcome,
    Publish,
    Refusal,
)
from kvassay.harness.registry import implementation
from kvassay.impls.faulty.grouped import DECLARATION, NULL, USUAL, GroupedCache, Strand
from kvassay.impls.faulty.hashed import LiveRequest

IN_STEP = replace(
    DECLARATION,
    capabilities=DECLARATION.capabilities - {Capability.COMMIT},
    publish=Publish.RESERVATION,
)
AT_RELEASE = replace(DECLARATION, publish=Publish.RELEASE)
ONE_WINDOW = replace(
    DECLARATION, capabilities=DECLARATION.capabilities - {Capability.GROUPS}, window=7
)


@implementation("control-groups", kind=CacheManager, declaration=DECLARATION)
class Groups(GroupedCache):
    """Layer groups that share a pool, with windows."""


@implementation("control-one-window", kind=CacheManager, declaration=ONE_WINDOW)
class OneWindow(GroupedCache):
    """All layers have one window; nothing is said of groups."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size, (GroupSpec("all", window=ONE_WINDOW.window),))


@implementation("control-window-kept", kind=CacheManager, declaration=DECLARATION)
class WindowKept(GroupedCache):
    """Gives back what a window has passed only at the end."""

    def _drop_passed(self, strand: Strand) -> None:
        """Keep it."""


@implementation("control-window-shown", kind=CacheManager, declaration=DECLARATION)
class WindowShown(GroupedCache):
    """Gives back what a window has passed, and goes on showing the block that it was in."""

    def __init__(
        self, num_blocks: int, block_size: int, groups: Sequence[GroupSpec] = USUAL
    ) -> None:
        super().__init__(num_blocks, block_size, groups)
        self._shown: dict[tuple[str, str | None], list[int]] = {}

    def block_table(self, request: str, group: str | None = None) -> list[int]:
        table, shown = super().block_table(request, group), self._shown.get((request, group), [])
        shown += table[len(shown) :]
        for index, block in enumerate(table):
            shown[index] = shown[index] if block == NULL else block
        self._shown[request, group] = shown
        return list(shown)

    def release(self, request: str, outcome: Outcome = Outcome.FINISHED) -> None:
        super().release(request, outcome)
        for group in self.groups:
            self._shown.pop((request, group.name), None)


@implementation("control-window-forgotten", kind=CacheManager, declaration=DECLARATION)
class WindowForgotten(GroupedCache):
    """Caches nothing of what a window has passed: only whole prefixes can be hit."""

    def _pass(self, strand: Strand, index: int) -> None:
        block = strand.table[index]
        if self._references[block] == 1 and block in self._key_of:
            self._unmap(block)
        super()._pass(strand, index)


@implementation(
    "control-window-dropped-late",
    kind=CacheManager,
    declaration=replace(DECLARATION, refusal=Refusal.MAY_DROP_WINDOW),
)
class WindowDroppedLate(GroupedCache):
    """Gives back what a window has passed when more is asked for, be it refused or not."""

    def append(self, request: str, tokens: Sequence[int]) -> None:
        for strand in self._strands[request]:
            super()._drop_passed(strand)
        super().append(request, tokens)

    def _drop_passed(self, strand: Strand) -> None:
        """Not with the commit."""


@implementation("control-whole-prefixes", kind=CacheManager, declaration=DECLARATION)
class WholePrefixes(WindowForgotten):
    """Hits whole prefixes alone, and keeps nothing that lies behind a block it has forgotten."""

    def _has(self, strand: Strand, count: int) -> bool:
        return all(self._lookup(key) is not None for key in self._keys(strand, count))

    def release(self, request: str, outcome: Outcome = Outcome.FINISHED) -> None:
        strands = self._strands[request]
        forgotten = max(strand.table.count(NULL) for strand in strands)
        behind = [block for strand in strands for block in strand.table[forgotten:] if forgotten]
        for block in behind:
            if self._references[block] == 1 and block in self._key_of:
                self._unmap(block)
        super().release(request, outcome)


@implementation("control-groups-in-step", kind=CacheManager, declaration=IN_STEP)
class GroupsInStep(GroupedCache):
    """Publishes with the reservation and drops with the next, as engines do that write in step."""

    def admit(self, request: str, key: CacheKey) -> int:
        hit = super().admit(request, key)
        self._written(request)
        return hit

    def append(self, request: str, tokens: Sequence[int]) -> None:
        super().append(request, tokens)
        for strand in self._strands[request]:
            self._drop_passed(strand)
        self._written(request)

    def _written(self, request: str) -> None:
        for strand in self._strands[request]:
            strand.committed = len(strand.tokens)
            self._publish(strand, strand.committed // self.block_size)


@implementation("control-groups-published-at-release", kind=CacheManager, declaration=AT_RELEASE)
class PublishedAtRelease(GroupedCache):
    """Publishes when a request leaves, and then what its windows still show."""

    def _publish(self, entry: LiveRequest, count: int) -> None:
        """Not with the commit."""

    def release(self, request: str, outcome: Outcome = Outcome.FINISHED) -> None:
        for strand in self._strands[request]:
            count = strand.committed // self.block_size
            keys = self._keys(strand, count)
            for index in range(strand.published, count):
                block = strand.table[index]
                if block != NULL and block not in self._key_of:
                    self._map(block, keys[index])
        super().release(request, outcome)
