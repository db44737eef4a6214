"""A correct kernel with unusual habits, by choice: tiles, splits, orders, roundings.

Keys are taken tile by tile with an online softmax, in one or more splits that are merged by their
LSE. Everything that a real kernel may do differently without being wrong is an option: the tests
take one combination after the other as a control that nothing may convict.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from kvassay.harness.contract import AttentionBatch, AttentionResult, EmptyRow

LN2 = 0.6931471805599453


@dataclass(frozen=True)
class Habits:
    """How the work is done."""

    tile: int = 64
    """Keys per step."""
    splits: int = 1
    order: str = "forward"
    """Of the tiles of a split: forward, reverse, or random (another one each time)."""
    round_weights: bool = True
    """Whether probabilities are rounded to the query's type, as a tensor-core kernel does."""
    round_scores: bool = False
    round_parts: bool = False
    """Whether the outputs of splits are stored in the query's type."""
    scale_query: bool = False
    """Whether the query is multiplied by the scale, and rounded, before anything else."""
    whole_blocks: bool = False
    """Whether all slots of a block are read and masked: garbage in them has to be finite."""
    doubles: bool = False
    """Whether all of it is computed in float64."""
    empty_row: EmptyRow = EmptyRow.ZERO


class TiledAttention:
    """One sequence and KV head after the other."""

    def __init__(self, habits: Habits | None = None) -> None:
        self.habits = habits or Habits()
        self.paths = {"sequence": 0}
        self._random = Random(0)
        self._dtype = torch.float64 if self.habits.doubles else torch.float32

    def __call__(self, batch: AttentionBatch) -> AttentionResult:
        query = batch.query
        if query.shape[1] % batch.key_cache.shape[2]:
            raise ValueError(f"query heads: no multiple of {batch.key_cache.shape[2]} KV heads")
        output = batch.output
        if output is None:
            output = query.new_empty(*query.shape[:2], batch.value_cache.shape[3])
        lse = batch.lse
        if lse is None:
            lse = query.new_empty(query.shape[:2], dtype=torch.float32)
        starts = batch.query_start.tolist()
        for index in range(len(starts) - 1):
            rows = slice(starts[index], starts[index + 1])
            if rows.start < rows.stop:
                self.paths["sequence"] += 1
                self._sequence(batch, index, rows, output, lse)
        return AttentionResult(output, lse)

    def _sequence(
        self, batch: AttentionBatch, index: int, rows: slice, output: Tensor, lse: Tensor
    ) -> None:
        group = batch.query.shape[1] // batch.key_cache.shape[2]
        for head in range(batch.key_cache.shape[2]):
            heads = slice(head * group, (head + 1) * group)
            query = self._query(batch, rows, heads)
            parts = [
                self._split(batch, index, query, head, heads, tiles)
                for tiles in self._tiles(batch, index, query.shape[0])
            ]
            out, total = self._merged(batch, parts, heads)
            empty = total.isneginf()
            if self.habits.empty_row is EmptyRow.NAN:
                out = torch.where(empty[..., None], torch.nan, out)
            if self.habits.empty_row is EmptyRow.UNTOUCHED:
                out = torch.where(empty[..., None], output[rows, heads].to(out.dtype), out)
                total = torch.where(empty, lse[rows, heads].to(total.dtype), total)
            output[rows, heads] = out.to(output.dtype)
            lse[rows, heads] = total.float()

    def _query(self, batch: AttentionBatch, rows: slice, heads: slice) -> Tensor:
        """``[q, group, head_dim]``, with the scale in it."""
        query = batch.query[rows, heads].to(self._dtype)
        scale = query.shape[2] ** -0.5 if batch.scale is None else batch.scale
        scaled = query * scale
        if self.habits.scale_query:
            scaled = (scaled / LN2).to(batch.query.dtype).to(self._dtype) * LN2
        return scaled

    def _tiles(self, batch: AttentionBatch, index: int, num_rows: int) -> Iterator[list[range]]:
        """The tiles of each split, in the order in which they are taken."""
        length, tile = int(batch.seq_lens[index]), self.habits.tile
        first = 0
        if batch.window_left is not None:
            first = max(0, length - num_rows - batch.window_left) // tile * tile
        tiles = [range(a, min(a + tile, length)) for a in range(first, length, tile)]
        per_split = max(1, -(-len(tiles) // self.habits.splits))
        for start in range(0, max(1, len(tiles)), per_split):
            part = tiles[start : start + per_split]
            if self.habits.order == "reverse":
                part.reverse()
            elif self.habits.order == "random":
                self._random.shuffle(part)
            yield part

    def _split(
        self,
        batch: AttentionBatch,
        index: int,
        query: Tensor,
        head: int,
        heads: slice,
        tiles: list[range],
    ) -> tuple[Tensor, Tensor]:
        """Output ``[q, group, head_dim_v]`` and LSE ``[q, group]`` of one split."""
        largest = query.new_full(query.shape[:2], -torch.inf)
        total = query.new_zeros(query.shape[:2])
        out = query.new_zeros(*query.shape[:2], batch.value_cache.shape[3])
        for tile in tiles:
            key, value, visible = self._tile(batch, index, head, tile, query.shape[0])
            scores = self._scores(batch, index, query, key, heads, tile)
            scores = scores.masked_fill(~visible[:, None, :], -torch.inf)
            now = torch.maximum(largest, scores.amax(2))
            shift = torch.where(now.isneginf(), 0.0, now)
            weights = torch.exp(scores - shift[..., None])
            decay = torch.exp(largest - shift)
            total = total * decay + weights.sum(2)
            if self.habits.round_weights:
                weights = weights.to(batch.query.dtype).to(self._dtype)
            out = out * decay[..., None] + weights @ value
            largest = now
        out = out / torch.where(total == 0, 1.0, total)[..., None]
        if self.habits.round_parts:
            out = out.to(batch.query.dtype).to(self._dtype)
        return out, torch.where(total == 0, -torch.inf, largest + torch.log(total))

    def _tile(
        self, batch: AttentionBatch, index: int, head: int, tile: range, num_rows: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values and ``bool [q, n]`` of a tile."""
        length, size = int(batch.seq_lens[index]), batch.key_cache.shape[1]
        queries = torch.arange(length - num_rows, length)
        stop = -(-tile.stop // size) * size if self.habits.whole_blocks else tile.stop
        keys = torch.arange(tile.start, stop)
        ahead = keys[None, :] - queries[:, None]
        visible = (keys < tile.stop).expand_as(ahead).clone()
        if batch.causal:
            visible &= ahead <= 0
        if batch.window_left is not None:
            visible &= ahead >= -batch.window_left
        used = torch.ones_like(keys, dtype=torch.bool)
        if not self.habits.whole_blocks:
            used = visible.any(0)
        blocks = torch.where(used, batch.block_table[index].long()[keys // size], 0)
        where = (blocks, keys % size, head)
        key = _rows(batch.key_cache, batch.k_scale, where, used, self._dtype)
        value = _rows(batch.value_cache, batch.v_scale, where, used, self._dtype)
        return key, value, visible

    def _scores(
        self,
        batch: AttentionBatch,
        index: int,
        query: Tensor,
        key: Tensor,
        heads: slice,
        tile: range,
    ) -> Tensor:
        """``[q, group, n]``, before the mask."""
        scores = query @ key.T
        if self.habits.round_scores:
            scores = scores.to(batch.query.dtype).to(self._dtype)
        if batch.softcap is not None:
            scores = batch.softcap * torch.tanh(scores / batch.softcap)
        if batch.alibi_slopes is not None:
            length = int(batch.seq_lens[index])
            queries = torch.arange(length - query.shape[0], length)
            keys = torch.arange(tile.start, tile.start + key.shape[0])
            slopes = batch.alibi_slopes[heads].to(self._dtype)
            scores = scores + slopes[None, :, None] * (keys - queries[:, None])[:, None, :]
        return scores

    def _merged(
        self, batch: AttentionBatch, parts: list[tuple[Tensor, Tensor]], heads: slice
    ) -> tuple[Tensor, Tensor]:
        """All splits, and the sink, weighted by their LSE."""
        outs = torch.stack([out for out, _ in parts])
        each = torch.stack([lse for _, lse in parts])
        total = torch.logsumexp(each, 0)
        if batch.sinks is not None:
            total = torch.logaddexp(total, batch.sinks[heads].to(total.dtype).expand_as(total))
        shift = torch.where(total.isneginf(), 0.0, total)
        return (outs * torch.exp(each - shift)[..., None]).sum(0), total


def _rows(
    cache: Tensor, scale: Any, where: tuple[Tensor, Tensor, int], used: Tensor, dtype: torch.dtype
) -> Tensor:
    """Rows of one KV head, scaled; 0 where they are not used."""
    blocks, slots, head = where
    rows = cache[blocks, slots][:, head].to(dtype)
    if scale is not None:
        factor = torch.as_tensor(scale).to(dtype)
        if factor.dim() == 3:
            rows = rows * factor[blocks, slots, head][:, None]
        else:
            rows = rows * (factor[head] if factor.dim() else factor)
    return torch.where(used[:, None], rows, 0.0)
