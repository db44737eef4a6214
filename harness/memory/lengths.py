"""Lengths of requests, in tokens, and what a token's KV takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvassay.harness.traces.request import TraceRequest

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Lengths:
    """Prompts and outputs of the same requests; each generates at least one token."""

    prompt: Ints
    output: Ints

    @property
    def final(self) -> Ints:
        """Tokens when the last one has been generated."""
        return self.prompt + self.output

    def limit(self) -> int:
        """The smallest power of two that holds each of them: a length limit for a model."""
        return power_of_two(int(self.final.max()))


def lengths_of(requests: Iterable[TraceRequest]) -> Lengths:
    """Of the requests that generated something; `ValueError` if there are none."""
    pairs = [(one.input_tokens, one.output_tokens) for one in requests if one.output_tokens]
    if not pairs:
        raise ValueError("expected requests that generated tokens, got none")
    table = np.array(pairs, dtype=np.int64)
    return Lengths(table[:, 0].copy(), table[:, 1].copy())


def power_of_two(least: int) -> int:
    """The smallest power of two >= `least` >= 1."""
    return 1 << (least - 1).bit_length()


@dataclass(frozen=True)
class ModelShape:
    """What the size of KV depends on."""

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    element_bytes: int

    @property
    def token_bytes(self) -> int:
        """Bytes of a token's keys and values in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.element_bytes


LLAMA_3_8B = ModelShape("Llama 3 8B, 16 bit", 32, 8, 128, 2)
