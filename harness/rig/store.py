"""The memory of K and V that block tables point into, layer by layer.

A layer's tensors are made when it is first written, since only then their shapes are known. Ids get
rows in the order in which they come up, so that any may be used, however large. Slots that nobody
has written hold NaN where the kernel claims to read nothing of them, else large numbers: what is
read without having been written shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvassay.harness.contract import Tail
from kvassay.harness.rig.plan import Transfer

LOUD = 1000.0
SPARE = 1
"""Rows of nobody: padding of block tables."""


class NoPlace(LookupError):
    """More distinct blocks than the pool has."""


@dataclass(frozen=True)
class Slots:
    """Where the tokens of a step go."""

    rows: Tensor
    offsets: Tensor


class Store:
    """Key and value caches ``[rows, block_size, num_kv_heads, head_dim]`` of every layer."""

    def __init__(self, num_blocks: int, block_size: int, tail: Tail, device: str) -> None:
        self.block_size = block_size
        self.num_rows = num_blocks + SPARE
        self._garbage = torch.nan if tail is Tail.ANY else LOUD
        self._device = device
        self._places: dict[int, int] = {}
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def num_bytes(self) -> int:
        """Of all layers made so far."""
        return sum(each.nbytes for layer in self._layers.values() for each in layer)

    def place(self, block: int) -> int:
        """Row of a block; raises `NoPlace`."""
        if block not in self._places:
            if len(self._places) == self.num_rows - SPARE:
                raise NoPlace(f"block {block} is one more than the pool has")
            self._places[block] = SPARE + len(self._places)
        return self._places[block]

    def rows(self, table: Iterable[int]) -> list[int]:
        """A block table in rows."""
        return [self.place(block) for block in table]

    def tables(self, tables: Sequence[Sequence[int]]) -> Tensor:
        """``int32 [len(tables), longest]``, in rows, padded with one of nobody."""
        rows = [self.rows(table) for table in tables]
        longest = max(map(len, rows))
        padded = [[*row, *[0] * (longest - len(row))] for row in rows]
        return torch.tensor(padded, dtype=torch.int32, device=self._device)

    def slots(self, parts: Iterable[tuple[Sequence[int], int, int]]) -> Slots:
        """Of the positions [start, stop) of each (table, start, stop), one after the other."""
        rows: list[int] = []
        offsets: list[int] = []
        for table, start, stop in parts:
            first = start // self.block_size
            places = self.rows(table[first : -(-stop // self.block_size)])
            for position in range(start, stop):
                rows.append(places[position // self.block_size - first])
                offsets.append(position % self.block_size)
        return Slots(
            *(torch.tensor(each, dtype=torch.long, device=self._device) for each in (rows, offsets))
        )

    def write(self, layer: int, slots: Slots, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write tokens ``[num_tokens, num_kv_heads, head_dim]``; the layer's caches."""
        caches = self._layers.get(layer)
        if caches is None:
            caches = self._layers[layer] = (self._made(key), self._made(value))
        for cache, fresh in zip(caches, (key, value), strict=True):
            cache[slots.rows, slots.offsets] = fresh
        return caches

    def _made(self, like: Tensor) -> Tensor:
        shape = (self.num_rows, self.block_size, *like.shape[1:])
        return like.new_full(shape, self._garbage)

    def move(self, transfers: Iterable[Transfer]) -> None:
        """Clear, then copy, in all layers; of each transfer all sources are read first."""
        for transfer in transfers:
            zeroes = self.rows(transfer.zeroes)
            sources = self.rows(source for source, _ in transfer.copies)
            destinations = self.rows(destination for _, destination in transfer.copies)
            for caches in self._layers.values():
                for cache in caches:
                    read = cache[sources]
                    cache[zeroes] = 0.0
                    cache[destinations] = read
