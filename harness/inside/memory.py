"""Memory that layer groups share: a name for what is in each slot, who wrote it, and when.

A name is the tag of the token prefix (`reference.tags`) together with the layer group; negative
names are what no request may ever want to read.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvassay.harness.inside.batch import Ints

UNWRITTEN = -1
"""Nobody has written this slot."""
MISPLACED = -2
"""Written for a token that the model was told to stand elsewhere."""
LATE = -3
"""Written for a request that had left."""
NOBODY = -1
_FIRST_ROOM = 1024

Names = npt.NDArray[np.int64]


class TaggedMemory:
    """Slots of `num_blocks` blocks; slot = block x block_size + offset."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        size = num_blocks * block_size
        self.content: Names = np.full(size, UNWRITTEN, dtype=np.int64)
        self.writer: Names = np.full(size, NOBODY, dtype=np.int64)
        self.time: Names = np.zeros(size, dtype=np.int64)
        self._last: Names = np.full(_FIRST_ROOM, -1, dtype=np.int64)

    def write(self, slots: Ints, names: Names, writers: Names, time: int) -> int:
        """Write; slots of no block are padding, and nothing happens there.

        Returns how many full blocks were begun anew with other KV.
        """
        real = (slots >= 0) & (slots < len(self.content))
        if not real.all():
            slots, names, writers = slots[real], names[real], writers[real]
        recycled = self._recycled(slots, names)
        self.content[slots] = names
        self.writer[slots] = writers
        self.time[slots] = time
        self._remember(slots, names)
        return recycled

    def was_in(self, name: int, slot: int) -> bool:
        """Whether the slot is the last that this KV was ever written to."""
        return 0 <= name < len(self._last) and int(self._last[name]) == slot

    def _recycled(self, slots: Ints, names: Names) -> int:
        first = slots % self.block_size == 0
        begun = slots[first]
        old = self.content[begun]
        full = self.content[begun + self.block_size - 1] != UNWRITTEN
        return int(np.count_nonzero((old != UNWRITTEN) & (old != names[first]) & full))

    def _remember(self, slots: Ints, names: Names) -> None:
        known = names >= 0
        if not known.any():
            return
        most = int(names[known].max())
        if most >= len(self._last):
            grown = np.full(max(most + 1, 2 * len(self._last)), -1, dtype=np.int64)
            grown[: len(self._last)] = self._last
            self._last = grown
        self._last[names[known]] = slots[known]
