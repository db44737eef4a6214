"""Planted faults in a manager that owns its tensors: what it copies and where it writes.

Tables and counts are right in all of them, and the copies are told to nobody: only what is read
from the tensors afterwards can show that something is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvassay.harness.contract import CacheManager
from kvassay.impls.faulty.controls import STORED, Stored
from kvassay.impls.faulty.planting import Fault, planter

FAULTS: dict[str, Fault] = {}
fault = planter(FAULTS, "fault-", CacheManager, STORED)


@fault(
    "stored-copy-not-done",
    "C2",
    "Whoever was forked reads the blocks of the family as long as nobody writes.\n"
    "A sharer must write inside a block, and read what is before it.",
)
class CopyNotDone(Stored):
    def _record_copy(self, source: int, destination: int) -> None:
        """Somebody else is to do it."""


@fault(
    "stored-values-not-copied",
    "C2",
    "The keys are there, so that whoever looks at them alone finds nothing.\n"
    "A copied block must be read in keys and values.",
)
class ValuesNotCopied(Stored):
    def _record_copy(self, source: int, destination: int) -> None:
        self._copy(self._key_slots, source * self.block_size, destination * self.block_size)


@fault(
    "stored-copy-one-slot-short",
    "C2",
    "All but the first slot is there.\nA block of two tokens or more must be copied.",
)
class CopyOneSlotShort(Stored):
    def _copy(self, part: list[int], source: int, destination: int) -> None:
        last = self.block_size - 1
        part[destination + 1 : destination + 1 + last] = part[source + 1 : source + 1 + last]


@fault(
    "stored-copy-one-slot-off",
    "C2",
    "As many slots are copied as there are.\nA copied block must be read slot by slot.",
)
class CopyOneSlotOff(Stored):
    def _copy(self, part: list[int], source: int, destination: int) -> None:
        content = part[source : source + self.block_size]
        part[destination : destination + self.block_size] = [content[-1], *content[:-1]]


@fault(
    "stored-last-slot-of-block-shared",
    "A2 C1 C2 P4",
    "Blocks that are not full are right.\n"
    "The last slot of a block must be written, and the block before it be full too.",
)
class LastSlotShared(Stored):
    """The last slot of every other block lies where that of the block before lies."""

    def write(self, group: int, slots: Sequence[int], tags: Sequence[int]) -> None:
        super().write(group, [self._place(slot) for slot in slots], tags)

    def read(self, group: int, slots: Sequence[int]) -> list[int]:
        return super().read(group, [self._place(slot) for slot in slots])

    def _place(self, slot: int) -> int:
        block, offset = divmod(slot, self.block_size)
        return slot - self.block_size if block % 2 and offset == self.block_size - 1 else slot
