"""What a wrong result looks like: the twist that it agrees with, or a common factor."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kvassay.harness.attention.compare import Comparison
from kvassay.harness.attention.precision import HALF_SPACING
from kvassay.harness.attention.twist import Twist
from kvassay.harness.attention.twists import TWISTS
from kvassay.harness.budget import Expected
from kvassay.reference.attention import F64, Attended

PATIENCE = 2.0
"""By how much the error model, made for the right reading, may be short on a wrong one."""
CLOSER = 4.0
"""How much nearer than the oracle's an explanation's result has to be."""
LSE_SPACING = 2.0**-23


def likeness(seen: Comparison) -> Twist | None:
    """The simplest twist whose result agrees with the kernel's."""
    right = Attended(seen.expected.output, seen.expected.lse)
    output = f64(seen.result.output)
    lse = None if seen.result.lse is None else f64(seen.result.lse)
    off = distance(output, lse, right, seen)
    near: Twist | None = None
    for twist, attended in _twisted(seen):
        left = distance(output, lse, attended, seen)
        if left * CLOSER > off:
            continue
        if left <= 1:
            return twist
        if left <= PATIENCE and near is None:
            near = twist
    return near


def _twisted(seen: Comparison) -> Iterator[tuple[Twist, Attended]]:
    """The twists that a batch allows, and what they come to."""
    batch = seen.built.batch
    for twist in TWISTS.values():
        if not twist.when(batch):
            continue
        try:
            yield twist, twist.apply(batch)
        except (ValueError, IndexError):
            continue  # such a reading leads out of the table


def distance(output: Tensor, lse: Tensor | None, other: Attended, seen: Comparison) -> float:
    """How far a result is from a reading's, in units of what the budget allows."""
    expected, limits = seen.expected, seen.judgement.limits
    growth = _growth(other, expected)
    spacing = HALF_SPACING[expected.dtype] * other.output.abs()
    sigma = ((growth[..., None] * expected.sigma) ** 2 + spacing**2).mean(dim=-1).sqrt()
    error = _difference(output, other.output).square().mean(dim=-1).sqrt()
    rows = _ratio(error, sigma) / limits.row
    if lse is not None:
        single = LSE_SPACING * (1 + _finite(other.lse).abs())
        sigma_lse = ((growth * expected.sigma_lse) ** 2 + single**2).sqrt()
        rows = rows.maximum(_ratio(_difference(lse, other.lse).abs(), sigma_lse) / limits.lse)
    nothing = expected.empty[:, None] & other.lse.isneginf()
    rows = torch.where(nothing, 0.0, rows)
    return float(rows.max()) if rows.numel() else 0.0


def _growth(other: Attended, expected: Expected) -> Tensor:
    """``[tokens, heads]``: by how much values and logits outgrow the right ones, at least 1."""
    ours = expected.output.square().mean(dim=-1).sqrt()
    theirs = _finite(other.output).square().mean(dim=-1).sqrt()
    values = torch.where(ours > 0, theirs / ours, 1.0)
    logits = (1 + _finite(other.lse).abs()) / (1 + _finite(expected.lse).abs())
    return values.maximum(logits).clamp_min(1.0)


def _difference(got: Tensor, other: Tensor) -> Tensor:
    """Got minus other; 0 where both are the same kind of not finite, infinite where one is."""
    same = (got == other) | (got.isnan() & other.isnan())
    return torch.where(same, 0.0, (got - other).nan_to_num(torch.inf, torch.inf, -torch.inf))


def _ratio(error: Tensor, sigma: Tensor) -> Tensor:
    return torch.where(error == 0, 0.0, error / sigma).nan_to_num(torch.inf, torch.inf)


def _finite(values: Tensor) -> Tensor:
    return values.nan_to_num(0.0, 0.0, 0.0)


def f64(values: Tensor) -> Tensor:
    return values.detach().cpu().to(F64)


def common_factor(output: Tensor, seen: Comparison) -> float | None:
    """By what the whole output is multiplied, if that is all that is wrong with it."""
    expected = seen.expected
    weight = _ratio(expected.output, expected.sigma**2)
    under = float((weight * expected.output).sum())
    if under == 0:
        return None
    factor = float((weight * output).sum()) / under
    if abs(factor - 1) <= seen.judgement.limits.gain:
        return None
    scaled = Attended(expected.output * factor, expected.lse)
    lse = None if seen.result.lse is None else f64(seen.result.lse)
    return factor if distance(output, lse, scaled, seen) <= 1 else None
