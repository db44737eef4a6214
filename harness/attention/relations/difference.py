"""By how much two views differ: to the bit, or in units of the deviation that rounding explains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kvassay.harness.attention.relations.view import View
from kvassay.harness.budget import Limits, row_error

TOLD = 3
"""Rows that a story tells of."""


@dataclass(frozen=True)
class Difference:
    """What is different, in a sentence, and where."""

    words: str
    story: tuple[str, ...]


def same(left: View, right: View) -> bool:
    """To the bit, but for the sign of a zero; NaN is the same as NaN."""
    return not _other_bits(left, right).any()


def in_bits(left: View, right: View) -> Difference:
    """Rows of which bits differ."""
    rows = _other_bits(left, right)
    words = f"other bits in {int(rows.sum())} of {rows.numel()} rows, though equal within rounding"
    places = rows.nonzero()[:TOLD].tolist()
    return Difference(words, tuple(_told(left, right, row, head) for row, head in places))


def beyond_rounding(left: View, right: View, bounds: Limits) -> Difference | None:
    """The first statistic over its limit, at the rows where it is largest."""
    for name, sigmas, limit in _statistics(left, right, bounds):
        if bool((sigmas > limit).any()):
            worst = sigmas.flatten().argsort(descending=True)[:TOLD].tolist()
            places = [divmod(index, sigmas.shape[1]) for index in worst]
            return Difference(
                f"{name} of {float(sigmas.max()):.3g} sigma between them, over {limit:g}",
                tuple(_told(left, right, *at) for at in places if sigmas[at] > limit),
            )
    return None


def _other_bits(left: View, right: View) -> Tensor:
    """``bool [r, h]``."""
    rows = ~_equal(left.output, right.output).all(dim=-1)
    if left.lse is not None and right.lse is not None:
        rows = rows | ~_equal(left.lse, right.lse)
    return rows


def _equal(one: Tensor, other: Tensor) -> Tensor:
    return (one == other) | (one.isnan() & other.isnan())


def _statistics(left: View, right: View, bounds: Limits) -> Iterator[tuple[str, Tensor, float]]:
    """Each ``[r, h]``, in sigma, with its limit."""
    error = _distance(left.output, right.output)
    sigma = torch.hypot(left.sigma, right.sigma)
    freedom = torch.minimum(left.freedom, right.freedom)
    yield "a row error", row_error(error, sigma, freedom, bounds.row), bounds.row
    yield "an element error", _ratio(error, sigma).amax(dim=-1), bounds.element
    if left.lse is not None and right.lse is not None:
        sigma_lse = torch.hypot(left.sigma_lse, right.sigma_lse)
        yield "an LSE error", _ratio(_distance(left.lse, right.lse), sigma_lse), bounds.lse


def _distance(one: Tensor, other: Tensor) -> Tensor:
    """Infinite where one of them is not finite and the other is not the same."""
    distance = (one - other).abs().nan_to_num(torch.inf, torch.inf, torch.inf)
    return torch.where(one == other, 0.0, distance)


def _ratio(error: Tensor, sigma: Tensor) -> Tensor:
    return torch.where(error == 0, 0.0, error / sigma)


def _told(left: View, right: View, row: int, head: int) -> str:
    """One row, in words: the element that differs most, and the LSE."""
    dim = int(_distance(left.output[row, head], right.output[row, head]).argmax())
    one, other = float(left.output[row, head, dim]), float(right.output[row, head, dim])
    words = f"{left.names[row]}, head {head}, dim {dim}: {one:.6g} and {other:.6g}"
    if left.lse is None or right.lse is None:
        return words
    return f"{words}; LSE {float(left.lse[row, head]):.6g} and {float(right.lse[row, head]):.6g}"
