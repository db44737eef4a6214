"""Planted faults seen from inside an engine: `PagedEngine` with one decision corrupted.

What is on trial is the device inside (`harness.inside`). Each fault replaces methods of the
scheduler, the cache manager, the pool or the worker; most leave everything that a manager tells
about itself as it was. The controls are engines with other habits that are right too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kvassay.harness.inside.batch import Batch, Ints
from kvassay.harness.inside.playing import Answer
from kvassay.harness.inside.scene import Scene
from kvassay.impls.faulty.paged_engine import NULL, Key, PagedEngine, Pool, Request, Worker

LONGEST, VOCABULARY, OUTPUT = 60, 50, 12


@dataclass(frozen=True)
class InsideFault:
    """One planted fault."""

    name: str
    accepted: frozenset[str]
    """Ids of the invariants that may convict it."""
    hides: str
    """What keeps it out of sight, and what brings it out."""
    corrupted: type
    scene: Scene
    host: Scene
    """The same without the fault."""


FAULTS: dict[str, InsideFault] = {}
CONTROLS: dict[str, tuple[Scene, str]] = {}
"""Scenes by name, and what is odd about each."""


def scene_of(build: Callable[[], PagedEngine]) -> Scene:
    """A small engine under traffic of its size."""
    return Scene(build, longest=LONGEST, vocabulary=VOCABULARY, output=OUTPUT)


def fault(
    name: str, accepted: str, windows: Sequence[int | None] = (None,)
) -> Callable[[type], type]:
    """Enter an engine, or an engine with this pool or worker, into `FAULTS`."""

    def plant(corrupted: type) -> type:
        engine = _engine(name, corrupted)
        num_blocks = 24 * len(windows)
        FAULTS[name] = InsideFault(
            name,
            frozenset(accepted.split()),
            (corrupted.__doc__ or "").strip(),
            corrupted,
            scene_of(lambda: engine(windows=windows, num_blocks=num_blocks)),
            scene_of(lambda: PagedEngine(windows=windows, num_blocks=num_blocks)),
        )
        return corrupted

    return plant


def control(
    name: str, windows: Sequence[int | None] = (None,), num_blocks: int = 24
) -> Callable[[type], type]:
    """Enter a correct engine, or one with this pool or worker, into `CONTROLS`."""

    def plant(odd: type) -> type:
        engine = _engine(name, odd)
        scene = scene_of(lambda: engine(windows=windows, num_blocks=num_blocks))
        CONTROLS[name] = scene, (odd.__doc__ or "").strip()
        return odd

    return plant


def _engine(name: str, part: type) -> type[PagedEngine]:
    if issubclass(part, PagedEngine):
        return part
    place = "pool_type" if issubclass(part, Pool) else "worker_type"
    return type(name, (PagedEngine,), {place: part})


# -------------------------------------------------------------------------------------- the worker


@fault("row-not-appended", "A7")
class RowNotAppended(Worker):
    """Blocks that a running request gets are counted in its row, but not written there.

    What it had when it came is right; a longer answer brings it out.
    """

    def append(self, group: int, row: int, blocks: Sequence[int]) -> None:
        if self.filled[group, row]:
            self.filled[group, row] += len(blocks)
        else:
            super().append(group, row, blocks)


@fault("appended-one-too-far", "A7")
class AppendedOneTooFar(Worker):
    """A running request's new block is written one column to the right of its place."""

    def append(self, group: int, row: int, blocks: Sequence[int]) -> None:
        start = int(self.filled[group, row])
        super().append(group, row, blocks)
        if start:
            self.tables[group, row, start + 1 : start + 1 + len(blocks)] = blocks
            self.tables[group, row, start] = NULL


@fault("row-not-moved", "A7")
class RowNotMoved(Worker):
    """When rows are condensed, names move and tables stay.

    Only a request that stood behind one that left is given a stranger's old table.
    """

    def move(self, source: int, target: int) -> None:
        self.filled[:, target] = self.filled[:, source]


@fault("stale-row-kept", "A7")
class StaleRowKept(Worker):
    """A request's first block is not written into a row that has been used before."""

    def add(self, name: str, blocks: Sequence[Sequence[int]]) -> None:
        row = self.rows.index(None)
        before = self.tables[:, row, 0].copy()
        super().add(name, blocks)
        self.tables[:, row, 0] = np.where(before == NULL, self.tables[:, row, 0], before)


@fault("slots-from-the-chunk", "A2 A7 C1 P1 P5")
class SlotsFromTheChunk(Worker):
    """A chunk's slots are counted from its own start: right for a first chunk without a hit."""

    def slots(self, group: int, row: int, positions: Ints, block_size: int) -> Ints:
        start = positions[0] if len(positions) > 1 else 0
        return super().slots(group, row, positions - start, block_size)


@fault("last-slot-left-out", "P1 P4 P5")
class LastSlotLeftOut(Worker):
    """The last token of a chunk gets the slot of padding, and its KV is not kept."""

    def slots(self, group: int, row: int, positions: Ints, block_size: int) -> Ints:
        found = super().slots(group, row, positions, block_size)
        return np.where(positions == positions[-1], -1, found) if len(found) > 1 else found


@fault("tables-of-the-other-group", "A2 A7 P1 P5", windows=(None, 7))
class TablesOfTheOtherGroup(Worker):
    """Where there are two layer groups, a block that one of them gets later goes to both."""

    def append(self, group: int, row: int, blocks: Sequence[int]) -> None:
        start = int(self.filled[group, row])
        super().append(group, row, blocks)
        if start and group:
            self.tables[0, row, start : start + len(blocks)] = blocks


# ---------------------------------------------------------------------------- the pool, the manager


@fault("no-reference-on-hit", "A2 P5")
class NoReferenceOnHit(Pool):
    """A hit on a block that is in use counts no reference: the first to leave frees it."""

    def touch(self, block: int) -> None:
        if block in self.free:
            super().touch(block)


@fault("hit-left-in-free-queue", "A2 P5")
class HitLeftInFreeQueue(Pool):
    """A hit counts, but its block can be handed out as well."""

    def touch(self, block: int) -> None:
        self.references[block] += 1

    def give_back(self, block: int) -> None:
        self.references[block] = max(0, self.references[block] - 1)
        if self.references[block] == 0 and block not in self.free:
            self.free.append(block)


@fault("no-unmap-at-eviction", "P1 P4 P5")
class NoUnmapAtEviction(Pool):
    """A recycled block's old key keeps leading to it."""

    def forget(self, block: int) -> None:
        self.key_of.pop(block, None)


@fault("unmap-of-one-group-only", "P1 P4 P5", windows=(None, 7))
class UnmapOfOneGroupOnly(Pool):
    """Only the first layer group's keys are dropped at an eviction."""

    def forget(self, block: int) -> None:
        key = self.key_of.get(block)
        if key is None or key[0] == 0:
            super().forget(block)
        else:
            del self.key_of[block]


@fault("tail-leaked", "S2")
class TailLeaked(Pool):
    """A block that was never published is not given back: in the end nobody fits any more."""

    def give_back(self, block: int) -> None:
        if block in self.key_of:
            super().give_back(block)


@fault("refused-hit-stays-pinned", "S2")
class RefusedHitStaysPinned(PagedEngine):
    """A request that must wait keeps hold of what it would have hit, more each time it is tried."""

    def _admit(self, one: Request, budget: int) -> int:
        count = super()._admit(one, budget)
        for index in range(0 if count else self._longest_hit(one)):
            self.pool.touch(self.pool.found[self.key(one, 0, index)])
        return count


@fault("parent-forgotten", "P1")
class ParentForgotten(PagedEngine):
    """A key is what a block holds, whatever stands before it; recombined prompts bring it out."""

    def key(self, one: Request, group: int, index: int) -> Key:
        group, salt, tokens = super().key(one, group, index)
        return group, salt, (index, *tokens[index * self.size :])


@fault("salt-ignored", "P2")
class SaltIgnored(PagedEngine):
    """The salt is no part of a key."""

    def key(self, one: Request, group: int, index: int) -> Key:
        group, _, tokens = super().key(one, group, index)
        return group, None, tokens


@fault("all-salts-are-one", "P2")
class AllSaltsAreOne(PagedEngine):
    """Salted requests are kept apart from others, but not from each other."""

    def key(self, one: Request, group: int, index: int) -> Key:
        group, salt, tokens = super().key(one, group, index)
        return group, salt and "salted", tokens


@fault("key-leads-to-the-block-before", "A2 P1 P2 P4 P5")
class KeyLeadsToTheBlockBefore(PagedEngine):
    """The key of every second block is noted at the block before it, which a hit then has twice."""

    def _reserve(self, one: Request, count: int) -> bool:
        before = dict(self.pool.found)
        done = super()._reserve(one, count)
        for group, blocks in enumerate(one.blocks):
            for index in range(1, (one.computed + count) // self.size if done else 0, 2):
                key = self.key(one, group, index)
                if key not in before and self.pool.found.get(key) == blocks[index]:
                    self.pool.found[key] = blocks[index - 1]
        return done


@fault("published-before-computed", "P1 P4 P5")
class PublishedBeforeComputed(PagedEngine):
    """A request's prompt is published with its first chunk, where its blocks allow.

    Somebody must ask for the same between two chunks.
    """

    def _admit(self, one: Request, budget: int) -> int:
        whole = len(one.tokens) - self._longest_hit(one) * self.size
        count = super()._admit(one, whole)
        return min(count, budget)


@fault("window-passed-a-block-early", "A2 A7", windows=(7,))
class WindowPassedABlockEarly(PagedEngine):
    """A block is given up while its last slots can still be read; hits are looked up rightly."""

    def _pass_window(self, one: Request) -> None:
        computed, one.computed = one.computed, one.computed + self.size
        super()._pass_window(one)
        one.computed = computed


@fault("partial-block-shared", "C1")
class PartialBlockShared(PagedEngine):
    """A request shares the unfinished last block of one that has the same tokens so far.

    No copy is made: both write what comes next into the same slots.
    """

    def _admit(self, one: Request, budget: int) -> int:
        count = super()._admit(one, budget)
        index, offset = divmod(one.computed, self.size)
        for other in self.running if count and not offset else ():
            same = min(other.computed, len(one.tokens) - 1, one.computed + self.size - 1)
            alike = other.wanted.key.salt == one.wanted.key.salt
            if alike and same > one.computed and other.tokens[:same] == one.tokens[:same]:
                for group, blocks in enumerate(one.blocks):
                    self.pool.give_back(blocks[index])
                    blocks[index] = other.blocks[group][index]
                    self.pool.touch(blocks[index])
                return self._skip(one, count, same)
        return count

    def _skip(self, one: Request, count: int, same: int) -> int:
        shared = same - one.computed
        if shared >= count:
            return count
        one.computed = same
        return count - shared


# ------------------------------------------------------------------------- what the model is given


@fault("last-hit-token-miscomputed", "C1 S1")
class LastHitTokenMiscomputed(PagedEngine):
    """The last token of a hit is computed once more, from the wrong token.

    The block is shared: whoever else is reading it gets that KV too.
    """

    def _admit(self, one: Request, budget: int) -> int:
        count = super()._admit(one, budget - 1) if budget > 1 else 0
        again = bool(count and one.computed)
        one.computed -= again
        return count + again

    def fed(self, one: Request, span: range) -> Ints:
        found = super().fed(one, span)
        hit_end = span.start % self.size == self.size - 1 and len(span) > 1
        return np.concatenate([found[:1] * 0, found[1:]]) if hit_end else found


@fault("token-of-the-step-before", "S1")
class TokenOfTheStepBefore(PagedEngine):
    """A decode step at the beginning of a block is given the token before the newest one."""

    def fed(self, one: Request, span: range) -> Ints:
        stale = len(span) == 1 and span.start % self.size == 0 and span.start > 0
        return super().fed(one, range(span.start - 1, span.stop - 1) if stale else span)


class _Late(PagedEngine):
    """Passes for requests that have left, after those of the others."""

    def __init__(self, **arguments: object) -> None:
        super().__init__(**arguments)  # type: ignore[arg-type]
        self.late: list[tuple[Request, Ints]] = []

    def remember(self, one: Request) -> None:
        """Its tables, as the worker has them now."""
        self.late.append((one, self.worker.tables[:, self.worker.row_of(one.name)].copy()))

    def step(self) -> Iterable[Answer]:
        late, self.late = self.late, []
        answers = super().step()
        for one, tables in late:
            self._pass_late(one, tables)
        return answers

    def _pass_late(self, one: Request, tables: Ints) -> None:
        at = one.computed - 1
        self.watch.passes(
            Batch(
                [one.name],
                np.array([0, 1]),
                np.array([one.computed]),
                np.array([one.tokens[at]]),
                np.array([at]),
                [one.preemptions],
            )
        )
        for group in range(len(self.groups)):
            slot = int(tables[group, at // self.size]) * self.size + at % self.size
            self.watch.wrote(group, np.array([slot]))
            self.watch.reads(group, tables[group][None])


@fault("pass-after-the-end", "A8")
class PassAfterTheEnd(_Late):
    """The worker has one more pass under way for a request that is finished."""

    def _leave(self, one: Request) -> None:
        if one.done:
            self.remember(one)
        super()._leave(one)


@fault("pass-after-the-abort", "A8")
class PassAfterTheAbort(_Late):
    """The worker has one more pass under way for a request that is aborted."""

    def abort(self, request: str) -> None:
        for one in self.running:
            if one.name == request and one.computed:
                self.remember(one)
        super().abort(request)


# ---------------------------------------------------------------------------------------- controls


@control("plain")
class Plain(PagedEngine):
    """Nothing."""


@control("windowed", windows=(7,), num_blocks=14)
class Windowed(PagedEngine):
    """Windows alone: entries behind them are null in hits, stale in running rows."""


@control("hybrid", windows=(6, None, 9), num_blocks=60)
class Hybrid(PagedEngine):
    """Three layer groups in one memory, with two windows."""


@control("newest-first")
class NewestFirst(Pool):
    """What was freed last is handed out first."""

    def give_back(self, block: int) -> None:
        self.references[block] -= 1
        if self.references[block] == 0:
            self.free.appendleft(block)


@control("computed-again")
class ComputedAgain(PagedEngine):
    """The last token of a hit is computed once more, into the block that is shared: the same KV."""

    def _admit(self, one: Request, budget: int) -> int:
        count = super()._admit(one, budget - 1) if budget > 1 else 0
        again = bool(count and one.computed)
        one.computed -= again
        return count + again


@control("window-left-late", windows=(7,), num_blocks=14)
class WindowLeftLate(PagedEngine):
    """Blocks behind a window are kept a block longer than they are read."""

    def _pass_window(self, one: Request) -> None:
        computed, one.computed = one.computed, max(0, one.computed - self.size)
        super()._pass_window(one)
        one.computed = computed


@control("row-cleared")
class RowCleared(Worker):
    """A row that is left behind is cleared."""

    def move(self, source: int, target: int) -> None:
        super().move(source, target)
        self.tables[:, source] = NULL
