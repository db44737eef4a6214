"""Errors that are known, but for whether a correct kernel makes them.

Keys and values times their scales may be rounded to the type that is multiplied; scores that are
stored are rounded where they stand; operands of TF32 may be cut off instead of rounded. All of that
can be done to the exact numbers. Where the data are regular (repeated keys, few codes) such errors
do not average out, and a random model would call them faults.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvassay.harness.attention.open_softmax import OpenSoftmax
from kvassay.harness.attention.precision import Precision

F64 = torch.float64
CUT = 1.44
"""Mean error in u of a product of two operands that were cut off: twice 0.72."""


@dataclass(frozen=True)
class Known:
    """One source of error, in the ways in which a kernel may make it."""

    outputs: tuple[Tensor, ...]
    """``[h, r, head_dim_v]`` each."""
    lses: tuple[Tensor, ...] = ()
    """``[h, r]`` each."""

    @property
    def variance(self) -> Tensor:
        """Square of the largest, element by element."""
        return torch.stack([output**2 for output in self.outputs]).amax(dim=0)

    @property
    def variance_lse(self) -> Tensor | float:
        """The same of the LSE."""
        return torch.stack([lse**2 for lse in self.lses]).amax(dim=0) if self.lses else 0.0


def known_errors(case: OpenSoftmax, at: Precision, dtype: torch.dtype) -> tuple[Known, ...]:
    """All sources that there are for a sequence and a class."""
    value = _rounding(case.value, dtype)
    key = case.scale * (case.query @ _rounding(case.key, dtype).mT)
    found = []
    if value.any():
        found.append(Known((case.weights @ value,)))
    if key.any():
        found.append(_from_logits(case, [_logits(case, case.raw + key)]))
    if at.truncation:
        cut = CUT * at.truncation
        found.append(Known((cut * case.output,)))
        found.append(_from_logits(case, [_logits(case, (1 - cut) * case.raw)]))
    if at.scores:
        stored = _eager(case, dtype) if at.scores > 1 else _stored_once(case, dtype)
        found.append(_from_logits(case, stored))
    return tuple(found)


def _rounding(values: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added when values are rounded to a type; 0 where they do not fit."""
    error = values.to(dtype).to(F64) - values
    return torch.where(error.isfinite(), error, 0.0)


def _rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values + _rounding(values, dtype)


def _bias(case: OpenSoftmax) -> Tensor:
    """``[h, r, n]``: what was added to the capped logits."""
    return case.logits - _capped(case, case.raw)


def _capped(case: OpenSoftmax, raw: Tensor) -> Tensor:
    return raw if case.softcap is None else case.softcap * torch.tanh(raw / case.softcap)


def _logits(case: OpenSoftmax, raw: Tensor) -> Tensor:
    """The logits that other products come to."""
    return _capped(case, raw) + _bias(case)


def _products(case: OpenSoftmax, dtype: torch.dtype) -> list[Tensor]:
    """Scaled logits if the products are stored, those with the keys or with their codes."""
    units = (torch.as_tensor(case.scale, dtype=F64), case.unit)
    return [torch.where(unit == 0, 0.0, _rounded(case.raw / unit, dtype) * unit) for unit in units]


def _stored_once(case: OpenSoftmax, dtype: torch.dtype) -> list[Tensor]:
    """Logits if scores are rounded as products, after the scale, or at the end."""
    stored = [*_products(case, dtype), _rounded(case.raw, dtype)]
    return [*(_logits(case, raw) for raw in stored), _rounded(case.logits, dtype)]


def _eager(case: OpenSoftmax, dtype: torch.dtype) -> list[Tensor]:
    """Logits if every operation on the scores rounds them."""
    return [_eager_from(case, products, dtype) for products in _products(case, dtype)]


def _eager_from(case: OpenSoftmax, products: Tensor, dtype: torch.dtype) -> Tensor:
    logits = _rounded(products, dtype)
    if case.softcap is not None:
        bounded = _rounded(torch.tanh(_rounded(logits / case.softcap, dtype)), dtype)
        logits = _rounded(case.softcap * bounded, dtype)
    if bool((case.bias > 0).any()):
        logits = _rounded(logits + _rounded(_bias(case), dtype), dtype)
    return logits


def _from_logits(case: OpenSoftmax, alternatives: list[Tensor]) -> Known:
    """The errors of other logits."""
    changed = [_softmax(case, logits) for logits in alternatives]
    outputs = tuple(output - case.output for output, _ in changed)
    return Known(outputs, tuple(lse for _, lse in changed))


def _softmax(case: OpenSoftmax, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Output, and change of the LSE; that of an empty row is 0."""
    logits = torch.where(case.visible, logits, -torch.inf)
    lse = torch.logsumexp(logits, dim=-1)
    if case.sink is not None:
        lse = torch.logaddexp(lse, case.sink)
    empty = lse.isneginf()
    shift = torch.where(empty, 0.0, lse)
    return torch.exp(logits - shift[..., None]) @ case.value, torch.where(
        empty, 0.0, lse - case.lse
    )
