"""What the error model knows of one sequence: its attention, opened up, KV heads side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from kvassay.harness.contract import AttentionBatch
from kvassay.reference.attention import Sequence, slots_of, weights_of

F64 = torch.float64
FLATTEST = 300.0
"""Beyond this the soft cap is flat; cosh still fits a float64."""


@dataclass(frozen=True)
class OpenSoftmax:
    """One sequence: h KV heads, each with r rows (query heads x tokens) and n keys; float64."""

    tokens: slice
    """Its rows in the batch."""
    query: Tensor
    """``[h, r, head_dim]``; row ``g * num_tokens + t`` is token t of the g-th query head."""
    key: Tensor
    """``[h, n, head_dim]``, scaled."""
    value: Tensor
    """``[h, n, head_dim_v]``, scaled."""
    fold: Tensor
    """``[h, 1, n]``: at most 1: the scale of a value per token, which a kernel may apply to P."""
    unit: Tensor
    """``[h, 1, n]``: `scale` times the factor of the stored key."""
    visible: Tensor
    """``bool [r, n]``."""
    raw: Tensor
    """``[h, r, n]``: ``scale q.k``; 0 where not visible."""
    steepness: Tensor
    """``[h, r, n]``: derivative of the soft cap at `raw`; a single 1 where there is none."""
    logits: Tensor
    """``[h, r, n]``: the row's maximum where not visible."""
    weights: Tensor
    """``[h, r, n]``: probabilities; 0 where not visible."""
    bias: Tensor
    """``[h, r, 1]``: bound of the ALiBi bias, wherever a kernel counts it from."""
    maximum: Tensor
    """``[h, r]``: of the logits and the sink; 0 for an empty row."""
    lse: Tensor
    """``[h, r]``."""
    sink: Tensor | None
    """``[h, r]``."""
    output: Tensor
    """``[h, r, head_dim_v]``."""
    scale: float
    softcap: float | None

    @property
    def num_keys(self) -> int:
        """n."""
        return self.weights.shape[2]

    @cached_property
    def below(self) -> Tensor:
        """``[h, r, n]``: the row's maximum less the logits."""
        return self.maximum[..., None] - self.logits

    @cached_property
    def finite_lse(self) -> Tensor:
        """``[h, r]``: 0 for an empty row, whose weights are all 0."""
        return torch.where(self.lse.isneginf(), 0.0, self.lse)

    @cached_property
    def value_squares(self) -> Tensor:
        """``[h, n, head_dim_v]``."""
        return self.value.square()

    @cached_property
    def output_squares(self) -> Tensor:
        """``[h, r, head_dim_v]``."""
        return self.output.square()

    @cached_property
    def squares(self) -> Tensor:
        """``[h, r, head_dim_v]``: ``sum_j p_j^2 v_j^2``."""
        return self.weights.square() @ self.value_squares

    @cached_property
    def products(self) -> Tensor:
        """``[h, r, n]``: sum of the squares of the products in a logit, as they act on it."""
        inner = self.query.square() @ self.key.square().mT
        return self.scale**2 * inner * self.steepness.square()

    def rows(self, per_row: Tensor) -> Tensor:
        """``[h, r, ...]`` as ``[tokens, query heads, ...]``, its place in a batch's result."""
        num_tokens = self.tokens.stop - self.tokens.start
        by_head = per_row.reshape(-1, num_tokens, *per_row.shape[2:])
        return by_head.transpose(0, 1)


def open_softmax(batch: AttentionBatch, sequence: Sequence) -> OpenSoftmax:
    """The attention of a sequence; one without keys gets one that no row sees."""
    if sequence.key.shape[0] == 0:
        sequence = _with_unseen_key(sequence)
    weights, lse = weights_of(sequence)
    num_heads = sequence.key.shape[1]

    def by_kv_head(per_q_head: Tensor) -> Tensor:
        """``[query heads, tokens, ...]`` to ``[h, r, ...]``."""
        return per_q_head.reshape(num_heads, -1, *per_q_head.shape[2:])

    query = by_kv_head(sequence.query.transpose(0, 1))
    key, value = sequence.key.transpose(0, 1), sequence.value.transpose(0, 1)
    scale = query.shape[2] ** -0.5 if batch.scale is None else float(batch.scale)
    visible = sequence.visible.repeat(sequence.group, 1)
    logits, weights = by_kv_head(sequence.logits), by_kv_head(weights)
    sink = None
    if sequence.sinks is not None:
        sink = by_kv_head(sequence.sinks[:, None].expand(-1, len(sequence.visible)))
    maximum = logits.amax(dim=2) if sink is None else torch.maximum(logits.amax(dim=2), sink)
    maximum = torch.where(maximum.isneginf(), 0.0, maximum)
    raw = torch.where(visible, scale * (query @ key.mT), 0.0)
    return OpenSoftmax(
        tokens=sequence.rows,
        query=query,
        key=key,
        value=value,
        fold=_fold(batch, sequence),
        unit=scale * _factors(batch, sequence, batch.k_scale),
        visible=visible,
        raw=raw,
        steepness=_steepness(raw, batch.softcap),
        logits=torch.where(visible, logits, maximum[..., None]),
        weights=weights,
        bias=by_kv_head(_bias(batch, sequence)),
        maximum=maximum,
        lse=by_kv_head(lse),
        sink=sink,
        output=weights @ value,
        scale=scale,
        softcap=batch.softcap,
    )


def _with_unseen_key(sequence: Sequence) -> Sequence:
    return replace(
        sequence,
        key=pad(sequence.key, (0, 0, 0, 0, 0, 1)),
        value=pad(sequence.value, (0, 0, 0, 0, 0, 1)),
        visible=pad(sequence.visible, (0, 1)),
        logits=pad(sequence.logits, (0, 1), value=-torch.inf),
    )


def _bias(batch: AttentionBatch, sequence: Sequence) -> Tensor:
    """``[query heads, tokens, 1]``: wherever one counts from, no key is further than n away."""
    num_tokens, num_keys = sequence.visible.shape
    bound = torch.zeros(sequence.query.shape[1], dtype=F64)
    if batch.alibi_slopes is not None:
        bound = batch.alibi_slopes.cpu().to(F64).abs() * num_keys
    return bound[:, None, None].expand(-1, num_tokens, 1)


def _steepness(raw: Tensor, softcap: float | None) -> Tensor:
    if softcap is None:
        return torch.ones(1, dtype=F64)
    return torch.cosh((raw / softcap).clamp(-FLATTEST, FLATTEST)) ** -2


def _factors(batch: AttentionBatch, sequence: Sequence, scale: Any) -> Tensor:
    """``[h, 1, n]``: what each stored key or value is multiplied by; 1 where not seen."""
    wanted = sequence.visible.any(dim=0)
    factors = torch.ones(len(wanted), sequence.key.shape[1], dtype=F64)
    if scale is not None and wanted.any():
        scale = torch.as_tensor(scale).cpu().to(F64)
        if scale.dim() == 3:
            blocks, slots = slots_of(batch, sequence.index)
            scale = scale[blocks[wanted], slots[wanted]]
        factors[wanted] = scale
    return factors.T[:, None]


def _fold(batch: AttentionBatch, sequence: Sequence) -> Tensor:
    per_token = batch.v_scale is not None and torch.as_tensor(batch.v_scale).dim() == 3
    factors = _factors(batch, sequence, batch.v_scale if per_token else None).abs()
    return torch.where(factors > 0, factors.clamp(max=1.0), 1.0)
