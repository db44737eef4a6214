"""From a slot with the wrong KV in it to the invariant that is broken.

The rules are those of the law, as far as they can be told from what is written and read. A table
that leads to no block, to another than the manager's does, or away from where the request's KV was
written: A7; one block at two places of it: A2. A slot that the request had written or found right
before: overwritten by a sharer, C1; by a stranger, A2; by a pass of somebody who had left, A8; by
itself with another token or position, S1. A slot that it reads as a hit: never written, P4; its KV
was there and has been overwritten, P5; the same tokens under another salt, P2; else P1. Why a
look-up led there cannot be seen from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvassay.harness.diagnosis import in_words, plain
from kvassay.harness.inside.account import NOWHERE, Account
from kvassay.harness.inside.batch import LayerGroup
from kvassay.harness.inside.conviction import Conviction
from kvassay.harness.inside.memory import LATE, MISPLACED, UNWRITTEN, TaggedMemory
from kvassay.harness.violation import Anomaly
from kvassay.reference.tags import TagBook

_NO_TAG = {
    UNWRITTEN: "nothing that was ever written",
    MISPLACED: "KV computed for another position",
    LATE: "KV of a request that had left",
}

Named = tuple[str, Anomaly]


class Tables(Protocol):
    """What the engine's cache manager says, apart from its worker."""

    def __call__(self, request: str, group: int) -> Sequence[int]:
        """Block of logical block 0, 1, ...; empty if it does not know the request."""
        ...


@dataclass(frozen=True)
class Place:
    """Where somebody read something wrong."""

    account: Account
    group: int
    position: int
    block: int
    """What stands in the worker's table."""
    repeated: bool
    """Whether it stands there twice."""
    step: int


class Naming:
    """Names what went wrong in one layer group."""

    def __init__(
        self,
        groups: Sequence[LayerGroup],
        memories: Mapping[int, TaggedMemory],
        book: TagBook,
        accounts: Mapping[int, Account],
        tables: Tables | None,
    ) -> None:
        self._groups, self._memories, self._book = groups, memories, book
        self._accounts, self._tables = accounts, tables
        """Accounts of those who are there, by their serial numbers."""

    def convict(self, place: Place) -> Conviction:
        """The conviction for what is read at a place."""
        group, account = self._groups[place.group], place.account
        slot = place.block * group.block_size + place.position % group.block_size
        wanted = int(account.tags[place.position]) * len(self._groups) + place.group
        if place.block in group.null or not 0 <= place.block < group.num_blocks:
            (invariant, anomaly), got = ("A7", Anomaly.TABLE), "no block at all"
        else:
            got = self._words(slot, place)
            invariant, anomaly = (
                self._table(place, slot) or self._own(place, slot) or self._hit(place, slot, wanted)
            )
        return Conviction(
            invariant,
            anomaly,
            account.name,
            place.position,
            place.group,
            place.block,
            slot,
            place.step,
            self._name(wanted),
            got,
        )

    # ------------------------------------------------------------------------------ the invariants

    def _table(self, place: Place, slot: int) -> Named | None:
        """The worker's table against the manager's, and against what the worker wrote by it."""
        group = self._groups[place.group]
        index = place.position // group.block_size
        theirs = () if self._tables is None else self._tables(place.account.name, place.group)
        if index < len(theirs) and theirs[index] not in {place.block, *group.null}:
            return "A7", Anomaly.TABLE
        written = int(place.account.held(place.group)[place.position])
        return None if written in (NOWHERE, slot) else ("A7", Anomaly.TABLE)

    def _own(self, place: Place, slot: int) -> Named | None:
        """A slot that was right, or was written for this position."""
        if int(place.account.held(place.group)[place.position]) != slot:
            return None
        memory = self._memories[self._groups[place.group].memory]
        name, writer = int(memory.content[slot]), int(memory.writer[slot])
        if name == LATE:
            return "A8", Anomaly.FOREIGN_WRITE
        if writer == place.account.serial:
            return self._by_itself(place, name)
        sharer = self._accounts.get(writer)
        if sharer is not None and self._share(place, sharer, slot):
            return "C1", Anomaly.SHARER_WRITE
        return "A2", Anomaly.FOREIGN_WRITE

    def _by_itself(self, place: Place, name: int) -> Named:
        if place.repeated:
            return "A2", Anomaly.DOUBLE_HAND_OUT
        tag, group = divmod(name, len(self._groups))
        if name == MISPLACED:
            return "S1", Anomaly.MISCOMPUTED
        if group != place.group or tag in place.account.tags:
            return "A7", Anomaly.TABLE  # two of its positions, or two groups, in one slot
        return "S1", Anomaly.MISCOMPUTED

    def _share(self, place: Place, other: Account, slot: int) -> bool:
        """Whether both came to this block by the same prefix."""
        held, size = other.held(place.group), self._groups[place.group].block_size
        position, low = place.position, place.position - place.position % size
        if position >= len(held) or int(held[position]) != slot:
            return False
        before = max(0, low - 1)
        return bool(other.tags[before] == place.account.tags[before])

    def _hit(self, place: Place, slot: int, wanted: int) -> Named:
        memory = self._memories[self._groups[place.group].memory]
        name = int(memory.content[slot])
        if name == UNWRITTEN:
            return "P4", Anomaly.UNWRITTEN
        if name == LATE:
            return "A8", Anomaly.FOREIGN_WRITE
        if place.repeated:
            return "A2", Anomaly.DOUBLE_HAND_OUT
        if memory.was_in(wanted, slot):
            return "P5", Anomaly.STALE_HIT
        if name >= 0 and self._another_namespace(name, wanted):
            return "P2", Anomaly.WRONG_KEY
        return "P1", Anomaly.PHANTOM_HIT

    def _another_namespace(self, name: int, wanted: int) -> bool:
        (theirs, ours), count = (name, wanted), len(self._groups)
        there, their_elements = self._book.path(theirs // count)
        here, our_elements = self._book.path(ours // count)
        return there != here and plain(their_elements) == plain(our_elements)

    # ---------------------------------------------------------------------------------- in words

    def _words(self, slot: int, place: Place) -> str:
        memory = self._memories[self._groups[place.group].memory]
        name, writer = int(memory.content[slot]), int(memory.writer[slot])
        if name == UNWRITTEN:
            return _NO_TAG[UNWRITTEN]
        who = self._accounts.get(writer)
        by = "somebody who has left" if who is None else who.name
        return f"{self._name(name)}, written by {by} in pass {int(memory.time[slot])}"

    def _name(self, name: int) -> str:
        if name < 0:
            return _NO_TAG[name]
        tag, group = divmod(name, len(self._groups))
        words = in_words(*self._book.path(tag))
        return f"{words} (layer group {group})" if len(self._groups) > 1 else words
