"""The rounding error that a correct attention kernel may make, modelled beside the float64 oracle.

Inputs are the stored values, so what quantisation lost is no error. To first order the output
``o = sum_j p_j v_j`` moves by ``sum_j p_j d_j v_j`` where probabilities are rounded (d: relative),
by ``sum_j p_j ds_j (v_j - o)`` where logits are, and by what storing it rounds; the LSE moves by
``sum_j p_j ds_j``. A rounding to nearest is taken as random, with a standard deviation of
``u / sqrt(6)`` relative (that of a value with a log-uniform mantissa; u is the half spacing at a
power of two), independent of others, except that logits within ``u / 4`` of each other err alike.
What a kernel does in float32 adds terms of 2^-24. Errors that are known but for whether a kernel
makes them (see `known_error`) count as one standard deviation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from kvassay.harness.attention.known_error import Known, known_errors
from kvassay.harness.attention.open_softmax import OpenSoftmax
from kvassay.harness.attention.precision import NEAREST, SINGLE, SMALLEST, Precision
from kvassay.harness.attention.ties import CHUNK, Runs, spread_of

F64 = torch.float64
TINY = torch.finfo(F64).tiny
ALIKE = 0.25
"""Logits nearer than this many u are rounded alike."""
NEGLIGIBLE = 2.0**-40
"""Weights whose common rounding cannot matter."""
FAR = 4.0
"""Standard deviations of a logit up to which the effect on its weight is followed."""
KEYS, LEAST_BLOCK, BLOCK = 1, 16, 64
"""Keys that a kernel adds at a time to the output and to the sum of the weights, at the least, and
usually."""
ONE_SIGN = 0.3
"""Error of one rounding of a sum that is repeated with the same sign, in u of the final sum."""
SEGMENTS = 32
"""Parts into which a split is supposed to cut a row at most."""
DWARFED = 64
"""How many times larger a rounding has to be for errors in float32 to need no care."""


@dataclass(frozen=True)
class Error:
    """Of the rows of one sequence: variances, and what the judge must know beyond them."""

    unstored: Tensor
    """``[h, r, head_dim_v]``: variance of the output before it is stored."""
    stored: Tensor
    """``[h, r, head_dim_v]``: variance of the output."""
    lse: Tensor
    """``[h, r]``: variance of the LSE."""
    freedom: Tensor
    """``[h, r]``: degrees of freedom of a row's error, from 1 to head_dim_v."""
    weight_deviation: Tensor
    """``[h, r, n]``: standard deviation of each weight from the error of its logit."""
    known: tuple[Known, ...]
    runs: Runs
    """Logits that are rounded alike."""


def error_of(case: OpenSoftmax, at: Precision, dtype: torch.dtype) -> Error:
    """All terms of the model."""
    width = ALIKE * max(at.probability, SINGLE)
    runs = Runs(case.below, width, case.visible & (case.weights > NEGLIGIBLE))
    moved = _logit_variance(case, at)
    deviation = _weight_deviation(case, moved)
    from_weights = _rounded_weights(case, at, runs, dtype)
    from_logits = _moved_logits(case, at, runs, deviation)
    known = known_errors(case, at, dtype)
    in_single = _in_single(case, at, runs) + _sink_lse(case)[..., None] * case.output_squares
    by_element = sum((error.variance for error in known), _parts(case, at))
    unstored = from_weights + from_logits + in_single + by_element
    rounded = (NEAREST * at.storage) ** 2 * case.output_squares + SMALLEST[dtype] ** 2 / 12
    parts = (from_weights, from_logits, in_single, by_element + rounded)
    return Error(
        unstored=unstored,
        stored=unstored + rounded,
        lse=_lse_variance(case, at, runs, moved, deviation, known),
        freedom=_freedom(case, at, runs, deviation, parts),
        weight_deviation=deviation,
        known=known,
        runs=runs,
    )


# ------------------------------------------------------------------------------------- the logits


def _logit_variance(case: OpenSoftmax, at: Precision) -> Tensor:
    """``[h, r, n]``: of every logit, what is independent from key to key."""
    steep, size = (case.raw * case.steepness).abs(), case.logits.abs()
    chain = steep + size + case.bias + case.below + 1
    variance = SINGLE**2 * (_dot_in_single(case) * case.products + chain.square())
    if case.softcap is not None:
        variance = variance + (2 * SINGLE * case.softcap) ** 2
    if at.key:
        variance = variance + (NEAREST * at.key) ** 2 * case.products
    if at.scores:
        rounded = _rounded_scores(case, at, steep.square(), size.square())
        variance = variance + (NEAREST * at.storage) ** 2 * rounded
    return variance


def _dot_in_single(case: OpenSoftmax) -> float:
    """Variance of a dot product in squares of 2^-24, of the sum of its squared products."""
    return 4 + case.query.shape[2] / 16


def _rounded_scores(case: OpenSoftmax, at: Precision, steep: Tensor, size: Tensor) -> Tensor:
    """Sum of the squares of what is rounded on the way to a logit, as it acts on the logit.

    `steep` and `size` are the squares of the capped product and of the logit.
    """
    if at.scores == 1:
        return torch.maximum(steep, size)
    total = 2 * steep
    if case.softcap is not None:
        total = total + steep + 2 * (size.sqrt() + case.bias).square()
    if bool((case.bias > 0).any()):
        total = total + size + case.bias.square()
    return torch.maximum(total, 2 * torch.maximum(steep, size))


def _weight_deviation(case: OpenSoftmax, moved: Tensor) -> Tensor:
    """``[h, r, n]``: p ds while that is small; at most 1, what any weight can change by."""
    step = (FAR * moved.sqrt()).clamp_min(TINY)
    grown = step + torch.log(-torch.expm1(-step)) - math.log(FAR)
    deviation = torch.exp((case.logits - case.finite_lse[..., None] + grown).clamp_max(0.0))
    return torch.where(case.visible, deviation, 0.0)


def query_deviation(case: OpenSoftmax, at: Precision) -> Tensor:
    """``[h, r, head_dim]``: of each query element, with its sign, times the scale of the logits."""
    return case.scale * NEAREST * at.query * case.query


def query_variance(case: OpenSoftmax, at: Precision) -> Tensor:
    """``[h, r, head_dim]``: the square of that."""
    return query_deviation(case, at).square()


def _from_query(case: OpenSoftmax, at: Precision) -> Tensor:
    """``[h, r, n]``: variance of every logit from the query's roundings."""
    return query_variance(case, at) @ case.key.square().mT * case.steepness.square()


# ------------------------------------------------------------------------------------- the output


def _rounded_weights(case: OpenSoftmax, at: Precision, runs: Runs, dtype: torch.dtype) -> Tensor:
    """P rounded for the product with V, and V where the class rounds it."""
    variance = (NEAREST * at.value) ** 2 * case.squares
    if at.probability == 0:
        return variance
    alike = case.squares + runs.surplus(case.weights, case.value).clamp_min(0)
    variance = variance + (NEAREST * at.probability) ** 2 * alike
    return variance + _small_weights(case, at, runs, SMALLEST[dtype])


def _small_weights(case: OpenSoftmax, at: Precision, runs: Runs, quantum: float) -> Tensor:
    """Weights that are subnormal when they are rounded: an absolute error, relative to the sum.

    They are rounded relative to the maximum, or after normalising in the eager class.
    """
    mass = torch.exp(case.lse - case.maximum)[..., None]
    if at.scores > 1:
        mass = torch.ones_like(mass)
    normal = 2 * quantum / at.probability
    small = (case.visible & (case.weights * mass * case.fold < normal)).to(F64)
    if not small.any():
        return torch.zeros_like(case.output)
    value = case.value / case.fold.mT
    lost = small @ value.square() + runs.surplus(small, value).clamp_min(0)
    return quantum**2 / 12 * torch.where(mass > 0, lost / mass.square(), 0.0)


def _moved_logits(case: OpenSoftmax, at: Precision, runs: Runs, deviation: Tensor) -> Tensor:
    """``sum_j w_j^2 (v_j - o)^2`` and what logits have in common: runs, and a query's roundings."""
    variance = about(case, deviation.square())
    if at.scores or not at.probability:
        variance = variance + runs.surplus(deviation, case.value, case.output).clamp_min(0)
    if at.query:
        apart = about(case, _weight_deviation(case, _from_query(case, at)).square())
        variance = variance + torch.maximum(_shared_query(case, at), apart)
    return variance


def about(case: OpenSoftmax, squares: Tensor) -> Tensor:
    """``sum_j squares_j (v_j - o)^2``: ``[h, r, head_dim_v]``."""
    total = squares.sum(dim=-1, keepdim=True)
    mean, square = squares @ case.value, squares @ case.value_squares
    return (square - 2 * case.output * mean + case.output_squares * total).clamp_min(0)


def _shared_query(case: OpenSoftmax, at: Precision) -> Tensor:
    """A query element is rounded once for all keys: ``sum_d var(q_d) cov(k_d, v)^2``."""
    variances, shares = query_variance(case, at), case.weights * case.steepness
    heads, num_rows, _ = shares.shape
    size = max(CHUNK // max(case.key[0].numel(), 1), 1)
    found = torch.zeros_like(case.output)
    for head in range(heads):
        for start in range(0, num_rows, size):
            rows = slice(start, start + size)
            weighted = shares[head, rows, :, None] * case.key[head]
            centre = weighted.sum(dim=1)[..., None] * case.output[head, rows, None]
            covariance = weighted.mT @ case.value[head] - centre
            by_row = variances[head, rows, None] @ covariance.square()
            found[head, rows] = by_row[:, 0]
    return found


def _parts(case: OpenSoftmax, at: Precision) -> Tensor:
    """Parts of a split stored in the output's type."""
    if not at.partials:
        return torch.zeros_like(case.output)
    return (NEAREST * at.storage) ** 2 * _worst_cut(case, torch.zeros_like(case.output))


def _worst_cut(case: OpenSoftmax, centre: Tensor) -> Tensor:
    """``[h, r, head_dim_v]``: the sum over the parts of ``(sum_j p_j (v_j - centre))^2``.

    The largest over the cuts of the keys into 1, 2, 4, ... equal parts.
    """
    length = -(-case.num_keys // SEGMENTS)
    padding = length * SEGMENTS - case.num_keys
    heads, num_rows, size = case.output.shape
    weights = pad(case.weights, (0, padding)).reshape(heads, num_rows, SEGMENTS, length)
    value = pad(case.value, (0, 0, 0, padding)).reshape(heads, SEGMENTS, length, size)
    parts = torch.einsum("hrsn,hsnd->hrsd", weights, value)
    parts = parts - weights.sum(dim=3)[..., None] * centre[:, :, None]
    worst = parts.square().sum(dim=2)
    while parts.shape[2] > 1:
        parts = parts[:, :, ::2] + parts[:, :, 1::2]
        worst = torch.maximum(worst, parts.square().sum(dim=2))
    return worst


def _in_single(case: OpenSoftmax, at: Precision, runs: Runs) -> Tensor:
    """In float32: sums over the keys, a division, and factors ``exp(x - lse)`` of parts or all."""
    sums = sum_in_single(case, runs, KEYS)[..., None] * (case.squares + case.output_squares)
    factor = SINGLE * (1 + case.finite_lse.abs())
    parts = case.squares
    if at.storage < DWARFED * float(factor.max()):
        parts = _worst_cut(case, case.output)
    return sums + factor.square()[..., None] * (parts + case.output_squares)


def sum_in_single(case: OpenSoftmax, runs: Runs, step: int) -> Tensor:
    """``[h, r]``: relative variance of a float32 sum over the keys that takes `step` at a time.

    Every step rounds once. Equal terms are rounded alike, so that their errors do not average out.
    """
    alike = runs.by_row(runs.totals(case.weights).square())
    repeated = (ONE_SIGN * case.num_keys / BLOCK) ** 2 * alike
    return SINGLE**2 * (4 + case.num_keys / step / 16 + repeated)


# ---------------------------------------------------------------------------------------- the LSE


def _sink_lse(case: OpenSoftmax) -> Tensor:
    """``[h, r]``: variance of the LSE from the sink's logit."""
    if case.sink is None:
        return torch.zeros_like(case.lse)
    chain = 1 + case.sink.abs() + (case.maximum - case.sink)
    share = torch.exp(case.sink - case.lse)
    return torch.where(share > 0, share * SINGLE * chain, 0.0).square()


def _beyond_first_order(case: OpenSoftmax, moved: Tensor) -> Tensor:
    """``[h, r]``: what large errors of the logits add to the LSE."""
    first = case.weights * moved.sqrt()
    return (_weight_deviation(case, moved) - first).clamp_min(0).sum(dim=-1)


def _lse_variance(
    case: OpenSoftmax,
    at: Precision,
    runs: Runs,
    moved: Tensor,
    deviation: Tensor,
    known: tuple[Known, ...],
) -> Tensor:
    """The logits' errors, those of a run added up, and the sum and its logarithm in float32.

    Equal keys have the same error of the dot product, whatever is then done to the logit.
    """
    steps = torch.maximum(case.weights * moved.sqrt(), deviation)
    variance = runs.by_row(runs.totals(steps).square())
    dots = (case.weights * case.products.sqrt()).sum(dim=-1)
    variance = variance + SINGLE**2 * _dot_in_single(case) * dots.square()
    if at.query:
        shared = (case.weights * case.steepness) @ case.key
        variance = variance + (query_variance(case, at) * shared.square()).sum(dim=-1)
        variance = variance + _beyond_first_order(case, _from_query(case, at)).square()
    if case.softcap is not None:
        variance = variance + (SINGLE * case.softcap) ** 2
    for error in known:
        variance = variance + error.variance_lse
    single = SINGLE * (1 + case.finite_lse.abs() + case.maximum.abs())
    sums = sum_in_single(case, runs, LEAST_BLOCK)
    return variance + _sink_lse(case) + single.square() + sums


# ----------------------------------------------------------------------------- degrees of freedom


def _freedom(
    case: OpenSoftmax,
    at: Precision,
    runs: Runs,
    deviation: Tensor,
    parts: tuple[Tensor, Tensor, Tensor, Tensor],
) -> Tensor:
    """Degrees of freedom of a row's error (Satterthwaite), from those of its parts.

    The error of a few keys, or of values that all point one way, has few, however many elements.
    """
    directions = 1 / _directions(case.value)[:, None]
    few = 1 / spread_of(case.weights, runs) + directions
    fewer = 1 / spread_of(deviation, runs) + directions
    size = case.output.abs().clamp_min(TINY).log()
    same = Runs(size - size.amin(dim=-1, keepdim=True), ALIKE * at.storage, case.output != 0)
    inverse = (few, fewer, torch.ones_like(few), 1 / spread_of(case.output.abs(), same))
    sums = [part.sum(dim=-1) for part in parts]
    total = torch.stack(sums).sum(dim=0)
    pairs = zip(sums, inverse, strict=True)
    squares = torch.stack([part.square() * each.clamp_max(1.0) for part, each in pairs]).sum(dim=0)
    freedom = torch.where(squares > 0, total.square() / squares, 1.0)
    return freedom.clamp(1.0, case.value.shape[2])


def _directions(value: Tensor) -> Tensor:
    """``[h]``: how many directions the values of a head effectively span."""
    gram = value.mT @ value
    trace = gram.diagonal(dim1=1, dim2=2).sum(dim=1)
    squares = gram.square().sum(dim=(1, 2))
    return torch.where(squares > 0, trace.square() / squares, 1.0)
