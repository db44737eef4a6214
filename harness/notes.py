"""Counts what a run meets: the evidence behind a pass."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kvassay.harness.contract import Capability, Declaration, Outcome, Publish
from kvassay.harness.evidence import Seen
from kvassay.harness.state import CheckerState
from kvassay.reference.model import Live


class Notes(CheckerState):
    """The part of the checker that only counts."""

    def __init__(self, manager: Any, declaration: Declaration) -> None:
        super().__init__(manager, declaration)
        self._spaces: dict[tuple[int, ...], set[object]] = {}
        late = declaration.publish is Publish.RELEASE
        self._withholds = late or declaration.has(Capability.DRAFTS)

    def _note_hit(self, live: Live) -> None:
        evidence, model = self.evidence, self.model
        if not model.caches and not live.length:
            return
        length, size = live.length, model.block_size
        edge = length % size
        if edge == 0:
            evidence[Seen.AT_BLOCK_END] += 1
        elif edge == size - 1:
            evidence[Seen.BEFORE_BLOCK_END] += 1
        elif edge == 1:
            evidence[Seen.AFTER_BLOCK_END] += 1
        if not live.hit:
            return
        evidence[Seen.HIT] += 1
        if live.hit == model.law(len(live.tags), len(live.tags)):
            evidence[Seen.FULL_HIT] += 1
        else:
            self._note_divergence(live)

    def _note_unwritten(self, live: Live) -> None:
        """Somebody else has slots for what is looked up here, but has not written it yet."""
        for other in self.model.live.values():
            at = other.committed
            if at < other.length and at < len(live.tags) - 1 and other.tags[at] == live.tags[at]:
                self.evidence[Seen.UNWRITTEN_KEY] += 1
                return

    def _note_unpublished(self, live: Live) -> None:
        """Somebody has, or had, slots for what is looked up here, and has not published it."""
        if not self._withholds:
            return
        limit = len(live.tags) - self.declaration.reserve
        reach = self.model.publications.published(live.tags, limit)
        self.evidence[Seen.UNPUBLISHED_KEY] += self.model.held_back(live.tags[:limit], reach)

    def _note_key(self, live: Live) -> None:
        """Whether the look-up could have been answered from recycled blocks or a near key."""
        model = self.model
        if not model.caches:
            return
        beyond = live.hit + model.unit
        if beyond <= len(live.tags):
            entry = model.publications.entries.get(live.tags[beyond - 1])
            if entry is not None and not model.publications.intact(entry, model.blocks.tenancy):
                self.evidence[Seen.STALE_KEY] += 1
        first = tuple(live.key.tokens[: model.unit])
        space = (live.key.salt, live.key.adapter, live.key.spans, model.epoch)
        spaces = self._spaces.setdefault(first, set())
        if spaces - {space}:
            self.evidence[Seen.NEAR_KEY] += 1
        spaces.add(space)

    def _note_divergence(self, live: Live) -> None:
        """A prefix was left before its end: the tree has to split there."""
        if len(live.tags) > live.hit + 1:
            self.evidence[Seen.DIVERGED] += 1
            self.diagnosis.splits.add(live.tags[live.hit - 1])

    def _note_write(self, live: Live, count: int) -> None:
        if live.table and live.length % self.model.block_size:
            tail = live.table[(live.length - 1) // self.model.block_size]
            if self.model.blocks.users[tail] > 1 or self._has_copied_tail(live):
                self.evidence[Seen.FORK_THEN_WRITE] += 1
        if live.cut is not None:
            self.evidence[Seen.CUT_THEN_WRITE] += 1
            live.cut = None
        if count:
            self.evidence[Seen.APPENDED] += 1

    def _has_copied_tail(self, live: Live) -> bool:
        """Whether its last block is a copy made by a fork, of what another still reads."""
        at = live.length - 1
        return live.forked == live.length and any(
            other is not live and other.tags[at : at + 1] == live.tags[at:]
            for other in self.model.readers().values()
        )

    def _note_release(self, live: Live, outcome: Outcome) -> None:
        evidence, users = self.evidence, self.model.blocks.users
        if any(users.get(block, 0) > 1 for block in live.table):
            evidence[Seen.SHARER_LEFT] += 1
        if live.committed < live.length:
            evidence[Seen.ABORTED_UNWRITTEN] += 1
        if live.length % self.model.block_size:
            evidence[Seen.PARTIAL_PAGE_RELEASED] += 1
        if outcome is not Outcome.FINISHED:
            evidence[Seen.ABORTED] += 1

    def met(self) -> Counter[Seen]:
        """What this run has met so far."""
        met = Counter(self.evidence)
        met[Seen.DUPLICATE] = self.model.publications.duplicates
        met[Seen.POLICY_TESTED] = self.model.watch.compared
        return met
