"""The shadow device: the memory that block tables point into, played by the harness.

Every slot holds the tag of the KV that was last written there. A block that is handed out anew
is filled with FRESH, which equals no tag: its new owner may write at any moment, so whatever
it held before must not be relied on. Writes and copies happen here and nowhere else, unless an
engine owns its tensors: that is `stored_device`.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence

from kvassay.harness.contract import TORN

FRESH = -1
"""Content of a slot that was not written since its block was handed out."""
NO_KV = (FRESH, TORN)
"""Contents that name no KV."""


class ShadowDevice:
    """Tags by block and offset."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.memory: MutableMapping[int, list[int]] = {}

    def begin_tenancies(self, fresh: Iterable[int], copies: Sequence[tuple[int, int]]) -> None:
        """Hand out the blocks `fresh`, then do `copies` as if all sources were read first."""
        size, memory = self.block_size, self.memory
        contents = [list(memory.get(source, ())) or [FRESH] * size for source, _ in copies]
        for block in fresh:
            memory[block] = [FRESH] * size
        for (_, destination), content in zip(copies, contents, strict=True):
            memory[destination] = content

    def write(self, table: Sequence[int], tags: Sequence[int], start: int, stop: int) -> None:
        """Write the tags of positions [start, stop) through a block table."""
        size, memory = self.block_size, self.memory
        while start < stop:
            index, offset = divmod(start, size)
            count = min(size - offset, stop - start)
            memory[table[index]][offset : offset + count] = tags[start : start + count]
            start += count

    def holds(self, block: int, tags: Sequence[int]) -> bool:
        """Whether a block that was handed out holds these tags."""
        return self.memory[block] == tags

    def first_wrong(self, table: Sequence[int], tags: Sequence[int], stop: int) -> int | None:
        """First position below `stop` whose slot does not hold its tag, or None."""
        size, memory = self.block_size, self.memory
        for index in range((stop + size - 1) // size):
            low = index * size
            high = min(low + size, stop)
            content = memory.get(table[index])
            if content is None:
                return low
            if high - low < size:
                content = content[: high - low]
            if content != tags[low:high]:
                return self._position(content, tags, low, high)
        return None

    def first_wrong_within(
        self, table: Sequence[int], tags: Sequence[int], start: int, stop: int
    ) -> int | None:
        """First position of [start, stop) whose slot does not hold its tag, or None."""
        size, memory = self.block_size, self.memory
        for index in range(start // size, (stop + size - 1) // size):
            begin = index * size
            low, high = max(begin, start), min(begin + size, stop)
            content = memory.get(table[index])
            if content is None:
                return low
            held = content[low - begin : high - begin]
            if held != tags[low:high]:
                return self._position(held, tags, low, high)
        return None

    @staticmethod
    def _position(content: Sequence[int], tags: Sequence[int], low: int, high: int) -> int:
        return next(p for p in range(low, high) if content[p - low] != tags[p])

    def read(self, table: Sequence[int], position: int) -> int | None:
        """Tag in the slot of a position; None where no block was ever handed out."""
        index, offset = divmod(position, self.block_size)
        content = self.memory.get(table[index])
        return None if content is None else content[offset]
