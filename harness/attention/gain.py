"""The gain: the relative error that a whole output has in common, and how well it is known.

A factor that is wrong by half a percent (a scale, a normaliser) is less than one row's rounding,
but all rows have it. The gain is the weighted least-squares factor of the error on the output,

    gain = sum (got - rounded) o / sigma^2  /  sum o^2 / sigma^2

over one KV head, or over all. `rounded` is what the exact output comes to when it is stored, so
that values that all lie just below a representable number are no gain. Its standard error is the
model's: a rounding of a probability is shared by all rows in which it has the same distance from
the row's maximum, that of an output by all outputs of the same size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvassay.harness.attention.open_softmax import OpenSoftmax
from kvassay.harness.attention.precision import HALF_SPACING, NEAREST, SINGLE, Precision
from kvassay.harness.attention.rounding_error import (
    ALIKE,
    KEYS,
    Error,
    query_deviation,
    sum_in_single,
)

F64 = torch.float64
FARTHEST = 40.0
"""Logits this far below the maximum count as one: their weights are below 1e-17."""
SMEARED = 0.6
"""Standard deviation in spacings beyond which storing is as good as adding uniform noise."""
MOST_KEYS = 2**32
"""Of a sequence."""
LEAST_EXPONENT = {torch.bfloat16: -126, torch.float16: -14}


def weight_of(output: Tensor, variance: Tensor) -> Tensor:
    """``o / sigma^2``, 0 where sigma is."""
    return torch.where(variance > 0, output / variance, 0.0)


def stored(output: Tensor, unstored: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Mean and variance of an output as stored, where `unstored` is its variance before that."""
    if dtype == torch.float32:
        return output, unstored + (NEAREST * SINGLE * output) ** 2
    nearest = output.to(dtype).to(F64)
    _, exponent = torch.frexp(output)
    u = HALF_SPACING[dtype]
    spacing = 2 * u * 2.0 ** (exponent - 1).clamp_min(LEAST_EXPONENT[dtype]).to(F64)
    place, spread = (output - nearest) / spacing, unstored.sqrt() / spacing
    edges = (torch.arange(-2, 2, dtype=F64) + 0.5) - place[..., None]
    below = torch.special.ndtr(edges / spread[..., None].clamp_min(torch.finfo(F64).tiny))
    mean = 2 - below.sum(dim=-1)
    square = 4 - (below * torch.tensor([-3.0, -1.0, 1.0, 3.0], dtype=F64)).sum(dim=-1)
    smeared = (spread > SMEARED) | ~nearest.isfinite()
    mean = torch.where(smeared, output, nearest + spacing * mean)
    variance = (square - (2 - below.sum(dim=-1)) ** 2).clamp_min(0)
    return mean, torch.where(smeared, unstored + spacing**2 / 12, spacing**2 * variance)


class SharedByKey:
    """Effects of roundings that rows have in common at one key only.

    A product of a probability and the scale of its value is rounded otherwise at each key, however
    equal the probabilities are: two that cancel by themselves need not do so.
    """

    def __init__(self, num_kv_heads: int) -> None:
        self._parts: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(num_kv_heads)]

    def add(self, bins: Tensor, effects: Tensor) -> None:
        """``[num_kv_heads, rows, keys]``: what is rounded alike at a key, and its effects."""
        names = bins * MOST_KEYS + torch.arange(bins.shape[2])
        for parts, own, amounts in zip(self._parts, names, effects, strict=True):
            parts.append(_summed(own.flatten(), amounts.flatten()))

    def variance(self) -> Tensor:
        """``[num_kv_heads + 1]``: each head's, then of all: scales of heads differ."""
        return _with_all(torch.stack([self._of_head(parts) for parts in self._parts]))

    def _of_head(self, parts: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Sequences are added at equal positions: they may share a prefix."""
        if not parts:
            return torch.zeros((), dtype=F64)
        names, amounts = (torch.cat(each) for each in zip(*parts, strict=True))
        return _summed(names, amounts)[1].square().sum()


class SharedByQuery:
    """Effects of roundings of the query, which all elements of one magnitude have in common.

    Whatever row, head and dimension they are in: what is aimed at a key often has equal elements.
    """

    def __init__(self, num_kv_heads: int) -> None:
        self._num_kv_heads = num_kv_heads
        self._parts: list[tuple[Tensor, Tensor]] = []

    def add(self, query: Tensor, effects: Tensor) -> None:
        """``[num_kv_heads, rows, head_dim]``: elements, and the effect of a rounding of each."""
        sizes = query.abs().flatten(1)
        for head, (own, amounts) in enumerate(zip(sizes, effects.flatten(1), strict=True)):
            names, sums = _summed(own, amounts)
            per_head = torch.zeros(len(names), self._num_kv_heads, dtype=F64)
            per_head[:, head] = sums
            self._parts.append((names, per_head))

    def variance(self) -> Tensor:
        """``[num_kv_heads + 1]``: each head's, then of all."""
        if not self._parts:
            return torch.zeros(self._num_kv_heads + 1, dtype=F64)
        names, amounts = (torch.cat(each) for each in zip(*self._parts, strict=True))
        found, inverse = torch.unique(names, return_inverse=True)
        sums = torch.zeros(len(found), self._num_kv_heads, dtype=F64)
        return _with_all(sums.index_add_(0, inverse, amounts).T).square().sum(dim=1)


def _summed(names: Tensor, amounts: Tensor) -> tuple[Tensor, Tensor]:
    """Names without repetition, and the sum of the amounts of each."""
    found, inverse = torch.unique(names, return_inverse=True)
    return found, torch.zeros(len(found), dtype=F64).index_add_(0, inverse, amounts)


@dataclass
class Gain:
    """Collects, sequence by sequence, what the standard error of the gain is made of."""

    num_kv_heads: int
    at: Precision
    alike: Tensor = field(init=False)
    """``[2, num_kv_heads, bins]``: effect of each rounding of a probability, relative to the
    row's maximum and to its sum."""
    independent: Tensor = field(init=False)
    """``[num_kv_heads]``: variance from what rows do not share."""
    sums: Tensor = field(init=False)
    """``[num_kv_heads]``: effect of float32 sums, which may be the same in all rows."""
    known: Tensor = field(init=False)
    """``[num_kv_heads]``: sum of the magnitudes that known errors have."""
    folded: list[SharedByKey] = field(init=False)
    """The same as `alike` where a value's scale per token is applied to its probability first."""
    query: SharedByQuery = field(init=False)
    """From roundings of the query."""

    def __post_init__(self) -> None:
        u = self.at.probability
        bins = math.ceil(FARTHEST / (ALIKE * u)) if u else 1
        self.alike = torch.zeros(2, self.num_kv_heads, bins, dtype=F64)
        self.independent = torch.zeros(self.num_kv_heads, dtype=F64)
        self.sums = torch.zeros(self.num_kv_heads, dtype=F64)
        self.known = torch.zeros(self.num_kv_heads, dtype=F64)
        self.folded = [SharedByKey(self.num_kv_heads) for _ in range(2)]
        self.query = SharedByQuery(self.num_kv_heads)

    def add(self, case: OpenSoftmax, error: Error) -> None:
        """One sequence."""
        weight = weight_of(case.output, error.stored)
        effect = weight @ case.value.mT
        whole = (weight * case.output).sum(dim=-1)
        if self.at.probability:
            self._add_probabilities(case, effect)
        self._add_logits(case, error, effect - whole[..., None])
        if self.at.value:
            shared = NEAREST * self.at.value * (case.weights.mT @ weight) * case.value
            self.independent += shared.square().sum(dim=(1, 2))
        self.sums += (sum_in_single(case, error.runs, KEYS).sqrt() * whole).sum(dim=-1)
        for known in error.known:
            gains = [(weight * output).sum(dim=(1, 2)).abs() for output in known.outputs]
            self.known += torch.stack(gains).amax(dim=0)

    def _add_probabilities(self, case: OpenSoftmax, effect: Tensor) -> None:
        effects = (NEAREST * self.at.probability * case.weights * effect).flatten(1)
        last = self.alike.shape[2] - 1
        tops = (case.maximum, case.finite_lse)
        for sums, folded, top in zip(self.alike, self.folded, tops, strict=True):
            below = (top[..., None] - case.logits) / (ALIKE * self.at.probability)
            bins = below.clamp(0, last).long()
            sums.scatter_add_(1, bins.flatten(1), effects)
            if (case.fold != 1).any():
                folded.add(bins, effects.view_as(bins))
        self.alike[0, :, 0] = 0.0  # the maximum's own weight is 1 and needs no rounding

    def _add_logits(self, case: OpenSoftmax, error: Error, effect: Tensor) -> None:
        """`effect` is that of a relative change of each weight, the others making room."""
        amount = error.runs.totals(error.weight_deviation * effect)
        self.independent += error.runs.by_row(amount.square()).sum(dim=-1)
        if self.at.query:
            shared = (case.weights * case.steepness * effect) @ case.key
            self.query.add(case.query, query_deviation(case, self.at) * shared)

    def standard_error(
        self, output: Tensor, variance: Tensor, stored_variance: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Standard error, and gain of the known errors: of every KV head, then of all.

        Of a batch's output, its variance, and the variance that storing it leaves.
        """
        weight = weight_of(output, variance)
        under = _per_head((weight * output).sum(dim=(0, 2)), self.num_kv_heads)
        storing = self._storing(output, weight.abs() * stored_variance.sqrt())
        alike = _with_all(self.alike.transpose(0, 1)).square().sum(dim=2).amax(dim=1)
        alike = torch.maximum(alike, torch.stack([each.variance() for each in self.folded]).amax(0))
        independent = _with_all(self.independent) + self.query.variance()
        deviation = (alike + independent + _with_all(self.sums).square() + storing).sqrt()
        scale = torch.where(under > 0, 1 / under, 0.0)
        return deviation * scale, _with_all(self.known) * scale

    def _storing(self, output: Tensor, effect: Tensor) -> Tensor:
        """Variance from storing the output, per KV head and of all; equals are rounded alike."""
        size = output.abs().clamp_min(torch.finfo(F64).tiny).log()
        bins = torch.floor(size / (ALIKE * self.at.storage)).long()
        names, inverse = torch.unique(bins.flatten(), return_inverse=True)
        group = output.shape[1] // self.num_kv_heads
        heads = torch.arange(output.shape[1]) // group
        places = inverse.reshape(output.shape) + heads[:, None] * len(names)
        sums = torch.zeros(self.num_kv_heads * len(names), dtype=F64)
        sums.index_add_(0, places.flatten(), effect.flatten())
        return _with_all(sums.reshape(self.num_kv_heads, -1)).square().sum(dim=1)


def _with_all(per_head: Tensor) -> Tensor:
    """Values of each KV head, then their sum."""
    return torch.cat([per_head, per_head.sum(dim=0, keepdim=True)])


def _per_head(per_q_head: Tensor, num_kv_heads: int) -> Tensor:
    """Sums over the query heads of each KV head, then over all."""
    return _with_all(per_q_head.reshape(num_kv_heads, -1).sum(dim=1))


def gain_of(
    error: Tensor, output: Tensor, variance: Tensor, rows: Tensor, num_kv_heads: int
) -> tuple[Tensor, Tensor]:
    """The gain of every KV head, then of all, over some rows; and their share of the weight.

    `rows` is ``bool [num_tokens, num_q_heads]``. The gain is 0 where nothing has a weight.
    """
    weight = weight_of(output, variance)
    own = torch.where(rows[..., None], weight, 0.0)
    over = _per_head((own * error).sum(dim=(0, 2)), num_kv_heads)
    under = _per_head((own * output).sum(dim=(0, 2)), num_kv_heads)
    whole = _per_head((weight * output).sum(dim=(0, 2)), num_kv_heads)
    zero = torch.zeros_like(over)
    return torch.where(under > 0, over / under, zero), torch.where(whole > 0, under / whole, zero)
