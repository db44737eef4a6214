"""The device inside: follows every write and every read of a worker, and judges each request.

A backend tells it three things of each forward pass: the batch, the slots that a layer group's new
KV went to, and the block tables by which the layer group then reads. What belongs in a slot is
known from the requests' callers. So a table that the worker keeps wrong, a row that is stale, a
block that two requests were given and a hit on what is gone all show as what they are in the end:
a request that reads KV of another prefix. Where a window has passed, nothing is read and nothing
judged. The first wrong slot convicts a request; it is not judged further.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kvassay.harness.contract import CacheKey
from kvassay.harness.inside.account import NOWHERE, Account
from kvassay.harness.inside.batch import Batch, Ints, LayerGroup
from kvassay.harness.inside.conviction import Conviction
from kvassay.harness.inside.evidence import Met, never_met
from kvassay.harness.inside.memory import LATE, MISPLACED, NOBODY, Names, TaggedMemory
from kvassay.harness.inside.naming import Naming, Place, Tables
from kvassay.harness.violation import Anomaly
from kvassay.reference.tags import TagBook


@dataclass(frozen=True)
class _Row:
    """One request's part of a pass."""

    account: Account | None
    """None if it has left, or if nothing can be said of it."""
    start: int
    stop: int
    names: Names
    """[stop - start] tags of what is computed."""


class Watch:
    """Memory of a worker's layer groups, and who must find what in it."""

    def __init__(self, groups: Sequence[LayerGroup], tables: Tables | None = None) -> None:
        self.groups = tuple(groups)
        self.met: Counter[Met] = Counter()
        self.convictions: dict[str, Conviction] = {}
        """Of each convicted request, the first."""
        self.judged: dict[str, int] = {}
        """Slots verified of each request that has left."""
        self.step = 0
        self._book = TagBook()
        self._accounts: dict[str, Account] = {}
        self._by_serial: dict[int, Account] = {}
        self._left: set[str] = set()
        self._serial = 0
        self._rows: list[_Row] = []
        self._memories: dict[int, TaggedMemory] = {}
        for group in self.groups:
            memory = self._memories.setdefault(
                group.memory, TaggedMemory(group.num_blocks, group.block_size)
            )
            if (memory.num_blocks, memory.block_size) != (group.num_blocks, group.block_size):
                raise ValueError(f"groups of memory {group.memory}: expected blocks of one shape")
        self._naming = Naming(self.groups, self._memories, self._book, self._by_serial, tables)

    # ------------------------------------------------------------------------------------- callers

    def submitted(self, request: str, key: CacheKey) -> None:
        """A caller asks for this; `ValueError` for a name that is or was in use."""
        if request in self._accounts or request in self._left:
            raise ValueError(f"request: expected a new name, got {request!r}")
        account = Account(request, self._serial, key, self._book, len(self.groups))
        self._accounts[request] = self._by_serial[self._serial] = account
        self._serial += 1
        self.met[Met.SALTED] += key.salt is not None

    def received(self, request: str, tokens: Sequence[int]) -> None:
        """The caller got these tokens."""
        self._accounts[request].received(tokens)

    def left(self, request: str, *, aborted: bool = False) -> None:
        """The request is finished, or was aborted by its caller."""
        account = self._accounts.pop(request)
        del self._by_serial[account.serial]
        self._left.add(request)
        self.judged[request] = 0 if account.due else account.reads
        self.met[Met.ABORTED] += aborted

    # ------------------------------------------------------------------------------------ a worker

    def passes(self, batch: Batch) -> None:
        """A forward pass begins; `ValueError` for a request that nobody has submitted."""
        self.step += 1
        self.met[Met.PASS] += 1
        self._rows = [self._row(batch, number) for number in range(len(batch.requests))]

    def wrote(self, group: int, slots: Ints) -> None:
        """[tokens of the pass, or more] slots to which a layer group's new KV goes."""
        rows = self._rows
        if not rows:
            return
        counts = [len(row.names) for row in rows]
        names = np.concatenate([row.names for row in rows])
        names = np.where(names >= 0, names * len(self.groups) + group, names)
        serials = [NOBODY if row.account is None else row.account.serial for row in rows]
        slots = slots[: len(names)].astype(np.int64)
        memory = self._memories[self.groups[group].memory]
        recycled = memory.write(slots, names, np.repeat(serials, counts), self.step)
        self.met[Met.WRITTEN] += len(names)
        self.met[Met.RECYCLED] += recycled
        ends = np.cumsum(counts)
        for row, end in zip(rows, ends, strict=True):
            if row.account is not None:
                row.account.hold(group, row.start, slots[end - len(row.names) : end])

    def reads(self, group: int, tables: Ints) -> None:
        """[rows, columns] block tables by which a layer group reads, all new KV being written."""
        for number, row in enumerate(self._rows):
            account = row.account
            if account is not None:
                account.due -= 1
            if account is not None and account.name not in self.convictions:
                self._read(group, account, row, tables[number])

    # ------------------------------------------------------------------------------------ verdicts

    @property
    def never_met(self) -> list[Met]:
        """What must happen for a verdict, and did not."""
        return never_met(self.met, self.groups)

    def verdicts(self) -> Mapping[str, Conviction | None]:
        """Of every request that has left or is convicted: None for one that always read right.

        A request of which nothing was read is not in it: nobody looked.
        """
        right = {name: None for name, reads in self.judged.items() if reads}
        return {**right, **self.convictions}

    # -------------------------------------------------------------------------------------- inside

    def _row(self, batch: Batch, number: int) -> _Row:
        name = batch.requests[number]
        first, end = int(batch.starts[number]), int(batch.starts[number + 1])
        stop = int(batch.lengths[number])
        start = stop - (end - first)
        account = self._accounts.get(name)
        if account is None:
            if name not in self._left:
                raise ValueError(f"a pass for {name!r}, which nobody has submitted")
            self.met[Met.LATE] += end - first
            return _Row(None, start, stop, np.full(end - first, LATE, dtype=np.int64))
        self._note(account, number, batch.residencies[number], stop)
        account.due += len(self.groups)
        if not 0 <= start <= len(account.tokens):
            self._gap(account, start)
            return _Row(None, start, stop, np.full(end - first, MISPLACED, dtype=np.int64))
        tokens = [int(token) for token in batch.tokens[first:end]]
        self.met[Met.IN_FLIGHT] += account.computed(start, tokens)
        names = account.names_of(start, tokens)
        told = batch.positions[first:end]
        names = np.where(told == np.arange(start, stop), names, MISPLACED)
        return _Row(account, start, stop, names)

    def _gap(self, account: Account, start: int) -> None:
        """Tokens are computed behind some that never were."""
        conviction = Conviction(
            "S1",
            Anomaly.MISCOMPUTED,
            account.name,
            start,
            0,
            NOWHERE,
            NOWHERE,
            self.step,
            f"a pass from one of its {len(account.tokens)} tokens on",
            "one that leaves some out",
        )
        self.convictions.setdefault(account.name, conviction)

    def _note(self, account: Account, row: int, residency: int, stop: int) -> None:
        if account.residency not in (None, residency):
            account.admitted_again()
            self.met[Met.PREEMPTED] += 1
        self.met[Met.MOVED] += account.row not in (None, row)
        self.met[Met.CHUNKED] += stop < account.prompt
        account.residency, account.row = residency, row

    def _read(self, number: int, account: Account, row: _Row, table: Ints) -> None:
        group = self.groups[number]
        size = group.block_size
        low = 0 if group.window is None else max(0, row.start - group.window + 1)
        index, above = low // size, -(-row.stop // size)
        blocks = table[index:above].astype(np.int64)
        held = account.held(number)[low : row.stop]
        slots = (blocks[:, None] * size + np.arange(size)).ravel()
        slots = slots[low - index * size :][: row.stop - low]
        wrong = self._first_wrong(number, account, low, slots, row.stop - low)
        if wrong is not None:
            at = (low + wrong) // size
            block = int(table[at]) if at < len(table) else NOWHERE
            repeated = int(np.count_nonzero(blocks == block)) > 1
            place = Place(account, number, low + wrong, block, repeated, self.step)
            self.convictions[account.name] = self._naming.convict(place)
            return
        account.reads += len(slots)
        self.met[Met.READ] += len(slots)
        self.met[Met.HIT] += int(np.count_nonzero(held == NOWHERE))
        self.met[Met.PASSED] += low
        self.met[Met.NULL] += sum(int(block) in group.null for block in table[:index])
        account.hold(number, low, slots)

    def _first_wrong(
        self, number: int, account: Account, low: int, slots: Ints, count: int
    ) -> int | None:
        """Index of the first slot that does not hold what it should, or does not exist."""
        group = self.groups[number]
        content = self._memories[group.memory].content
        wanted = account.tags[low : low + count] * len(self.groups) + number
        blocks = slots // group.block_size
        real = (slots >= 0) & (slots < len(content)) & ~np.isin(blocks, list(group.null))
        found = np.where(real, content[np.where(real, slots, 0)], NOBODY)
        right = real & (found == wanted[: len(slots)])
        if not right.all():
            return int(np.argmin(right))
        return None if len(slots) == count else len(slots)
