"""Block tables after an operation: their form, what was handed out, copied, remapped, evicted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kvassay.harness.calling import at_most
from kvassay.harness.contract import Declaration, Dedup, Placement
from kvassay.harness.evidence import Seen
from kvassay.harness.state import CheckerState
from kvassay.harness.stored_device import StoredDevice
from kvassay.harness.violation import Anomaly
from kvassay.reference.model import Live


class Tables(CheckerState):
    """The part of the checker that reads tables (A1-A3, A7, C2, P10, P11)."""

    def __init__(self, manager: Any, declaration: Declaration) -> None:
        super().__init__(manager, declaration)
        self._ids: set[int] = set()

    def _read_table(self, name: str, length: int) -> list[int]:
        """A request's table, checked for form."""
        longest = self.model.num_blocks + self.declaration.lookahead
        table = at_most(self._call_plain(self.manager.block_table, name), longest)
        least = self.model.blocks_for(length)
        most = least + self.declaration.lookahead
        if not least <= len(table) <= most:
            wanted = f"{least} blocks" if least == most else f"{least} to {most} blocks"
            wanted += f" for {length} tokens of {name}"
            more = " or more" if len(table) > longest else ""
            self._fail("A7", Anomaly.TABLE, wanted, f"{len(table)}{more}: {table}")
        if self.declaration.placement is Placement.CONTIGUOUS and table:
            self._check_contiguous(name, table)
        if len(set(table)) != len(table):
            self.diagnosis.repeated_block(name, table)
        for block in table:
            if block not in self._ids:
                self._new_id(name, block)
        return table

    def _check_contiguous(self, name: str, table: list[int]) -> None:
        expected = list(range(table[0], table[0] + len(table)))
        if table != expected:
            wanted = f"consecutive blocks for {name} (placement=contiguous): {expected}"
            self._fail("A7", Anomaly.TABLE, wanted, f"{table}")

    def _new_id(self, name: str, block: Any) -> None:
        """A block id that was never seen before."""
        if not isinstance(block, int) or block < 0 or block in self.declaration.reserved_ids:
            self._fail(
                "A7",
                Anomaly.TABLE,
                "block ids that hold KV, plain ints >= 0",
                f"{block!r} in {name}",
            )
        self._ids.add(block)
        if len(self._ids) > self.model.num_blocks:
            self._fail(
                "A1",
                Anomaly.TOO_MANY_BLOCKS,
                f"at most {self.model.num_blocks} distinct blocks",
                f"{len(self._ids)}, the last of them {block} in the table of {name}",
            )

    def _take(
        self,
        name: str,
        live: Live,
        *,
        hit: int = 0,
        pressed: bool = False,
    ) -> None:
        """Read the request's table after an operation on it, and enter what has changed."""
        model, old = self.model, live.table
        copies = self._take_copies()
        table = self._read_table(name, live.length)
        if table == old and not copies:
            if pressed:
                self._may_evict(())
            return
        if self.storage is not None:
            copies = [*copies, *self._shown_copies(self.storage, live, table, hit)]
        fresh = self._fresh(live, table, hit, {destination for _, destination in copies})
        shared = [block for block in table[: model.blocks_for(hit)] if block not in fresh]
        self._check_fresh(name, fresh, shared)
        self._check_copies(live, copies, fresh)
        pinned = [*shared, *(source for source, _ in copies)]
        if pressed:
            self._may_evict(pinned)
        self._note_victims(fresh, pinned)
        self._hand_out(fresh, copies)
        model.take_table(live, table, fresh)

    def _hand_out(self, fresh: Sequence[int], copies: Sequence[tuple[int, int]]) -> None:
        before = 0 if self.storage is None else self.storage.num_copied
        self.device.begin_tenancies(fresh, copies)
        if self.storage is not None and self.storage.num_copied > before:
            self.evidence[Seen.COPIED] += 1

    def _shown_copies(
        self, storage: StoredDevice, live: Live, table: list[int], hit: int
    ) -> Iterator[tuple[int, int]]:
        """What an engine with tensors of its own has copied into a new table, as they show."""
        for index, block in enumerate(table[: self.model.blocks_for(max(hit, live.committed))]):
            if index >= len(live.table) or live.table[index] != block:
                for source in storage.sources(block):
                    yield source, block

    def _fresh(self, live: Live, table: list[int], hit: int, copied: set[int]) -> list[int]:
        """The blocks of a new table that were handed out as new."""
        old, size = live.table, self.model.block_size
        fresh = []
        for index, block in enumerate(table):
            known = index < len(old)
            if known and old[index] == block:
                continue
            if block in copied or index * size >= max(hit, live.committed):
                fresh.append(block)
            elif known and not self._remapped(live, index, block):
                fresh.append(block)  # copy-on-write; whether it was copied shows in its content
        return fresh

    def _remapped(self, live: Live, index: int, block: int) -> bool:
        """Whether a changed entry now shows another block that holds the same KV."""
        known = block in self.model.blocks.users or block in self.model.blocks.published
        complete = (index + 1) * self.model.block_size <= live.committed
        if not known or not complete or not self._same_content(live, index, block):
            return False
        if self.declaration.dedup is not Dedup.REMAP:
            self._fail(
                "P11",
                Anomaly.REMAP,
                f"logical block {index} to stay in block {live.table[index]} (dedup=keep)",
                f"block {block}",
            )
        self.evidence[Seen.REMAPPED] += 1
        return True

    def _same_content(self, live: Live, index: int, block: int) -> bool:
        low = index * self.model.block_size
        return self.device.holds(block, live.tags[low : low + self.model.block_size])

    def _check_copies(
        self, live: Live, copies: Sequence[tuple[int, int]], fresh: Sequence[int]
    ) -> None:
        """C2: a copy goes to a block that is the request's own, never over shared content."""
        blocks = self.model.blocks
        for source, destination in copies:
            if destination in fresh:
                continue
            shared = blocks.users.get(destination, 0) - (destination in live.table)
            if shared or destination in blocks.published:
                self._fail(
                    "C2",
                    Anomaly.LOST_COPY,
                    "copies into blocks that were handed out as new by this operation",
                    f"a copy {source} -> {destination}, over content that others read",
                )

    def _check_fresh(self, name: str, fresh: Sequence[int], shared: Sequence[int]) -> None:
        """A2, A3: what is handed out as new is covered by nobody."""
        users = self.model.blocks.users
        for block in fresh:
            if block in users or block in shared:
                self.diagnosis.covered(name, block, shared)
            if block in self.model.blocks.tenancy:
                self.evidence[Seen.REUSED] += 1

    def _may_evict(self, pinned: Sequence[int]) -> None:
        model = self.model
        model.watch.open(model.now, pinned, model.publications.pressure)
        model.press()
        self.evidence[Seen.PRESSURE] += 1
        if any(live.pending for live in model.live.values()):
            self.evidence[Seen.PINNED_PRESSURE] += 1

    def _note_victims(self, fresh: Sequence[int], pinned: Sequence[int]) -> None:
        """Published blocks among the fresh ones were evicted; whether they were due shows later."""
        model = self.model
        victims = [block for block in fresh if block in model.blocks.published]
        if not victims:
            return
        model.watch.open(model.now, pinned, model.publications.pressure)
        self.evidence[Seen.EVICTED] += 1
        if model.blocks.users:
            self.evidence[Seen.EVICTED_BESIDE_PINNED] += 1
        for block in filter(model.surely_cached, victims):
            model.watch.went(block)

    def _adopt(self, name: str, parent: Live, children: Sequence[str]) -> None:
        """Enter the children of a fork; blocks that are copies were handed out anew."""
        model = self.model
        copies = self._take_copies()
        copied = {destination for _, destination in copies}
        tables = {family: self._read_table(family, parent.length) for family in (name, *children)}
        if self.storage is not None:
            copied |= self._not_shared(parent, tables.values())
        fresh = {family: [b for b in table if b in copied] for family, table in tables.items()}
        handed_out = [block for blocks in fresh.values() for block in blocks]
        self._check_fresh(name, handed_out, ())
        self._check_copies(parent, copies, handed_out)
        if len(handed_out) > model.surely_free():
            self._may_evict(())
        self._note_victims(handed_out, ())
        self._hand_out(handed_out, copies)
        for child in children:
            live = Live(parent.key, list(parent.tags))
            live.length, live.committed = parent.length, parent.committed
            live.published, live.cut = parent.published, parent.cut
            tail = tables[child][(live.length - 1) // model.block_size]
            live.forked = live.length if tail in copied else None
            model.take_table(live, tables[child], fresh[child])
            model.live[child] = live
        model.take_table(parent, tables[name], fresh[name])

    def _not_shared(self, parent: Live, tables: Iterable[list[int]]) -> set[int]:
        """Blocks of a forked family that the parent did not have."""
        return {
            block
            for table in tables
            for index, block in enumerate(table)
            if block not in parent.table and not self._remapped(parent, index, block)
        }
