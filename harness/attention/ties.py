"""Numbers so close that a kernel rounds them alike: their errors add up instead of averaging out.

Repeated keys, a zero query beside a sink, or one strong key over a flat rest give many logits that
are all but equal. A run is a set of entries of one row in the same bin of a grid.
"""

from __future__ import annotations

import torch
from torch import Tensor

F64 = torch.float64
CHUNK = 1 << 22
"""Numbers held at once."""


class Runs:
    """The runs of every row of a position tensor ``[..., r, n]``, all at least 0.

    Entries that do not count stand alone.
    """

    def __init__(self, position: Tensor, width: float, counts: Tensor) -> None:
        self.shape = position.shape
        alone = -1.0 - torch.arange(self.shape[-1], dtype=F64)
        bins = torch.where(counts, torch.floor(position / width), alone).flatten(0, -2)
        ordered, self.order = bins.sort(dim=1)
        new = torch.ones(bins.shape, dtype=torch.bool)
        new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
        flat = new.flatten()
        self.run = flat.long().cumsum(0) - 1
        self.row = flat.nonzero().flatten() // max(self.shape[-1], 1)
        """Row of each run."""

    def totals(self, amount: Tensor) -> Tensor:
        """Sum of `amount` ``[..., r, n]`` over each run."""
        return torch.zeros(len(self.row), dtype=F64).index_add_(0, self.run, self._flat(amount))

    def _flat(self, amount: Tensor) -> Tensor:
        """By row and run."""
        return amount.flatten(0, -2).gather(1, self.order).flatten()

    def by_row(self, per_run: Tensor) -> Tensor:
        """Sum over the runs of a row: ``[..., r]``."""
        rows = torch.zeros(self.shape[:-1].numel(), dtype=F64)
        return rows.index_add_(0, self.row, per_run).reshape(self.shape[:-1])

    def surplus(self, amount: Tensor, vectors: Tensor, centre: Tensor | None = None) -> Tensor:
        """``[h, r, d]``: what the squares of the runs' sums have over the sum of the squares.

        Of ``amount_j (vectors_j - centre)``: `amount` and the positions are ``[h, r, n]``,
        `vectors` ``[h, n, d]``, `centre` ``[h, r, d]``.
        """
        heads, num_rows, num_keys = self.shape
        size = vectors.shape[-1]
        surplus = torch.zeros(heads * num_rows, size, dtype=F64)
        places = (torch.bincount(self.run, minlength=len(self.row)) > 1)[self.run].nonzero()[:, 0]
        flat, keys = self._flat(amount), self.order.flatten()
        for part in _whole_runs(self.run[places], CHUNK // max(size, 1)):
            some = places[part]
            rows = some // num_keys
            moved = vectors.flatten(0, 1)[rows // num_rows * num_keys + keys[some]]
            if centre is not None:
                moved = moved - centre.flatten(0, 1)[rows]
            moved = moved * flat[some][:, None]
            runs, inverse = torch.unique_consecutive(self.run[some], return_inverse=True)
            total = torch.zeros(len(runs), size, dtype=F64).index_add_(0, inverse, moved)
            surplus.index_add_(0, self.row[runs], total.square())
            surplus.index_add_(0, rows, -moved.square())
        return surplus.reshape(heads, num_rows, size)


def _whole_runs(run: Tensor, size: int) -> list[slice]:
    """Slices of about `size` entries that cut no run in two."""
    parts, start = [], 0
    while start < len(run):
        stop = min(start + max(size, 1), len(run))
        if stop < len(run):
            stop = int(torch.searchsorted(run, run[stop - 1], right=True))
        parts.append(slice(start, stop))
        start = stop
    return parts


def spread_of(amount: Tensor, runs: Runs) -> Tensor:
    """``[..., r]``: how many runs effectively share a row's `amount`; at least 1."""
    totals = runs.totals(amount).square()
    first, second = runs.by_row(totals), runs.by_row(totals.square())
    return torch.where(second > 0, first.square() / second, 1.0)
