"""Mistakes about scores, heads, quantisation scales and the LSE."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kvassay.harness.attention.twist import (
    HEAD,
    LSE,
    SCALE,
    SCORE,
    Apply,
    Twist,
    When,
    has,
    on_batch,
    on_sequences,
    positions_of,
    twist,
    without,
)
from kvassay.harness.contract import AttentionBatch
from kvassay.reference import attention as oracle
from kvassay.reference.attention import F64, Attended, Sequence

# -------------------------------------------------------------------------------------- scores


def _scale_of(batch: AttentionBatch) -> float:
    dim = batch.query.shape[2]
    return float(dim**-0.5 if batch.scale is None else batch.scale)


def _scaled_by(factor: Callable[[AttentionBatch], float]) -> Apply:
    return on_batch(lambda batch: replace(batch, scale=factor(batch)))


def _padded_scale(batch: AttentionBatch) -> float:
    """Of a head size rounded up to a power of two."""
    return float(2.0 ** (-math.ceil(math.log2(batch.query.shape[2])) / 2))


def _odd_dim(batch: AttentionBatch) -> bool:
    dim = batch.query.shape[2]
    return batch.scale is None and bool(dim & (dim - 1))


def _two_dims(batch: AttentionBatch) -> bool:
    return batch.scale is None and batch.query.shape[2] != batch.value_cache.shape[3]


def _cap(batch: AttentionBatch) -> float:
    return float(batch.softcap or 0.0)


def _recapped(cap: Callable[[AttentionBatch, Tensor, Tensor], Tensor]) -> Apply:
    """Scores from the plain logits and the bias, in another order: ``[heads, q, n]`` each."""

    def change(batch: AttentionBatch, sequence: Sequence) -> Sequence:
        group = sequence.group
        key = sequence.key.repeat_interleave(group, dim=1)
        raw = _scale_of(batch) * torch.einsum("qhd,nhd->hqn", sequence.query, key)
        logits = cap(batch, raw, _bias(batch, sequence))
        return replace(sequence, logits=logits.masked_fill(~sequence.visible, -torch.inf))

    return on_sequences(change)


def _bias(batch: AttentionBatch, sequence: Sequence) -> Tensor:
    n, heads = sequence.visible.shape[1], batch.query.shape[1]
    slopes = torch.zeros(heads) if batch.alibi_slopes is None else batch.alibi_slopes.cpu()
    ahead = torch.arange(n)[None, :] - positions_of(sequence)[:, None]
    return slopes.to(F64)[:, None, None] * ahead


def _cap_before_scale(batch: AttentionBatch, raw: Tensor, bias: Tensor) -> Tensor:
    scale, cap = _scale_of(batch), _cap(batch)
    return scale * cap * torch.tanh(raw / scale / cap) + bias


def _cap_after_bias(batch: AttentionBatch, raw: Tensor, bias: Tensor) -> Tensor:
    return _cap(batch) * torch.tanh((raw + bias) / _cap(batch))


def _cap_outside(batch: AttentionBatch, raw: Tensor, bias: Tensor) -> Tensor:
    return torch.tanh(raw / _cap(batch)) + bias


def _cap_after_mask(batch: AttentionBatch, sequence: Sequence) -> Sequence:
    """Keys that are not visible keep the lowest capped score."""
    lowest = sequence.logits.masked_fill(~sequence.visible, -_cap(batch))
    return replace(sequence, logits=lowest)


def _absolute_bias(batch: AttentionBatch, sequence: Sequence) -> Sequence:
    """Counted from the first key: another constant per row."""
    slopes = batch.alibi_slopes.cpu().to(F64)[:, None, None]
    return replace(sequence, logits=sequence.logits + slopes * positions_of(sequence)[:, None])


def _changed(name: str, change: Callable[[Any], Any]) -> Apply:
    """A field of the batch is another."""
    return on_batch(lambda batch: replace(batch, **{name: change(getattr(batch, name))}))


def _flat(batch: AttentionBatch, sequence: Sequence) -> Sequence:
    flat = torch.zeros_like(sequence.logits).masked_fill(~sequence.visible, -torch.inf)
    return replace(sequence, logits=flat)


def _per_kv_head(name: str) -> Apply:
    """A number per query head is looked up by KV head."""

    def change(batch: AttentionBatch) -> AttentionBatch:
        values, heads = getattr(batch, name), _kv_head_of(batch)
        return replace(batch, **{name: values[heads.to(values.device)]})

    return on_batch(change)


# --------------------------------------------------------------------------------------- heads


def _kv_head_of(batch: AttentionBatch) -> Tensor:
    """``[num_q_heads]``: the KV head that each query head reads."""
    heads = _query_heads(batch)
    return heads // (len(heads) // _num_kv_heads(batch))


def _query_heads(batch: AttentionBatch) -> Tensor:
    return torch.arange(int(batch.query.shape[1]))


def _num_kv_heads(batch: AttentionBatch) -> int:
    return int(batch.key_cache.shape[2])


def _reading(
    mapping: Callable[[AttentionBatch], Tensor], *, keys: bool = True, values: bool = True
) -> Apply:
    """Each query head reads the KV head that `mapping` says, for keys, values or both."""

    def change(batch: AttentionBatch) -> AttentionBatch:
        right, wrong = _kv_head_of(batch), mapping(batch)
        of_keys, of_values = wrong if keys else right, wrong if values else right
        return replace(
            batch,
            key_cache=_heads(batch.key_cache, of_keys),
            value_cache=_heads(batch.value_cache, of_values),
            k_scale=_scales(batch.k_scale, of_keys),
            v_scale=_scales(batch.v_scale, of_values),
        )

    return on_batch(change)


def _heads(cache: Tensor, heads: Tensor) -> Tensor:
    codes: Tensor = cache.view(torch.int8) if cache.element_size() == 1 else cache
    chosen: Tensor = codes[:, :, heads.to(cache.device)]
    return chosen.view(cache.dtype)


def _scales(scale: Any, heads: Tensor) -> Any:
    if isinstance(scale, Tensor) and scale.dim():
        return scale[..., heads.to(scale.device)]
    return scale


def _next_head(batch: AttentionBatch) -> Tensor:
    """The neighbour: as if the KV heads were moved up by one."""
    return (_kv_head_of(batch) - 1) % _num_kv_heads(batch)


def _modulo(batch: AttentionBatch) -> Tensor:
    return _query_heads(batch) % _num_kv_heads(batch)


def _by_count(batch: AttentionBatch) -> Tensor:
    """Divided by the number of KV heads instead of the ratio."""
    kv_heads = _num_kv_heads(batch)
    return (_query_heads(batch) // kv_heads).clamp_max(kv_heads - 1)


def _first_head(batch: AttentionBatch) -> Tensor:
    return torch.zeros_like(_query_heads(batch))


def _kv_heads(batch: AttentionBatch) -> bool:
    return _num_kv_heads(batch) > 1


# -------------------------------------------------------------------------------------- scales


def _first_of(scale: Any) -> Any:
    """A scale per head taken from the first head."""
    return scale[:1].expand_as(scale) if _dims(scale) == 1 else scale


def _dims(scale: Any) -> int:
    return scale.dim() if isinstance(scale, Tensor) else 0


def _squared(scale: Any) -> Any:
    return None if scale is None else scale * scale


def _per_head(name: str) -> When:
    return lambda batch: _dims(getattr(batch, name)) == 1


def _per_token(name: str) -> When:
    return lambda batch: _dims(getattr(batch, name)) == 3


def _first_slot(scale: Any) -> Any:
    """A scale per token taken from the first slot of the block."""
    return scale[:, :1].expand_as(scale)


def _exchanged(batch: AttentionBatch) -> AttentionBatch:
    return replace(batch, k_scale=batch.v_scale, v_scale=batch.k_scale)


# ------------------------------------------------------------------------------------- results


def _on_result(change: Callable[[AttentionBatch, Attended], Attended]) -> Apply:
    return lambda batch: change(batch, oracle.attend(batch))


def _gain(batch: AttentionBatch, right: Attended) -> Attended:
    return Attended(right.output * 1.01, right.lse)


def _base_two(batch: AttentionBatch, right: Attended) -> Attended:
    return Attended(right.output, right.lse / math.log(2.0))


def _lse_without_sinks(batch: AttentionBatch, right: Attended) -> Attended:
    return Attended(right.output, oracle.attend(replace(batch, sinks=None)).lse)


_CAP, _ALIBI, _SINKS = has("softcap"), has("alibi_slopes"), has("sinks")
_K_SCALE, _V_SCALE = has("k_scale"), has("v_scale")

OF_SCORES: tuple[Twist, ...] = (
    twist("no-softcap", "there is no soft cap", SCORE, without("softcap"), _CAP),
    twist("no-alibi", "there is no ALiBi", SCORE, without("alibi_slopes"), _ALIBI),
    twist("no-sinks", "there are no sinks", SCORE, without("sinks"), _SINKS),
    twist("no-k-scale", "the keys' scale is missing", SCALE, without("k_scale"), _K_SCALE),
    twist("no-v-scale", "the values' scale is missing", SCALE, without("v_scale"), _V_SCALE),
    twist("default-scale", "the scale given is ignored", SCORE, without("scale"), has("scale")),
    twist("no-scale", "the logits are not scaled", SCORE, _scaled_by(lambda batch: 1.0)),
    twist(
        "scale-twice", "the logits are scaled twice", SCORE, _scaled_by(lambda b: _scale_of(b) ** 2)
    ),
    twist(
        "padded-scale",
        "the scale is that of a head size rounded up to a power of two",
        SCORE,
        _scaled_by(_padded_scale),
        _odd_dim,
    ),
    twist(
        "value-scale",
        "the scale is that of the values' head size",
        SCORE,
        _scaled_by(lambda b: b.value_cache.shape[3] ** -0.5),
        _two_dims,
    ),
    twist("uniform", "all keys have the same weight", SCORE, on_sequences(_flat)),
    twist(
        "cap-first",
        "the soft cap comes before the scale",
        SCORE,
        _recapped(_cap_before_scale),
        _CAP,
    ),
    twist(
        "cap-outside", "the soft cap is not multiplied back", SCORE, _recapped(_cap_outside), _CAP
    ),
    twist(
        "cap-last",
        "the soft cap comes after ALiBi",
        SCORE,
        _recapped(_cap_after_bias),
        has("softcap", "alibi_slopes"),
    ),
    twist(
        "cap-after-mask",
        "the soft cap comes after the mask",
        SCORE,
        on_sequences(_cap_after_mask),
        _CAP,
    ),
    twist(
        "alibi-sign", "ALiBi has the wrong sign", SCORE, _changed("alibi_slopes", torch.neg), _ALIBI
    ),
    twist(
        "alibi-from-first",
        "ALiBi counts from the first key",
        SCORE,
        on_sequences(_absolute_bias),
        _ALIBI,
    ),
    twist(
        "alibi-kv-head",
        "ALiBi slopes are looked up by KV head",
        SCORE,
        _per_kv_head("alibi_slopes"),
        _ALIBI,
    ),
    twist(
        "sinks-twice",
        "the sinks are counted twice",
        SCORE,
        _changed("sinks", lambda sinks: sinks + math.log(2.0)),
        _SINKS,
    ),
    twist("sinks-kv-head", "sinks are looked up by KV head", SCORE, _per_kv_head("sinks"), _SINKS),
    twist(
        "sinks-scaled",
        "the sinks are scaled as the logits are",
        SCORE,
        on_batch(lambda b: replace(b, sinks=b.sinks * _scale_of(b))),
        _SINKS,
    ),
    twist(
        "next-head",
        "each head reads the KV of its neighbour",
        HEAD,
        _reading(_next_head),
        _kv_heads,
    ),
    twist(
        "next-head-k",
        "each head reads the keys of its neighbour",
        HEAD,
        _reading(_next_head, values=False),
        _kv_heads,
    ),
    twist(
        "next-head-v",
        "each head reads the values of its neighbour",
        HEAD,
        _reading(_next_head, keys=False),
        _kv_heads,
    ),
    twist(
        "modulo-heads",
        "query head h reads KV head h modulo their number",
        HEAD,
        _reading(_modulo),
        _kv_heads,
    ),
    twist(
        "divided-heads",
        "query head h reads KV head h divided by their number",
        HEAD,
        _reading(_by_count),
        _kv_heads,
    ),
    twist("first-head", "all heads read the first KV head", HEAD, _reading(_first_head), _kv_heads),
    twist(
        "k-scale-twice",
        "the keys' scale is applied twice",
        SCALE,
        _changed("k_scale", _squared),
        _K_SCALE,
    ),
    twist(
        "v-scale-twice",
        "the values' scale is applied twice",
        SCALE,
        _changed("v_scale", _squared),
        _V_SCALE,
    ),
    twist(
        "scales-exchanged",
        "the scales of keys and values are exchanged",
        SCALE,
        on_batch(_exchanged),
        lambda b: _K_SCALE(b) or _V_SCALE(b),
    ),
    twist(
        "k-scale-first-head",
        "the first head's scale is used for all keys",
        SCALE,
        _changed("k_scale", _first_of),
        _per_head("k_scale"),
    ),
    twist(
        "v-scale-first-head",
        "the first head's scale is used for all values",
        SCALE,
        _changed("v_scale", _first_of),
        _per_head("v_scale"),
    ),
    twist(
        "k-scale-first-slot",
        "the first slot's scale is used for all keys of a block",
        SCALE,
        _changed("k_scale", _first_slot),
        _per_token("k_scale"),
    ),
    twist(
        "v-scale-first-slot",
        "the first slot's scale is used for all values of a block",
        SCALE,
        _changed("v_scale", _first_slot),
        _per_token("v_scale"),
    ),
    twist("gain", "the output is 1 % too large", SCALE, _on_result(_gain)),
    twist("base-2", "the LSE has base 2", LSE, _on_result(_base_two)),
    twist("lse-no-sinks", "the LSE lacks the sinks", LSE, _on_result(_lse_without_sinks), _SINKS),
)
"""Simple ones first."""
