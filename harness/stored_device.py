"""The device where an engine owns its tensors (STORAGE): tags in the engine's memory, not ours.

Copies are the engine's own, done when the operation returns, and judged by what is then read. So
that nothing can pass which was left by accident, the engine never gets a tag itself: every write
of a slot bears a *stamp* of its own, a number that is used once, and the harness knows which tag
and which slot a stamp stands for. What is read of a block that was handed out anew is a copy
exactly if its stamps were written to other slots, and still stand there; a stamp of the block
itself is a rest of its last owner, and anything else is nothing. Then the block is written once
more, with what it holds, and FRESH in every other slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from itertools import count

from kvassay.harness.calling import at_most
from kvassay.harness.contract import TORN
from kvassay.harness.device import FRESH, ShadowDevice
from kvassay.harness.violation import Crash

LAST = 2**31 - 1
"""The largest stamp."""
_stamps = count(1)
"""Of all devices of a process: in memory that was used before there is no stamp of this one."""

Write = Callable[[Sequence[int], Sequence[int]], object]
Read = Callable[[Sequence[int]], Iterable[int]]


class Storage(MutableMapping[int, list[int]]):
    """Tags by block, in an engine's memory; blocks that were never handed out are not there."""

    def __init__(self, block_size: int, write: Write, read: Read) -> None:
        self.block_size = block_size
        self._write = write
        self._read = read
        self._known: dict[int, tuple[int, int]] = {}
        """By stamp: the slot that it was written to, and the tag that it stands for."""
        self._standing: dict[int, int] = {}
        """By slot: the stamp that was written there last; none for FRESH."""
        self._handed_out: set[int] = set()

    # --------------------------------------------------------------------------- what is written

    def put(self, slots: Sequence[int], tags: Sequence[int]) -> None:
        """Write tags, each under a new stamp."""
        stamps = [self._stamp(slot, tag) for slot, tag in zip(slots, tags, strict=True)]
        self._write(slots, stamps)

    def _stamp(self, slot: int, tag: int) -> int:
        if tag < 0:
            self._standing.pop(slot, None)
            return FRESH
        stamp = next(_stamps) % LAST + 1
        self._known[stamp] = slot, tag
        self._standing[slot] = stamp
        return stamp

    def __setitem__(self, block: int, tags: list[int]) -> None:
        self.hand_out([block], [tags])

    def __delitem__(self, block: int) -> None:
        self._handed_out.remove(block)

    # ------------------------------------------------------------------------------ what is read

    def at(self, slots: Sequence[int]) -> list[int]:
        """Tags of the stamps that are in these slots, whoever put them there."""
        return [self._tag(stamp) for stamp in self._stamps_at(slots)]

    def __getitem__(self, block: int) -> list[int]:
        if block not in self._handed_out:
            raise KeyError(block)
        return self.at(self._slots(block))

    def __contains__(self, block: object) -> bool:
        return block in self._handed_out

    def __iter__(self) -> Iterator[int]:
        return iter(self._handed_out)

    def __len__(self) -> int:
        return len(self._handed_out)

    def copied(self, blocks: Sequence[int]) -> list[list[int]]:
        """What was copied into blocks since they were written last; FRESH in every other slot."""
        slots = [slot for block in blocks for slot in self._slots(block)]
        content = [
            self._tag(stamp) if self._from_elsewhere(slot, stamp) else FRESH
            for slot, stamp in zip(slots, self._stamps_at(slots), strict=True)
        ]
        size = self.block_size
        return [content[low : low + size] for low in range(0, len(content), size)]

    def sources(self, block: int) -> set[int]:
        """Where what was copied into a block stands."""
        slots = self._slots(block)
        return {
            self._known[stamp][0] // self.block_size
            for slot, stamp in zip(slots, self._stamps_at(slots), strict=True)
            if self._from_elsewhere(slot, stamp)
        }

    def overwritten(self, slot: int) -> bool:
        """Whether a slot holds something else than what was written there last; not if FRESH."""
        stamp = self._standing.get(slot)
        return stamp is not None and self._stamps_at([slot]) != [stamp]

    def hand_out(self, blocks: Sequence[int], contents: Sequence[list[int]]) -> None:
        """Write whole blocks, which have new owners."""
        self._handed_out.update(blocks)
        slots = [slot for block in blocks for slot in self._slots(block)]
        self.put(slots, [tag for content in contents for tag in content])

    def _from_elsewhere(self, slot: int, stamp: int) -> bool:
        """Whether a stamp stands in another slot, as the source of a copy does."""
        origin, _ = self._known.get(stamp, (slot, FRESH))
        return origin != slot and self._standing.get(origin) == stamp

    def _tag(self, stamp: int) -> int:
        if stamp in self._known:
            return self._known[stamp][1]
        return TORN if stamp == TORN else FRESH

    def _stamps_at(self, slots: Sequence[int]) -> list[int]:
        stamps = at_most(self._read(slots), len(slots))
        if len(stamps) != len(slots) or not all(isinstance(each, int) for each in stamps):
            raise Crash(f"read: expected {len(slots)} tags as plain ints, got {stamps}")
        return stamps

    def _slots(self, block: int) -> range:
        return range(block * self.block_size, (block + 1) * self.block_size)


class StoredDevice(ShadowDevice):
    """Tags by block and offset, where the engine keeps its KV."""

    memory: Storage

    def __init__(self, block_size: int, write: Write, read: Read) -> None:
        super().__init__(block_size)
        self.memory = Storage(block_size, write, read)
        self.num_copied = 0
        """Blocks that were handed out with something copied into them."""

    def begin_tenancies(self, fresh: Iterable[int], copies: Sequence[tuple[int, int]]) -> None:
        """Hand out the blocks `fresh`; `copies` were done by the engine, or they were not."""
        blocks = list(fresh)
        if blocks:
            contents = self.memory.copied(blocks)
            self.num_copied += sum(content.count(FRESH) < len(content) for content in contents)
            self.memory.hand_out(blocks, contents)

    def sources(self, block: int) -> set[int]:
        """Blocks from which something was copied into this one since it was written last."""
        return self.memory.sources(block)

    def holds(self, block: int, tags: Sequence[int]) -> bool:
        """Whether a block holds these tags, and no copy of them that came just now."""
        return super().holds(block, tags) and not self.sources(block)

    def overwritten(self, table: Sequence[int], position: int) -> bool:
        """Whether a slot that was written does not hold what was written there last."""
        return self.memory.overwritten(*self._slots(table, position, position + 1))

    def write(self, table: Sequence[int], tags: Sequence[int], start: int, stop: int) -> None:
        """Write the tags of positions [start, stop) through a block table."""
        self.memory.put(self._slots(table, start, stop), tags[start:stop])

    def first_wrong(self, table: Sequence[int], tags: Sequence[int], stop: int) -> int | None:
        """First position below `stop` whose slot does not hold its tag, or None; read at once."""
        if any(block not in self.memory for block in table[: -(-stop // self.block_size)]):
            return super().first_wrong(table, tags, stop)
        held = self.memory.at(self._slots(table, 0, stop))
        return None if held == tags[:stop] else self._position(held, tags, 0, stop)

    def _slots(self, table: Sequence[int], start: int, stop: int) -> list[int]:
        size = self.block_size
        return [table[position // size] * size + position % size for position in range(start, stop)]
