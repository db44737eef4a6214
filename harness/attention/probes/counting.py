"""Reading the mask back from a result: which positions each row has seen, without a tolerance.

With a query of 0 all weights of a row are 1 / c exactly, where c is the number of keys that it
sees. Values are unit vectors by a code of the position, so

    exp(lse) = c                    output * c = how many visible positions have each code

which are integers. A key too many or too few moves an entry of ``output * c`` by at least
``(c - h) / (c + 1)``, h being the largest entry: halfway lies the border. Two roundings to the
output's type (of 1 / c, and of the sum), and sums of h terms in float32, must stay below it, else
the case cannot be read (`readable`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kvassay.harness.attention.build import Built
from kvassay.harness.attention.case import Case, Contents
from kvassay.harness.attention.contents import code_of
from kvassay.harness.contract import AttentionResult
from kvassay.reference.attention import visibility

F64 = torch.float64
CODED = (Contents.COUNTED, Contents.PLACED)
HALF_SPACING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Largest relative error of rounding to nearest."""
LEAST_SPACING = {"float16": 2.0**-24}
"""Between the smallest numbers of a type that weights of long rows come near to."""


@dataclass(frozen=True)
class Row:
    """One row of a batch: where it stands, and what it must see."""

    token: int
    """In the packed query."""
    sequence: int
    position: int
    length: int
    """Keys of its sequence."""
    visible: Tensor
    """``bool [length]``."""
    last: bool
    """Whether it is the last of its sequence, which no causal mask cuts."""


def rows_of(built: Built) -> Iterator[Row]:
    """The rows of a case, one after the other."""
    token = 0
    for sequence, (length, queries) in enumerate(built.case.seqs):
        positions = torch.arange(length - queries, length)
        seen = visibility(built.batch, positions, length)
        for position, visible in zip(positions.tolist(), seen, strict=True):
            last = position == length - 1
            yield Row(token, sequence, position, length, visible, last)
            token += 1


def histogram(contents: Contents, visible: Tensor, dim: int) -> Tensor:
    """How many visible positions have each code: ``float64 [dim]``."""
    codes = code_of(contents, torch.nonzero(visible)[:, 0], dim)
    return torch.bincount(codes, minlength=dim).to(F64)


def _step(count: int, largest: float) -> float:
    """The least by which one key too many or too few moves an entry."""
    return (count - largest) / (count + 1)


def readable(case: Case) -> bool:
    """Whether rounding leaves no doubt: plain logits, unit values, sums below the border."""
    plain = not (case.softcap or case.alibi or case.sinks) and case.cache_dtype == case.dtype
    if case.contents not in CODED or not plain:
        return False
    longest = max((length for length, _ in case.seqs), default=0)
    codes = code_of(case.contents, torch.arange(longest), case.head_dim_v)
    largest = float(torch.bincount(codes).max()) if longest else 0.0
    half = HALF_SPACING[case.dtype]
    weight = max(half, longest * LEAST_SPACING.get(case.dtype, 0.0) / 2)
    error = largest * (half + weight + largest * HALF_SPACING["float32"])
    return error < _border(max(longest, 1), largest)


def _border(count: int, largest: float) -> float:
    """Halfway to the nearest wrong reading; a few keys of one code leave it at a quarter."""
    return max(_step(count, largest), 0.5) / 2


@dataclass(frozen=True)
class Reading:
    """What the result of one row and head says that it has seen."""

    row: Row
    head: int
    count: float | None
    """``exp(lse)`` where there is one."""
    scaled: Tensor
    """Output times the expected count: ``float64 [dim]``."""
    expected: Tensor
    """The histogram that it must be."""

    @property
    def total(self) -> int:
        """How many keys the row must see."""
        return int(self.row.visible.sum())

    @property
    def output_right(self) -> bool:
        """Whether the output says what it must; NaN does not."""
        border = _border(self.total, float(self.expected.max()))
        return bool(((self.scaled - self.expected).abs() < border).all())

    @property
    def lse_right(self) -> bool:
        """Whether the LSE, if there is one, does."""
        return self.count is None or abs(self.count - self.total) < 0.5


def readings(built: Built, result: AttentionResult) -> Iterator[Reading]:
    """Every row that sees a key, head by head."""
    case = built.case
    output = result.output.detach().cpu().to(F64)
    lse = None if result.lse is None else result.lse.detach().cpu().to(F64)
    for row in rows_of(built):
        total = int(row.visible.sum())
        if not total:
            continue
        expected = histogram(case.contents, row.visible, case.head_dim_v)
        for head in range(case.num_q_heads):
            count = None if lse is None else float(lse[row.token, head].exp())
            yield Reading(row, head, count, output[row.token, head] * total, expected)
