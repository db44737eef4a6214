"""The memory that block tables point into: K and V of real types, carried as a worker carries them.

A block that is handed out keeps what its last owner left, as in an engine. What was never written
is NaN where the kernel claims to read nothing of it (tail=any), else large finite numbers. Where
the kernel claims less and the manager clears (ZEROES), a block is NaN whenever it is handed out,
so that it is the clearing that is relied on. Copies are done as if all sources were read first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

import torch
from torch import Generator, Tensor

from kvassay.harness.attention.build import dtype_of
from kvassay.harness.attention.memory import Arena, on
from kvassay.harness.contract import Tail
from kvassay.harness.pairs.form import Form
from kvassay.harness.pairs.history import History

SPARE = 2
"""Blocks of nobody."""
LOUD = 1000.0
"""Size of finite garbage."""
PLACED_BY = 20_260
"""Seed of the order in which ids get their places, and of garbage."""


class NoPlace(LookupError):
    """More blocks than the pool has."""


class Garbage(StrEnum):
    """What stands in slots that nobody has written."""

    NAN = "nan"
    """NaN at first; afterwards what the last owner left."""
    FINITE = "finite"
    """Large numbers at first; afterwards what the last owner left."""
    CLEARED = "cleared"
    """NaN at every hand-out, until the manager has it cleared."""


def garbage_for(tail: Tail, clears: bool) -> Garbage:
    """What kernel and manager together claim to stand."""
    if tail is Tail.ANY:
        return Garbage.NAN
    return Garbage.CLEARED if clears else Garbage.FINITE


class Pool:
    """Key and value cache of one manager; its ids are given places in the order they come up.

    Unless it attends by itself (`numbered`, with the number of its reserved ids in `num_blocks`):
    then ids are places.
    """

    def __init__(
        self,
        form: Form,
        num_blocks: int,
        block_size: int,
        garbage: Garbage,
        *,
        numbered: bool = False,
    ) -> None:
        self.block_size = block_size
        self.garbage = garbage
        self.arena = Arena(on(form.device), form.device)
        shape = (num_blocks + SPARE, block_size, form.num_kv_heads, form.head_dim)
        self.key = self.arena.tensor("key_cache", shape, dtype_of(form.dtype))
        self.value = self.arena.tensor("value_cache", shape, dtype_of(form.dtype))
        generator = Generator().manual_seed(PLACED_BY)
        self._order: list[int] = torch.randperm(shape[0], generator=generator).tolist()
        self._places: dict[int, int] = {}
        if numbered:
            self._order = [*range(shape[0])]
            self._places = dict(enumerate(range(num_blocks)))
        for cache in (self.key, self.value):
            noise = LOUD * torch.randn(shape, generator=generator)
            if garbage is not Garbage.FINITE:
                noise.fill_(torch.nan)
            cache.copy_(noise.to(cache.dtype))

    # ----------------------------------------------------------------------------------- places

    def place(self, block: int) -> int:
        """Row of the caches that holds a block."""
        if block not in self._places:
            if len(self._places) == len(self._order) - SPARE:
                raise NoPlace(f"block {block} is one more than the pool has")
            self._places[block] = self._order[len(self._places)]
        return self._places[block]

    def places(self, table: Iterable[int]) -> list[int]:
        """A block table in rows of the caches."""
        return [self.place(block) for block in table]

    def unused(self) -> list[int]:
        """Rows that no block has."""
        return self._order[len(self._places) :]

    def _slots(self, table: Sequence[int], start: int, stop: int) -> tuple[Tensor, Tensor]:
        size = self.block_size
        places = [self.place(table[position // size]) for position in range(start, stop)]
        offsets = [position % size for position in range(start, stop)]
        device = self.key.device
        return torch.tensor(places, device=device), torch.tensor(offsets, device=device)

    # ---------------------------------------------------------------------------------- changes

    def hand_out(
        self, fresh: Iterable[int], zeroes: Iterable[int], copies: Sequence[tuple[int, int]]
    ) -> None:
        """Blocks get new owners, some are cleared, then contents are copied."""
        sources = self.places(source for source, _ in copies)
        contents = [(self.key[row].clone(), self.value[row].clone()) for row in sources]
        if self.garbage is Garbage.CLEARED:
            self._fill(fresh, torch.nan)
        self._fill(zeroes, 0.0)
        for (_, destination), (key, value) in zip(copies, contents, strict=True):
            row = self.place(destination)
            self.key[row], self.value[row] = key, value

    def _fill(self, blocks: Iterable[int], number: float) -> None:
        for row in self.places(blocks):
            self.key[row] = number
            self.value[row] = number

    def write(
        self, table: Sequence[int], tags: Sequence[int], start: int, stop: int, history: History
    ) -> None:
        """Write KV of the positions [start, stop) through a block table."""
        rows, offsets = self._slots(table, start, stop)
        wanted = tags[start:stop]
        self.key[rows, offsets] = history.keys(wanted).to(self.key.device)
        self.value[rows, offsets] = history.values(wanted).to(self.value.device)

    # ------------------------------------------------------------------------------------ looks

    def first_wrong(
        self, table: Sequence[int], tags: Sequence[int], stop: int, history: History
    ) -> int | None:
        """First position below `stop` that does not hold its KV to the bit, or None."""
        rows, offsets = self._slots(table, 0, stop)
        wanted = tags[:stop]
        right = (self.key[rows, offsets].cpu() == history.keys(wanted)).flatten(1).all(dim=1)
        right &= (self.value[rows, offsets].cpu() == history.values(wanted)).flatten(1).all(dim=1)
        wrong = (~right).nonzero()
        return int(wrong[0]) if len(wrong) else None

    def slot(self, table: Sequence[int], position: int) -> tuple[Tensor, Tensor]:
        """Views of the key and the value in the slot of a position."""
        index, offset = divmod(position, self.block_size)
        row = self.place(table[index])
        return self.key[row, offset], self.value[row, offset]

    def tail(self, table: Sequence[int], length: int) -> Tensor:
        """Keys ``[n, num_kv_heads, head_dim]`` past the end in the last block that is needed."""
        if length % self.block_size == 0:
            return self.key[0, :0]
        return self.key[self.place(table[length // self.block_size]), length % self.block_size :]
