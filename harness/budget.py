"""Whether a kernel's result lies within the rounding error that its class may make.

Errors of rows, elements and LSE are divided by their modelled standard deviation (see
`harness.attention.rounding_error`), so that one set of limits holds for any shape, length and data;
no other tolerance exists. A fourth number, the gain (see `harness.attention.gain`), shows a common
factor that is less than the rounding of one row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvassay.harness.attention.gain import Gain, gain_of, stored
from kvassay.harness.attention.open_softmax import open_softmax
from kvassay.harness.attention.precision import (
    HALF_SPACING,
    TF32,
    in_effect,
    precision,
    require_model,
)
from kvassay.harness.attention.rounding_error import error_of
from kvassay.harness.contract import AttentionBatch, AttentionResult, EmptyRow, Rounding
from kvassay.reference.attention import Sequence, check, sequences

F64 = torch.float64
SURE = 6.0
"""Standard deviations of a normal error that no correct kernel is supposed to reach."""
MARGIN = 1.25
"""By how much the model may be short on a row of few degrees of freedom."""


@dataclass(frozen=True)
class Expected:
    """The exact result of a batch, and how far a correct kernel may be from it."""

    output: Tensor
    """``float64 [num_tokens, num_q_heads, head_dim_v]``."""
    lse: Tensor
    """``float64 [num_tokens, num_q_heads]``."""
    sigma: Tensor
    """Modelled standard deviation of the error of `output`."""
    sigma_lse: Tensor
    """The same of `lse`."""
    empty: Tensor
    """``bool [num_tokens]``: the row sees no key."""
    dtype: torch.dtype
    """Of the query, and so of the output."""
    rounding: Rounding
    """Class in effect (see `harness.attention.precision`)."""
    num_kv_heads: int
    freedom: Tensor
    """``[num_tokens, num_q_heads]``: degrees of freedom of a row's error."""
    stored: Tensor
    """``[num_tokens, num_q_heads, head_dim_v]``: mean of the output as a kernel stores it."""
    gain_error: Tensor
    """``[num_kv_heads + 1]``: standard error of the gain of each KV head, then of all."""
    gain_known: Tensor
    """``[num_kv_heads + 1]``: gain of errors that a correct kernel may make or not."""


@dataclass(frozen=True)
class Limits:
    """What the largest value of each statistic may be."""

    row: float
    """Root mean square of a row's error over that of its sigma."""
    element: float
    """Error over sigma."""
    lse: float
    """Error of the LSE over its sigma."""
    gain: float
    """Relative error common to the whole output, or to one KV head."""


def limits(rounding: Rounding, dtype: torch.dtype) -> Limits:
    """By class and type of the query; calibrated in `results/calibration.md`.

    Raises `ValueError` for a type that no query may have, and for a class that is not modelled.
    """
    require_model(rounding)
    u = HALF_SPACING.get(dtype)
    if u is None:
        raise ValueError(f"query: expected one of {[*map(str, HALF_SPACING)]}, got {dtype}")
    if dtype == torch.float32 and rounding is Rounding.TF32:
        return Limits(row=4.0, element=8.0, lse=8.0, gain=2 * TF32)
    if dtype == torch.float32:
        return Limits(row=6.0, element=12.0, lse=8.0, gain=8 * u)
    shared = rounding in (Rounding.S, Rounding.EAGER, Rounding.Q_PRE)
    return Limits(row=4.0 if shared else 2.5, element=8.0, lse=8.0, gain=u / 4)


@dataclass(frozen=True)
class Judgement:
    """The largest values met, and the verdict.

    `row` and `gain` are scaled so that they exceed their limit where they exceed what is allowed: a
    row of few degrees of freedom, and a gain that its own standard error hides, may be larger.
    """

    row: float
    element: float
    lse: float | None
    """None where no LSE is claimed."""
    gain: float
    limits: Limits
    problem: str | None
    """None: accepted. Else one sentence: which statistic, its value, the limit, and where."""
    wrong_rows: Tensor
    """``bool [num_tokens, num_q_heads]``: rows over a limit."""


def expect(batch: AttentionBatch, rounding: Rounding = Rounding.P) -> Expected:
    """Oracle and model for a batch.

    Raises `ValueError` for a batch that is none, for a class that is not modelled, and where the
    exact result is not finite: there is nothing to compare then.
    """
    limits(rounding, batch.query.dtype)
    check(batch)
    collected = _Collected(batch, in_effect(rounding, batch.query.dtype))
    for sequence in sequences(batch):
        collected.add(batch, sequence)
    expected = collected.expected()
    for name in ("output", "sigma", "sigma_lse", "gain_error", "gain_known"):
        if not getattr(expected, name).isfinite().all():
            raise ValueError(f"batch: expected values with a finite result, got {name} not finite")
    return expected


class _Collected:
    """What the sequences of a batch come to."""

    def __init__(self, batch: AttentionBatch, rounding: Rounding) -> None:
        self.dtype, self.rounding = batch.query.dtype, rounding
        self.at = precision(rounding, self.dtype)
        self.gain = Gain(batch.key_cache.shape[2], self.at)
        rows = batch.query.shape[:2]
        self.output = torch.zeros(*rows, batch.value_cache.shape[3], dtype=F64)
        self.unstored, self.stored = torch.zeros_like(self.output), torch.zeros_like(self.output)
        self.lse = torch.full(rows, -torch.inf, dtype=F64)
        self.lse_variance, self.freedom = torch.zeros_like(self.lse), torch.ones_like(self.lse)
        self.empty = torch.zeros(rows[0], dtype=torch.bool)

    def add(self, batch: AttentionBatch, sequence: Sequence) -> None:
        case, rows = open_softmax(batch, sequence), sequence.rows
        error = error_of(case, self.at, self.dtype)
        self.output[rows], self.lse[rows] = case.rows(case.output), case.rows(case.lse)
        self.unstored[rows] = case.rows(error.unstored)
        self.stored[rows] = case.rows(error.stored)
        self.lse_variance[rows] = case.rows(error.lse)
        self.freedom[rows] = case.rows(error.freedom)
        self.empty[rows] = ~sequence.visible.any(dim=1)
        self.gain.add(case, error)

    def expected(self) -> Expected:
        mean, left = stored(self.output, self.unstored, self.dtype)
        gain_error, gain_known = self.gain.standard_error(self.output, self.stored, left)
        return Expected(
            output=self.output,
            lse=self.lse,
            sigma=self.stored.sqrt(),
            sigma_lse=self.lse_variance.sqrt(),
            empty=self.empty,
            dtype=self.dtype,
            rounding=self.rounding,
            num_kv_heads=self.gain.num_kv_heads,
            freedom=self.freedom,
            stored=mean,
            gain_error=gain_error,
            gain_known=gain_known,
        )


def judge(
    result: AttentionResult,
    expected: Expected,
    *,
    empty_row: EmptyRow = EmptyRow.ZERO,
    lse: bool,
) -> Judgement:
    """Accept or reject a result; `lse` says whether an LSE is claimed."""
    bounds = limits(expected.rounding, expected.dtype)
    problem = _misshapen(result, expected, lse=lse)
    if problem is not None:
        return _all_wrong(problem, expected, bounds, lse=lse)
    output = result.output.detach().cpu().to(F64)
    got_lse = result.lse.detach().cpu().to(F64) if lse else None
    error = _error(output, expected.output, expected)
    row = row_error(error, expected.sigma, expected.freedom, bounds.row)
    element = _ratio(error.abs(), expected.sigma)
    found = [
        _wrong_empty(output, got_lse, expected, empty_row),
        _not_finite(error),
        _over("row error", row, bounds.row),
        _over("element error", element, bounds.element),
    ]
    gain = _gain(output, expected, bounds, ~_rows(found, expected))
    off = _lse(got_lse, expected, empty_row)
    found += [_over_gain(gain, expected, bounds.gain), _over("LSE error", off, bounds.lse)]
    return Judgement(
        row=_largest(row),
        element=_largest(element),
        lse=_largest(off) if lse else None,
        gain=_largest(gain),
        limits=bounds,
        problem=next((finding.problem for finding in found if finding is not None), None),
        wrong_rows=_rows(found, expected),
    )


@dataclass(frozen=True)
class _Finding:
    """One sentence, and the rows that it is about."""

    problem: str
    rows: Tensor


def _rows(findings: list[_Finding | None], expected: Expected) -> Tensor:
    """``bool [num_tokens, num_q_heads]``: what any finding is about."""
    rows = torch.zeros(expected.lse.shape, dtype=torch.bool)
    for finding in findings:
        if finding is not None:
            rows |= finding.rows
    return rows


def _misshapen(result: AttentionResult, expected: Expected, *, lse: bool) -> str | None:
    """What is wrong with shapes and types, if anything."""
    shape = tuple(expected.output.shape)
    wanted = [("output", result.output, shape, expected.dtype)]
    if lse and result.lse is None:
        return "an LSE is claimed, and none was returned"
    if lse:
        wanted.append(("LSE", result.lse, shape[:2], torch.float32))
    for name, got, size, dtype in wanted:
        if tuple(got.shape) != size:
            return f"the {name} has shape {tuple(got.shape)}, expected {size}"
        if got.dtype != dtype:
            return f"the {name} is of {got.dtype}, expected {dtype}"
    return None


def _all_wrong(problem: str, expected: Expected, bounds: Limits, *, lse: bool) -> Judgement:
    wrong = torch.ones(expected.lse.shape, dtype=torch.bool)
    worst = torch.inf
    return Judgement(worst, worst, worst if lse else None, worst, bounds, problem, wrong)


def _error(output: Tensor, exact: Tensor, expected: Expected) -> Tensor:
    """Got minus exact; 0 in empty rows, infinite where it is not finite.

    What overflows the type when it is stored may be an infinity.
    """
    largest = torch.finfo(expected.dtype).max
    overflows = exact.abs() * (1 + HALF_SPACING[expected.dtype]) > largest
    got = torch.where(overflows & (output == exact.sign() * torch.inf), exact, output)
    got = torch.where(overflows & (got.abs() == largest), exact, got)
    error = (got - exact).nan_to_num(torch.inf, torch.inf, -torch.inf)
    return torch.where(expected.empty[:, None, None], 0.0, error)


def row_error(error: Tensor, sigma: Tensor, freedom: Tensor, limit: float) -> Tensor:
    """Error of every row in sigma, less where the row has so few degrees of freedom."""
    ratio = _ratio(error.square().mean(dim=-1).sqrt(), sigma.square().mean(dim=-1).sqrt())
    return ratio / (MARGIN * _quantile(freedom) / limit).clamp_min(1.0)


def _quantile(freedom: Tensor) -> Tensor:
    """What `SURE` is for the root mean square of several normal errors (Wilson and Hilferty)."""
    part = 2 / (9 * freedom)
    return (1 - part + SURE * part.sqrt()) ** 1.5


def _gain(output: Tensor, expected: Expected, bounds: Limits, rows: Tensor) -> Tensor:
    """Magnitude of the gain of every KV head and of all, less where it is known so badly.

    Over the rows that are right by themselves: a wrong one would be a gain of all.
    """
    error = torch.where(rows[..., None], _error(output, expected.stored, expected), 0.0)
    variance = expected.sigma.square()
    gain, share = gain_of(error, expected.output, variance, rows, expected.num_kv_heads)
    unknown = (SURE * expected.gain_error / bounds.gain / share).clamp_min(1.0)
    allowed = unknown + expected.gain_known / bounds.gain / share
    return torch.where(share > 0, gain.abs() / allowed, 0.0)


def _lse(got: Tensor | None, expected: Expected, empty_row: EmptyRow) -> Tensor:
    """Error of every LSE in sigma; 0 where none is claimed, and where the row is empty."""
    if got is None:
        return torch.zeros_like(expected.lse)
    error = (got - expected.lse).abs().nan_to_num(torch.inf, torch.inf)
    skipped = expected.lse.isneginf()
    if empty_row is EmptyRow.NAN:
        skipped = skipped | (expected.empty[:, None] & got.isnan())
    if empty_row is EmptyRow.UNTOUCHED:
        skipped = skipped | expected.empty[:, None]
    return torch.where(skipped, 0.0, _ratio(error, expected.sigma_lse))


def _wrong_empty(
    output: Tensor, lse: Tensor | None, expected: Expected, empty_row: EmptyRow
) -> _Finding | None:
    """Rows that see no key, and are not as declared; what was there before is not known here."""
    if empty_row is EmptyRow.UNTOUCHED:
        return None
    unheld = expected.lse.isneginf()
    right = (output == 0).all(dim=-1)
    if empty_row is EmptyRow.NAN:
        undefined = output.isnan().all(dim=-1)
        right = undefined | (right & ~unheld)
    if lse is not None:
        allowed = lse.isneginf() | (lse.isnan() & (empty_row is EmptyRow.NAN))
        right = right & (allowed | ~unheld)
    wrong = expected.empty[:, None] & ~right
    if not wrong.any():
        return None
    return _Finding(f"the row of {_at(wrong)} sees no key and is not {empty_row.value}", wrong)


def _not_finite(error: Tensor) -> _Finding | None:
    wrong = ~error.isfinite()
    if not wrong.any():
        return None
    return _Finding(f"the output is not finite at {_at(wrong)}", wrong.any(dim=-1))


def _over(name: str, values: Tensor, limit: float) -> _Finding | None:
    over = values > limit
    if not over.any():
        return None
    problem = f"{name} of {_largest(values):.3g} sigma, over {limit:g}, at {_at(values)}"
    return _Finding(problem, over if over.dim() == 2 else over.any(dim=-1))


def _over_gain(gain: Tensor, expected: Expected, limit: float) -> _Finding | None:
    """About the KV heads that are over, or about all where only all together are."""
    own, together = gain[:-1], gain[-1]
    if not (gain > limit).any():
        return None
    over, where = own > limit, f"KV head {int(own.argmax())}"
    if not over.any():
        own, over, where = together, ~over, "all heads together"
    group = expected.lse.shape[1] // expected.num_kv_heads
    rows = over.repeat_interleave(group)[None] & ~expected.empty[:, None]
    return _Finding(f"gain of {_largest(own):.2g}, over {limit:.2g}, in {where}", rows)


def _ratio(error: Tensor, sigma: Tensor) -> Tensor:
    """Error over sigma; 0 / 0 is 0."""
    return torch.where(error == 0, 0.0, error / sigma)


def _largest(values: Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


def _at(values: Tensor) -> str:
    """Where the largest is: token, head and, for elements, dim."""
    place = torch.unravel_index(values.to(F64).argmax(), values.shape)
    names = ("token", "head", "dim")
    return ", ".join(f"{name} {int(index)}" for name, index in zip(names, place, strict=False))
