"""Attention kernels emulated on the CPU: float32 arithmetic, rounded where a real kernel rounds.

They stand for the ways in which correct kernels differ (block sizes, splits, what is rounded), and
carry the faults that no change of the input can imitate. They exist to calibrate the budget and to
try it; they are no reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from kvassay.harness.attention.precision import in_effect
from kvassay.harness.contract import AttentionBatch, AttentionResult, Rounding
from kvassay.reference.attention import slots_of, visibility

F32 = torch.float32
LOG2_E = math.log2(math.e)


class Fault(StrEnum):
    """What is wrong inside a kernel."""

    MERGE_BASE_2 = "base-2 LSE in the merge"
    DROPPED_SPLIT = "last split dropped"
    ROUNDED_SUM = "accumulator rounded after every block"


@dataclass(frozen=True)
class Strategy:
    """How a kernel goes about it."""

    rounding: Rounding = Rounding.P
    """Class; says what is rounded."""
    block: int = 64
    """Keys per step of the running maximum."""
    splits: int = 1
    wide_probabilities: bool = False
    """Whether P stays in float32 although the class may round it."""
    normalised: bool = False
    """One pass: P is divided by its sum before it is rounded."""
    dequantised: bool = False
    """Whether keys and values are multiplied by their scales, and rounded, before the product."""
    cut: bool = False
    """TF32 operands: cut off instead of rounded."""
    base_2: bool = True
    """Whether exponentials are of base 2, log2(e) being part of the scale."""
    fault: Fault | None = None


def rounded(values: Tensor, to: torch.dtype) -> Tensor:
    """float32 values as they are after being stored in a type."""
    return values.to(to).to(F32)


def to_tf32(values: Tensor, *, cut: bool) -> Tensor:
    """float32 values with 10 bits of fraction, to nearest (away from 0 on ties) or cut off."""
    bits = values.contiguous().view(torch.int32)
    return ((bits if cut else bits + 0x1000) & -0x2000).view(F32)


def emulate(batch: AttentionBatch, how: Strategy) -> AttentionResult:
    """Output in the query's type, and LSE."""
    num_tokens, num_q_heads, _ = batch.query.shape
    output = torch.zeros(num_tokens, num_q_heads, batch.value_cache.shape[-1])
    lse = torch.full((num_tokens, num_q_heads), -torch.inf)
    starts = batch.query_start.tolist()
    for index in range(len(starts) - 1):
        rows = slice(starts[index], starts[index + 1])
        if rows.stop > rows.start:
            output[rows], lse[rows] = _Sequence(batch, how, index, rows).attended()
    return AttentionResult(output.to(batch.query.dtype), lse)


class _Sequence:
    """One sequence; tensors are ``[num_kv_heads, rows, ...]``, rows being group x tokens."""

    def __init__(self, batch: AttentionBatch, how: Strategy, index: int, rows: slice) -> None:
        self.batch, self.how = batch, how
        self.type = batch.query.dtype
        self.rounding = in_effect(how.rounding, self.type)
        query = batch.query[rows].to(F32)
        self.tokens, _, self.head_dim = query.shape
        self.num_kv_heads = batch.key_cache.shape[2]
        self.length = int(batch.seq_lens[index])
        self.query = self._by_kv_head(query)
        self.positions = torch.arange(self.length - self.tokens, self.length)
        self.visible = visibility(batch, self.positions, self.length)
        blocks, slots = slots_of(batch, index)
        blocks = torch.where(self.visible.any(dim=0), blocks, 0)
        self.key, self.k_factor = self._gathered(batch.key_cache, batch.k_scale, blocks, slots)
        self.value, self.v_factor = self._gathered(batch.value_cache, batch.v_scale, blocks, slots)
        self.v_per_token = isinstance(batch.v_scale, Tensor) and batch.v_scale.dim() == 3
        self.scale = self.head_dim**-0.5 if batch.scale is None else float(batch.scale)

    def _by_kv_head(self, per_q_head: Tensor) -> Tensor:
        """``[tokens, num_q_heads, ...]`` to ``[num_kv_heads, group x tokens, ...]``."""
        heads = per_q_head.transpose(0, 1)
        group = len(heads) // self.num_kv_heads
        return heads.reshape(self.num_kv_heads, group * self.tokens, *per_q_head.shape[2:])

    def _by_token(self, rows: Tensor) -> Tensor:
        """Back to ``[tokens, num_q_heads, ...]``."""
        return rows.reshape(-1, self.tokens, *rows.shape[2:]).transpose(0, 1)

    def _gathered(
        self, cache: Tensor, scale: object, blocks: Tensor, slots: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Codes ``[num_kv_heads, n, d]``, and factors ``[num_kv_heads, n]`` still to be applied."""
        codes = cache[blocks, slots].to(F32).transpose(0, 1)
        factor = torch.as_tensor(1.0 if scale is None else scale, dtype=F32)
        if factor.dim() == 3:
            factor = factor[blocks, slots].T
        elif factor.dim() == 1:
            factor = factor[:, None]
        factor = factor.expand(codes.shape[:2])
        if not self.how.dequantised:
            return codes, factor
        return rounded(codes * factor[..., None], self.type), torch.ones_like(factor)

    def attended(self) -> tuple[Tensor, Tensor]:
        """Output ``[tokens, num_q_heads, head_dim_v]`` and LSE, in float32."""
        if self.how.normalised:
            output, lse = self._one_pass()
        else:
            output, lse = self._merged(list(self._parts()))
        if self.length and not self.v_per_token:
            output = output * self.v_factor[:, :1, None]
        return self._by_token(output), self._by_token(lse)

    # ------------------------------------------------------------------------------ the logits

    def _operand(self, values: Tensor) -> Tensor:
        """What the class makes of an operand of a product."""
        if self.rounding is Rounding.TF32:
            return to_tf32(values, cut=self.how.cut)
        return values

    def _scores(self, keys: slice) -> Tensor:
        """Logits ``[num_kv_heads, rows, keys]``, -inf where not visible."""
        batch = self.batch
        query = self.query
        ahead = self.rounding is Rounding.Q_PRE
        if ahead:
            query = rounded(query * (self.scale * LOG2_E), self.type)
        query = self._operand(query)
        key = self._operand(self.key[:, keys])
        eager = self.rounding is Rounding.EAGER
        scores = self._kept(query @ key.transpose(1, 2), eager)
        scores = scores * self.k_factor[:, None, keys]
        scores = self._kept(scores / LOG2_E if ahead else scores * self.scale, eager)
        if batch.softcap is not None:
            scores = self._kept(torch.tanh(self._kept(scores / batch.softcap, eager)), eager)
            scores = self._kept(scores * batch.softcap, eager)
        if batch.alibi_slopes is not None:
            scores = self._kept(scores + self._kept(self._bias(keys), eager), eager)
        scores = self._kept(scores, self.rounding is Rounding.S)
        hidden = ~self.visible[:, keys].repeat(self.query.shape[1] // self.tokens, 1)
        return scores.masked_fill(hidden, -torch.inf)

    def _kept(self, values: Tensor, stored: bool) -> Tensor:
        return rounded(values, self.type) if stored else values

    def _bias(self, keys: slice) -> Tensor:
        slopes = self.batch.alibi_slopes.to(F32)[:, None]
        ahead = torch.arange(self.length)[None, keys] - self.positions[:, None]
        return self._by_kv_head((slopes[..., None] * ahead).transpose(0, 1))

    def _sink(self) -> Tensor | None:
        if self.batch.sinks is None:
            return None
        return self._by_kv_head(self.batch.sinks.to(F32).expand(self.tokens, -1))

    # ----------------------------------------------------------------------------- the softmax

    def _exp(self, values: Tensor) -> Tensor:
        return torch.exp2(values * LOG2_E) if self.how.base_2 else torch.exp(values)

    def _probabilities(self, weights: Tensor) -> Tensor:
        """P as operand of the product with V."""
        if self.how.wide_probabilities or self.rounding is Rounding.IEEE:
            return weights
        if self.rounding is Rounding.TF32:
            return self._operand(weights)
        return rounded(weights, self.type)

    def _times_value(self, weights: Tensor, keys: slice) -> Tensor:
        """P V; a scale per token goes to P, before it is rounded, any other to the output."""
        value = self._operand(self.value[:, keys])
        if self.v_per_token:
            weights = weights * self.v_factor[:, None, keys]
        return self._probabilities(weights) @ value

    def _one_pass(self) -> tuple[Tensor, Tensor]:
        scores = self._scores(slice(0, self.length))
        sink = self._sink()
        lse = torch.logsumexp(scores, dim=-1)
        if sink is not None:
            lse = torch.logaddexp(lse, sink)
        shift = torch.where(lse.isneginf(), 0.0, lse)
        return self._times_value(torch.exp(scores - shift[..., None]), slice(0, self.length)), lse

    def _parts(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Output and LSE of every part of the keys."""
        size = -(-self.length // self.how.splits)
        size = -(-size // self.how.block) * self.how.block
        for start in range(0, max(self.length, 1), max(size, 1)):
            yield self._part(start, min(start + size, self.length))

    def _part(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        shape = self.query.shape[:2]
        maximum, total = torch.full(shape, -torch.inf), torch.zeros(shape)
        sums = torch.zeros(*shape, self.value.shape[-1])
        sink = self._sink()
        if sink is not None and start == 0:
            maximum, total = sink, torch.ones(shape)
        for first in range(start, stop, self.how.block):
            keys = slice(first, min(first + self.how.block, stop))
            scores = self._scores(keys)
            higher = torch.maximum(maximum, scores.amax(dim=-1))
            shift = torch.where(higher.isneginf(), 0.0, higher)
            weights = self._exp(scores - shift[..., None])
            factor = self._exp(maximum - shift)
            total = total * factor + weights.sum(dim=-1)
            sums = sums * factor[..., None] + self._times_value(weights, keys)
            maximum = higher
            if self.how.fault is Fault.ROUNDED_SUM:
                sums = rounded(sums, self.type)
        output = torch.where(total[..., None] > 0, sums / total[..., None], 0.0)
        return output, maximum + torch.log(total)

    def _merged(self, parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        if self.how.fault is Fault.DROPPED_SPLIT and len(parts) > 1:
            parts = parts[:-1]
        if len(parts) == 1:
            return parts[0]
        outputs = torch.stack([output for output, _ in parts])
        lses = torch.stack([lse for _, lse in parts])
        if self.rounding is Rounding.P_PART:
            outputs = rounded(outputs, self.type)
        lse = torch.logsumexp(lses, dim=0)
        base = LOG2_E if self.how.fault is Fault.MERGE_BASE_2 else 1.0
        shares = torch.softmax(torch.where(lse.isneginf(), 0.0, lses) * base, dim=0)
        return (outputs * shares[..., None]).sum(dim=0), lse
