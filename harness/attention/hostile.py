"""Batches on which rounding errors do not average out, for looking for false alarms.

Repeated keys, a query of zero, values that point one way or lie just off a representable number,
one strong key over a flat rest, head sizes of 1, few codes with scales: with any mix of features,
lengths and types. Drawn from a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from kvassay.harness.attention.emulated import Strategy
from kvassay.harness.contract import AttentionBatch, Rounding

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
CODES_PER_UNIT = 20
"""Of an int8 cache."""


@dataclass
class Draft:
    """What is to be attended, in float32."""

    rng: Random
    query: Tensor
    """``[num_tokens, num_q_heads, head_dim]``."""
    key: Tensor
    """``[blocks, block_size, num_kv_heads, head_dim]``."""
    value: Tensor


def _zero_query(draft: Draft) -> None:
    draft.query *= 0


def _peaky(draft: Draft) -> None:
    draft.query *= 4


def _sharp(draft: Draft) -> None:
    draft.query *= 10
    draft.key *= 10


def _tiny(draft: Draft) -> None:
    for tensor in (draft.query, draft.key, draft.value):
        tensor *= 3e-4


def _equal_keys(draft: Draft) -> None:
    draft.key = draft.key[:1, :1].expand_as(draft.key).clone()


def _two_keys(draft: Draft) -> None:
    first = torch.arange(draft.key[..., :1, :1].numel()).reshape(draft.key[..., :1, :1].shape) % 3
    draft.key = torch.where(first == 0, draft.key[:1, :1], draft.key[:1, -1:] / 2)
    draft.value = draft.value.abs()


def _repeated(draft: Draft) -> None:
    blocks = torch.arange(len(draft.key)) % 2
    draft.key, draft.value = draft.key[blocks], draft.value[blocks]


def _needle(draft: Draft) -> None:
    heads = draft.key.shape[2]
    draft.key *= 1e-3
    draft.key[min(1, len(draft.key) - 1), 0] = draft.query[0, :1].expand(heads, -1)
    draft.key *= draft.rng.choice((0.1, 0.3, 0.5))
    draft.value = draft.value.abs()


def _flat(draft: Draft) -> None:
    draft.query *= draft.rng.choice((1e-3, 1e-2))
    draft.value = draft.value * 0.1 + 1


def _offset(draft: Draft) -> None:
    narrow = draft.rng.choice((1e-3, 1e-2, 1e-1))
    draft.value = draft.value * narrow + 1 + draft.rng.random() / 50


def _one_direction(draft: Draft) -> None:
    draft.value = draft.value[..., :1].expand_as(draft.value).clone()


def _numbered(draft: Draft) -> None:
    blocks, size = draft.value.shape[:2]
    number = torch.arange(blocks * size).reshape(blocks, size, 1, 1) % 97 / 8
    draft.value = number.expand_as(draft.value).clone()


def _keys_as_values(draft: Draft) -> None:
    width = min(draft.key.shape[-1], draft.value.shape[-1])
    draft.value[..., :width] = draft.key[..., :width]


def _sparse(draft: Draft) -> None:
    numbers = torch.arange(draft.value.numel()).reshape(draft.value.shape)
    draft.value = torch.where(numbers * 7919 % 31 == 0, draft.value, 0.0)


CONTENTS: dict[str, Callable[[Draft], None]] = {
    "plain": lambda draft: None,
    "peaky": _peaky,
    "sharp": _sharp,
    "tiny": _tiny,
    "zero query": _zero_query,
    "equal keys": _equal_keys,
    "two keys": _two_keys,
    "repeated blocks": _repeated,
    "one strong key": _needle,
    "flat logits": _flat,
    "offset values": _offset,
    "one direction": _one_direction,
    "numbered values": _numbered,
    "keys as values": _keys_as_values,
    "sparse values": _sparse,
}
LENGTHS = (0, 1, 2, 3, 5, 17, 33, 64, 100, 300, 700)


def hostile(seed: int) -> tuple[str, AttentionBatch]:
    """The name of the contents, and the batch."""
    rng, generator = Random(seed), torch.Generator().manual_seed(seed)
    size, heads = rng.choice((1, 8, 16)), rng.choice((1, 2, 4))
    lengths = [rng.choice(LENGTHS) for _ in range(rng.choice((1, 1, 2, 4)))]
    tokens = [rng.choice((1, 1, max(1, min(n, 3)), max(1, min(n, 40)))) for n in lengths]
    counts = [-(-n // size) for n in lengths]
    head_dim = rng.choice((16, 64, 64, 128))
    shape = (sum(counts) + 1, size, heads)
    draft = Draft(
        rng,
        torch.randn(sum(tokens), heads * rng.choice((1, 2, 4, 5)), head_dim, generator=generator),
        torch.randn(*shape, head_dim, generator=generator),
        torch.randn(*shape, rng.choice((1, 4, 16, head_dim, head_dim)), generator=generator),
    )
    content = rng.choice(list(CONTENTS))
    CONTENTS[content](draft)
    starts = torch.tensor([0, *tokens]).cumsum(0).to(torch.int32)
    dtype = rng.choice((torch.bfloat16, torch.float16) * 2 + (torch.float32,))
    return content, AttentionBatch(
        query=draft.query.to(dtype),
        block_table=_table(counts),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        query_start=starts,
        **_options(rng, draft.query.shape[1]),
        **_caches(rng, draft, dtype, generator),
    )


def _table(counts: list[int]) -> Tensor:
    table = torch.zeros(len(counts), max(*counts, 1), dtype=torch.int32)
    first = 1
    for row, count in zip(table, counts, strict=True):
        row[:count] = torch.arange(first, first + count)
        first += count
    return table


def _options(rng: Random, num_q_heads: int) -> dict[str, Any]:
    """Features, each now and then."""
    offered: dict[str, tuple[float, Callable[[], Any]]] = {
        "window_left": (0.3, lambda: rng.choice((0, 1, 7, 64))),
        "softcap": (0.2, lambda: rng.choice((1.0, 10.0, 30.0))),
        "alibi_slopes": (0.2, lambda: 2.0 ** -torch.arange(1.0, num_q_heads + 1)),
        "sinks": (0.3, lambda: torch.tensor([rng.gauss(0, 2) for _ in range(num_q_heads)])),
        "causal": (0.2, lambda: False),
        "scale": (0.2, lambda: rng.choice((1.0, 0.01))),
    }
    return {name: draw() for name, (chance, draw) in offered.items() if rng.random() < chance}


def _caches(
    rng: Random, draft: Draft, dtype: torch.dtype, generator: torch.Generator
) -> dict[str, Any]:
    cache = rng.choice((dtype, dtype, dtype, *FLOAT8, torch.int8))
    key, value, unit = draft.key, draft.value, 1.0
    if cache is torch.int8:
        unit = 1 / CODES_PER_UNIT
        key, value = ((codes / unit).clamp(-127, 127).round() for codes in (key, value))
    caches: dict[str, Any] = {"key_cache": key.to(cache), "value_cache": value.to(cache)}
    if cache.itemsize == 1:
        shape = rng.choice(((), tuple(key.shape[2:3]), tuple(key.shape[:3])))
        for name in ("k_scale", "v_scale"):
            factor = torch.rand(shape, generator=generator) + 0.5
            caches[name] = factor * unit * rng.choice((1.0, 1.0, 0.0123))
    return caches


STRATEGIES: dict[str, Strategy] = {
    "blocks of 16": Strategy(block=16),
    "blocks of 128, base e": Strategy(block=128, base_2=False),
    "8 splits": Strategy(splits=8, block=16),
    "one pass, P normalised": Strategy(normalised=True, dequantised=True),
    "scales applied first": Strategy(dequantised=True),
    "P in float32": Strategy(wide_probabilities=True),
    "ieee": Strategy(Rounding.IEEE),
    "parts in 16 bit": Strategy(Rounding.P_PART, splits=8, block=16),
    "3 parts in 16 bit": Strategy(Rounding.P_PART, splits=3, block=16),
    "scores rounded": Strategy(Rounding.S),
    "eager": Strategy(Rounding.EAGER, normalised=True),
    "query scaled and rounded": Strategy(Rounding.Q_PRE),
    "TF32 to nearest": Strategy(Rounding.TF32),
    "TF32 cut off": Strategy(Rounding.TF32, cut=True, splits=4, block=16),
}
"""Correct kernels, each judged by its own class."""
