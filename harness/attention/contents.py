"""What queries, keys and values are filled with, by name.

All numbers are drawn in float32 from the case's seed, before they are stored in the types of the
case; keys and values are those of the logical sequences, wherever they will lie.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from kvassay.harness.attention.case import CacheLayout, Case, Contents

NEEDLE_LOGIT = 40.0
"""By how much the needle stands out, whatever the head size."""
HALVES_LOGIT = 6.0
OFFSET_NOISE = 0.1
HUGE = 300.0


@dataclass
class Filling:
    """Numbers of a case, in float32."""

    query: Tensor
    """``[num_tokens, num_q_heads, head_dim]``."""
    keys: list[Tensor]
    """Per sequence ``[n, num_kv_heads, head_dim]``."""
    values: list[Tensor]
    """Per sequence ``[n, num_kv_heads, head_dim_v]``."""


def fill(case: Case, generator: Generator) -> Filling:
    """The numbers of a case."""
    query = torch.randn(case.num_tokens, case.num_q_heads, case.head_dim, generator=generator)
    lengths = [keys for keys, _ in case.seqs]
    keys = [torch.randn(n, case.num_kv_heads, case.head_dim, generator=generator) for n in lengths]
    values = [
        torch.randn(n, case.num_kv_heads, case.head_dim_v, generator=generator) for n in lengths
    ]
    filling = Filling(query, keys, values)
    if case.contents in _FILLERS:
        _FILLERS[case.contents](case, filling)
    if case.cache_layout is CacheLayout.V_IN_K:
        for key, value in zip(filling.keys, filling.values, strict=True):
            key[..., : case.head_dim_v] = value
    return filling


def _peaky(case: Case, filling: Filling) -> None:
    filling.query *= 4


def _offset(case: Case, filling: Filling) -> None:
    filling.values = [1 + OFFSET_NOISE * value for value in filling.values]


def _tiny(case: Case, filling: Filling) -> None:
    """Uniform within 1e-3, by the distribution function of the normal one."""

    def small(x: Tensor) -> Tensor:
        return 1e-3 * torch.erf(x / 2**0.5)

    filling.query = small(filling.query)
    filling.keys = [small(key) for key in filling.keys]
    filling.values = [small(value) for value in filling.values]


def _huge(case: Case, filling: Filling) -> None:
    filling.query *= HUGE
    filling.keys = [HUGE * key for key in filling.keys]


def _counted(case: Case, filling: Filling) -> None:
    filling.query.zero_()
    filling.values = [_unit_vectors(case, len(v)) for v in filling.values]


def code_of(contents: Contents, positions: Tensor, head_dim_v: int) -> Tensor:
    """Which unit vector COUNTED and PLACED have at each position."""
    modulus = head_dim_v if contents is Contents.COUNTED else max(1, head_dim_v - 1)
    return positions % modulus


def _unit_vectors(case: Case, length: int) -> Tensor:
    code = code_of(case.contents, torch.arange(length), case.head_dim_v)
    one_hot = torch.nn.functional.one_hot(code, case.head_dim_v).float()
    return one_hot[:, None, :].repeat(1, case.num_kv_heads, 1)


def _needle(case: Case, filling: Filling) -> None:
    """The key at `mark` points along the first axis, as does every query."""
    _aim(case, filling, NEEDLE_LOGIT)
    for keys in filling.keys:
        if -len(keys) <= case.mark < len(keys):
            keys[case.mark, :, 0] = 1.0


def _heads(case: Case, filling: Filling) -> None:
    """The needle of KV head h is at position h; value j of it is unit vector j + h * KV heads."""
    _aim(case, filling, NEEDLE_LOGIT)
    heads = torch.arange(case.num_kv_heads)
    for keys, values in zip(filling.keys, filling.values, strict=True):
        found = heads[: len(keys)]
        keys[found, found, 0] = 1.0
        code = (torch.arange(len(keys)) % case.num_kv_heads)[:, None] + heads * case.num_kv_heads
        values.copy_(torch.nn.functional.one_hot(code % case.head_dim_v, case.head_dim_v))


def _halves(case: Case, filling: Filling) -> None:
    """Logits of one half are higher, and its values lie around 1 instead of -1."""
    _aim(case, filling, HALVES_LOGIT)
    heavy = slice(case.mark) if case.mark >= 0 else slice(case.mark, None)
    for keys, values in zip(filling.keys, filling.values, strict=True):
        keys[heavy, :, 0] = 1.0
        values.mul_(0.5).add_(-1.0)
        values[heavy] += 2.0


def _aim(case: Case, filling: Filling, logit: float) -> None:
    """Give the first axis to the signal: a key of 1 there has the logit, all others none."""
    scale = case.head_dim**-0.5 if case.scale is None else case.scale
    filling.query[..., 1:] *= 0.3
    filling.query[..., 0] = logit / scale
    for keys in filling.keys:
        keys[..., 0] = 0.0


_FILLERS: dict[Contents, Callable[[Case, Filling], None]] = {
    Contents.PEAKY: _peaky,
    Contents.OFFSET: _offset,
    Contents.TINY: _tiny,
    Contents.HUGE: _huge,
    Contents.COUNTED: _counted,
    Contents.PLACED: _counted,
    Contents.NEEDLE: _needle,
    Contents.HEADS: _heads,
    Contents.HALVES: _halves,
}
