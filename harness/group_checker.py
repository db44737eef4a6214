"""The checker of a manager with layer groups, windows, or both.

Every request has a table in each group, and is read back in each of them over what the query at
its next position may see: with n tokens written and a window of W, the positions [max(0, n - W +
1), n) (`reference.groups`). Blocks with such a position, or one that is still to be written, are
held by the request; an entry before them may be null (`reserved_ids`), and what it shows if it is
not is nobody's business until it is handed out again. Nothing may be given back early: while an
operation is under way the query stands where the KV ended before it, so a table read after it must
still hold what that query sees.

Judged as without groups, over all of them together: A1-A7, C1, C2, P1-P5, P7-P9, P11, P12. Not
judged: which victim an eviction takes (P10), what look-ups after an `evict` miss (P9 goes by the
amounts), and events (E1, E2): none of the contract's names a group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from kvassay.harness.calling import at_most
from kvassay.harness.checker import Checker, Effect
from kvassay.harness.contract import (
    Capability,
    Counters,
    Declaration,
    GroupSpec,
    Placement,
    Refusal,
)
from kvassay.harness.evidence import Seen
from kvassay.harness.scenario import Append, Reserve
from kvassay.harness.violation import Anomaly
from kvassay.reference.groups import GroupModel, Request, Strand, needed_twice, strands_of
from kvassay.reference.model import CacheModel, Live


@dataclass(frozen=True)
class Read:
    """One group's table after an operation, and what of it is new."""

    name: str
    strand: Strand
    table: list[int]
    fresh: list[int]
    shared: list[int]
    """Blocks of a hit, as far as it is seen."""


class GroupChecker(Checker):
    """Runs one manager with `groups`, one operation at a time."""

    mirrors = False
    model: GroupModel

    def __init__(self, manager: Any, declaration: Declaration, groups: Sequence[GroupSpec]) -> None:
        self.groups = tuple(groups)
        self._named = declaration.has(Capability.GROUPS)
        super().__init__(manager, declaration)

    def _new_model(self) -> CacheModel:
        manager = self.manager
        return GroupModel(manager.num_blocks, manager.block_size, self.declaration, self.groups)

    def _strands(self, name: str, live: Live) -> Iterator[tuple[str, GroupSpec, Strand]]:
        """Each strand with the name that verdicts give it."""
        for spec, strand in zip(self.groups, strands_of(live), strict=True):
            yield f"{name} in group {spec.name}", spec, strand

    # ------------------------------------------------------------------------------------ tables

    def _table_of(self, name: str, spec: GroupSpec) -> Any:
        arguments = (name, spec.name) if self._named else (name,)
        return self._call_plain(self.manager.block_table, *arguments)

    def _read_strand(self, name: str, told: str, spec: GroupSpec, strand: Strand) -> list[int]:
        """A request's table in one group, checked for form."""
        least = self.model.blocks_for(strand.length)
        longest = least + self.declaration.lookahead
        table = at_most(self._table_of(name, spec), longest)
        if not least <= len(table) <= longest:
            wanted = f"{least} to {longest} blocks for {strand.length} tokens of {told}"
            more = " or more" if len(table) > longest else ""
            self._fail("A7", Anomaly.TABLE, wanted, f"{len(table)}{more}: {table}")
        for index, block in enumerate(table):
            null = block in self.model.null
            if null and index < strand.first:
                self.evidence[Seen.NULL_SEEN] += 1
            elif null:
                self._null_seen(told, strand, index, block)
            elif block not in self._ids:
                self._new_id(told, block)
        if self.declaration.placement is Placement.CONTIGUOUS and table[strand.first :]:
            self._check_contiguous(told, table[strand.first :])
        return table

    def _null_seen(self, told: str, strand: Strand, index: int, block: int) -> None:
        """A7, P1: nothing is null that the next query sees, or that is still to be written."""
        at = max(strand.low, index * self.model.block_size)
        counted = at < strand.hit and not strand.committed
        self._fail(
            "P1" if counted else "A7",
            Anomaly.PHANTOM_HIT if counted else Anomaly.TABLE,
            f"a block for position {at} of {told}, which can be read from position {strand.low} on"
            + (f" (hit of {strand.hit} tokens)" if counted else ""),
            f"block {block}, which is no storage",
        )

    def _take(self, name: str, live: Live, *, hit: int = 0, pressed: bool = False) -> None:
        """Read the request's tables after an operation on it, and enter what has changed."""
        assert isinstance(live, Request)
        live.sync(self.model.block_size)
        copies = self._take_copies()
        copied = {destination for _, destination in copies}
        reads = [
            self._read(told, strand, self._read_strand(name, told, spec, strand), hit, copied)
            for told, spec, strand in self._strands(name, live)
        ]
        fresh = [block for read in reads for block in read.fresh]
        shared = [block for read in reads for block in read.shared]
        if len(set(fresh)) < len(fresh):
            self.diagnosis.repeated_block(f"{name}, all groups", fresh)
        self._check_fresh(name, fresh, shared)
        self._check_copies(live, copies, fresh)
        pinned = [*shared, *(source for source, _ in copies)]
        if pressed:
            self._may_evict(pinned)
        self._note_victims(fresh, pinned)
        self.device.begin_tenancies(fresh, copies)
        self._settle(live, {read.strand: read for read in reads})
        self._check_readable(reads, hit)
        self._check_apart(name, live)

    def _read(
        self, told: str, strand: Strand, table: list[int], hit: int, copied: set[int]
    ) -> Read:
        fresh = self._fresh(strand, table, hit, copied)
        stop = self.model.blocks_for(hit)
        shared = [block for block in table[strand.first : stop] if block not in fresh]
        return Read(told, strand, table, fresh, shared)

    def _fresh(self, live: Live, table: list[int], hit: int, copied: set[int]) -> list[int]:
        """The blocks of a new table that were handed out as new; where nobody reads, none are.

        Unless a block there is held by nobody and holds something else: then it was handed out.
        """
        assert isinstance(live, Strand)
        first, needed = live.first, set(table[live.first :])
        fresh = [block for block in super()._fresh(live, table, hit, copied) if block in needed]
        for index, block in enumerate(table[:first]):
            changed = table[index : index + 1] != live.table[index : index + 1]
            if changed and block not in {*needed, *self.model.null, *self.model.blocks.users}:
                low = index * self.model.block_size
                tags = live.tags[low : low + self.model.block_size]
                if self.device.memory.get(block) != tags:
                    fresh.append(block)
        return fresh

    def _remapped(self, live: Live, index: int, block: int) -> bool:
        assert isinstance(live, Strand)
        return index < live.first or super()._remapped(live, index, block)

    def _settle(self, live: Request, reads: Mapping[Strand, Read]) -> None:
        """Enter tables, and what windows have passed since the last time."""
        for strand, read in reads.items():
            passed = self.model.settle(strand, read.table, read.fresh)
            self.evidence[Seen.WINDOW_PASSED] += passed
        live.table = list(chain.from_iterable(strand.table for strand in live.strands))

    def _check_readable(self, reads: Sequence[Read], hit: int) -> None:
        """P1, P2, P4, P5 of a hit, else C1, C2, A2: what the query under way sees is in place."""
        wrong = []
        for read in reads:
            strand = read.strand
            stop = max(hit, strand.committed)
            position = self.device.first_wrong_within(read.table, strand.tags, strand.low, stop)
            if position is not None:
                wrong.append((read, position))
        for read, position in wrong[:1]:
            if hit:
                elsewhere = len(wrong) < len(reads)
                self.diagnosis.wrong_hit(read.name, read.strand, position, elsewhere=elsewhere)
            self.diagnosis.wrong_slot(read.name, read.strand, position)

    def _check_apart(self, name: str, live: Request) -> None:
        """A2: no block is needed at two places, be it in two groups."""
        for block in needed_twice(live.strands):
            held = [strand.held for strand in live.strands]
            expected = f"distinct blocks in the tables of {name}, in all groups"
            self._fail("A2", Anomaly.DOUBLE_HAND_OUT, expected, f"block {block} twice in {held}")

    def _adopt(self, name: str, parent: Live, children: Sequence[str]) -> None:
        """Enter the children of a fork; blocks that are copies were handed out anew."""
        assert isinstance(parent, Request)
        model, copies = self.model, self._take_copies()
        copied = {destination for _, destination in copies}
        family = {name: parent, **{child: model.child(parent) for child in children}}
        reads: dict[str, dict[Strand, Read]] = {}
        for member, live in family.items():
            live.sync(model.block_size)
            reads[member] = {
                strand: self._copies_in(
                    told, strand, self._read_strand(member, told, spec, strand), copied
                )
                for told, spec, strand in self._strands(member, live)
            }
        handed_out = [b for read in reads.values() for each in read.values() for b in each.fresh]
        self._check_fresh(name, handed_out, ())
        self._check_copies(parent, copies, handed_out)
        if len(handed_out) > model.surely_free():
            self._may_evict(())
        self._note_victims(handed_out, ())
        self.device.begin_tenancies(handed_out, copies)
        for member, live in family.items():
            self._settle(live, reads[member])
            tail = strands_of(live)[0].table[(live.length - 1) // model.block_size]
            live.forked = live.length if member != name and tail in copied else live.forked
            model.live[member] = live
            self._check_apart(member, live)

    @staticmethod
    def _copies_in(told: str, strand: Strand, table: list[int], copied: set[int]) -> Read:
        return Read(told, strand, table, [block for block in table if block in copied], [])

    # --------------------------------------------------------------------------------- refusals

    def _append(self, op: Append) -> Effect:
        effect = super()._append(op)
        if effect is Effect.REFUSED:
            self._check_dropped(op.request)
        return effect

    def _reserve(self, op: Reserve) -> Effect:
        effect = super()._reserve(op)
        if effect is Effect.REFUSED:
            self._check_dropped(op.request)
        return effect

    def _check_dropped(self, name: str) -> None:
        """A4: a refused operation may drop what windows have passed, if that is declared."""
        live = self.model.live[name]
        assert isinstance(live, Request)
        reads: dict[Strand, Read] = {}
        for told, spec, strand in self._strands(name, live):
            table = self._read_strand(name, told, spec, strand)
            if table == strand.table:
                continue
            kept = table[strand.first :] == strand.table[strand.first :]
            if not kept or self.declaration.refusal is not Refusal.MAY_DROP_WINDOW:
                refusal = f"refusal={self.declaration.refusal}"
                expected = f"table of {told} unchanged ({refusal}): {strand.table}"
                self._fail("A4", Anomaly.REFUSAL_DAMAGE, expected, f"{table}")
            self.evidence[Seen.DROPPED_AT_REFUSAL] += 1
            reads[strand] = Read(told, strand, table, [], [])
        self._settle(live, reads)

    # ---------------------------------------------------------------------------------- look-ups

    def _check_hit_content(self, name: str, live: Live, hit: int) -> None:
        """P3, P4; what is in the slots was looked at with the tables (see `_take`)."""
        self._check_published(live, hit)
        strands = strands_of(live)
        self.evidence[Seen.GROUP_HIT] += hit > 0 and len(strands) > 1
        self.evidence[Seen.WINDOW_HIT] += hit > 0 and any(strand.first for strand in strands)

    def _check_missed(self, live: Live, hit: int, must: int) -> None:
        """P12: what is surely resident in every group is counted."""
        if must:
            self.evidence[Seen.MUST_HIT] += 1
        if hit < must:
            self.diagnosis.missed_hit(live.tags, hit, must)

    def _note_write(self, live: Live, count: int) -> None:
        super()._note_write(strands_of(live)[0], count)

    # ------------------------------------------------------------------------- device and looking

    def _write(self, live: Live, stop: int) -> None:
        super()._write(live, stop)
        if self._commit_calls:
            name = next(name for name, other in self.model.live.items() if other is live)
            self._take(name, live)

    def _write_device(self, live: Live, stop: int) -> None:
        for strand in strands_of(live):
            self.device.write(strand.table, strand.tags, live.committed, stop)

    def _look(self) -> None:
        for name, live in self.model.live.items():
            assert isinstance(live, Request)
            live.sync(self.model.block_size)
            for strand in live.strands:
                if strand.overtaken:
                    passed = self.model.settle(strand, strand.table, ())
                    self.evidence[Seen.WINDOW_PASSED] += passed
            for told, spec, strand in self._strands(name, live):
                table = at_most(self._table_of(name, spec), len(strand.table))
                if table != strand.table:
                    expected = f"table of {told} unchanged: {strand.table}"
                    self._fail("A7", Anomaly.FOREIGN_CHANGE, expected, f"{table}")
                self._check_content(told, strand)
            self.evidence[Seen.GROUPS_READ] += len(self.groups) > 1
        if self._counters:
            self._check_counters(self.manager.counters())
        if self._refcounts:
            self._check_refcounts(self.manager.refcounts())

    def _check_content(self, name: str, live: Live) -> None:
        """C1, C2, A2: every slot that the next query sees holds the tag that belongs there."""
        wrong = self.device.first_wrong_within(live.table, live.tags, live.low, live.committed)
        if wrong is not None:
            self.diagnosis.wrong_slot(name, live, wrong)

    def _check_counters(self, counters: Counters) -> None:
        """A1: counters equal the sizes of the sets; what windows have passed may be held or not."""
        free, cached, used = counters.free, counters.cached, counters.used
        num_blocks = self.model.num_blocks
        if min(free, cached, used) < 0 or free + cached + used != num_blocks:
            expected = f"counts >= 0 that add up to {num_blocks}"
            self._fail("A1", Anomaly.ACCOUNTING, expected, f"{counters}")
        least = self.model.blocks.num_used
        most = num_blocks - self.model.unheld()
        if not least <= used <= most:
            wanted = f"{least}" if least == most else f"{least} to {most}"
            expected = f"{wanted} blocks used, the union of what live requests need in all groups"
            self._fail("A1", Anomaly.ACCOUNTING, expected, f"{counters}")
        self.evidence[Seen.COUNTED] += 1
        if cached and not self.model.caches:
            self._fail("P8", Anomaly.ACCOUNTING, "none cached without PREFIX_CACHE", f"{counters}")

    def _check_refcounts(self, refcounts: Mapping[int, int]) -> None:
        """A1: every holder is counted, and beside them at most those whose window has passed."""
        needed, counts = self.model.blocks.users, dict(refcounts)
        behind = self.model.shown_behind()
        for block in counts.keys() | needed.keys():
            least, count = needed.get(block, 0), counts.get(block, 0)
            if not least <= count <= least + behind.get(block, 0):
                expected = f"{least} holders of block {block}, of all: {needed}"
                self._fail("A1", Anomaly.ACCOUNTING, expected, f"{count} of {counts}")
