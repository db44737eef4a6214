"""Rows of a result with the rounding error that they may have, as things to calculate with.

What a relation does to a problem it undoes on the rows of the result, or does to those of the other
version. The modelled deviations go through the same operations: errors of different rows are
independent, and a merge is linearised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

F64 = torch.float64


@dataclass(frozen=True)
class View:
    """r rows of h heads; all float64, on the CPU."""

    output: Tensor
    """``[r, h, head_dim_v]``."""
    lse: Tensor | None
    """``[r, h]``; None where none is claimed."""
    sigma: Tensor
    """Standard deviation of the error of `output`; 0 where it is not looked at."""
    sigma_lse: Tensor
    """The same of the LSE."""
    freedom: Tensor
    """``[r, h]``: degrees of freedom of a row's error."""
    names: tuple[str, ...]
    """Which row it is, in words."""

    @classmethod
    def bare(cls, output: Tensor, lse: Tensor | None, names: Sequence[str]) -> View:
        """Rows that are taken as they are, without error."""
        output = output.detach().cpu().to(F64)
        none = torch.zeros(output.shape[:2], dtype=F64)
        held = None if lse is None else lse.detach().cpu().to(F64)
        free = torch.full_like(none, torch.inf)
        return cls(output, held, torch.zeros_like(output), none, free, tuple(names))

    # ------------------------------------------------------------------------------- selections

    def rows(self, which: slice) -> View:
        """Some of the rows."""
        return self._each(lambda tensor: tensor[which], self.names[which])

    def heads(self, order: Sequence[int]) -> View:
        """Heads picked by number."""
        return self._each(lambda tensor: tensor[:, list(order)], self.names)

    def _each(self, pick: Any, names: tuple[str, ...]) -> View:
        lse = None if self.lse is None else pick(self.lse)
        own = (self.output, self.sigma, self.sigma_lse, self.freedom)
        output, sigma, sigma_lse, freedom = (pick(tensor) for tensor in own)
        return View(output, lse, sigma, sigma_lse, freedom, names)

    # ------------------------------------------------------------------------------- arithmetic

    def times(self, factor: float) -> View:
        """The output multiplied."""
        return replace(self, output=self.output * factor, sigma=self.sigma * abs(factor))

    def raised(self, by: float) -> View:
        """Something added to the LSE."""
        return replace(self, lse=None if self.lse is None else self.lse + by)

    def plus(self, other: View) -> View:
        """The sum of two outputs; the LSE is the first one's."""
        return replace(
            self,
            output=self.output + other.output,
            sigma=torch.hypot(self.sigma, other.sigma),
            freedom=torch.minimum(self.freedom, other.freedom),
        )


def joined(views: Sequence[View]) -> View:
    """The rows of all, one after the other; at least one is needed."""
    lses = [view.lse for view in views if view.lse is not None]
    return View(
        torch.cat([view.output for view in views]),
        torch.cat(lses) if len(lses) == len(views) else None,
        torch.cat([view.sigma for view in views]),
        torch.cat([view.sigma_lse for view in views]),
        torch.cat([view.freedom for view in views]),
        tuple(name for view in views for name in view.names),
    )


def merged(parts: Sequence[View]) -> View:
    """The same rows over all keys, from what each part of the keys gave: weights ``exp(lse)``.

    In float64 this is associative, so the order of a tree of merges does not matter.
    """
    lses = torch.stack([_lse(part) for part in parts])
    lse = torch.logsumexp(lses, dim=0)
    weights = torch.exp(lses - torch.where(lse.isneginf(), 0.0, lse))
    output = sum(w[..., None] * p.output for w, p in zip(weights, parts, strict=True))
    assert isinstance(output, Tensor)
    variance, variance_lse = torch.zeros_like(output), torch.zeros_like(lse)
    for weight, part in zip(weights, parts, strict=True):
        moved = (weight * part.sigma_lse)[..., None] * (part.output - output)
        variance += (weight[..., None] * part.sigma) ** 2 + moved**2
        variance_lse += (weight * part.sigma_lse) ** 2
    return replace(
        parts[0],
        output=output,
        lse=lse,
        sigma=variance.sqrt(),
        sigma_lse=variance_lse.sqrt(),
        freedom=torch.stack([part.freedom for part in parts]).amin(dim=0),
    )


def _lse(part: View) -> Tensor:
    assert part.lse is not None, "a merge needs the LSE"
    return part.lse
