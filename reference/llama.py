"""A Llama decoder without any cache, written for reading: every position attends to all before it.

RMSNorm, rotary positions (halves rotated against each other), grouped KV heads and a SiLU-gated
MLP, as in "LLaMA: Open and Efficient Foundation Language Models" and "GQA". It reads the files that
engines read (``config.json``, ``model.safetensors`` with Hugging Face's names), and computes in
float64 unless it is to show what another type makes of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

Rounding = Callable[[Tensor], Tensor]
"""What becomes of the output of every layer within."""


class Llama:
    """A configuration and weights, by Hugging Face's names, in one type."""

    def __init__(
        self,
        config: Mapping[str, Any],
        weights: Mapping[str, Tensor],
        dtype: torch.dtype = torch.float64,
    ) -> None:
        """`ValueError` for a model that is not a Llama."""
        kind = config.get("model_type")
        if kind != "llama":
            raise ValueError(f"model_type: expected llama, got {kind!r}")
        self.config = config
        self.weights = {name: tensor.to(dtype) for name, tensor in weights.items()}
        self.dtype = dtype

    @classmethod
    def load(cls, folder: Path) -> Llama:
        """The model that engines load from there."""
        from safetensors.torch import load_file

        config = json.loads((folder / "config.json").read_text("utf-8"))
        return cls(config, load_file(folder / "model.safetensors"))

    def to(self, dtype: torch.dtype) -> Llama:
        """The same in another type."""
        return Llama(self.config, self.weights, dtype)

    @property
    def vocabulary(self) -> int:
        """Tokens are below it."""
        return int(self.config["vocab_size"])

    @torch.no_grad()
    def logits(
        self,
        tokens: Sequence[int],
        *,
        first: int = 0,
        copies: int = 1,
        rounding: Rounding = lambda output: output,
    ) -> Tensor:
        """Behind each position from `first` on: ``[copies, len(tokens) - first, vocabulary]``."""
        ids = torch.tensor([list(tokens)] * copies)
        hidden = rounding(self.weights["model.embed_tokens.weight"][ids])
        cosine, sine = self._rotation(len(tokens))
        for number in range(self.config["num_hidden_layers"]):
            name = f"model.layers.{number}"
            normed = rounding(self._norm(hidden, f"{name}.input_layernorm"))
            hidden = hidden + self._attention(normed, f"{name}.self_attn", cosine, sine, rounding)
            normed = rounding(self._norm(hidden, f"{name}.post_attention_layernorm"))
            hidden = hidden + self._mlp(normed, f"{name}.mlp", rounding)
        hidden = rounding(self._norm(hidden[:, first:], "model.norm"))
        return rounding(self._linear(hidden, "lm_head"))

    def _linear(self, hidden: Tensor, name: str) -> Tensor:
        output: Tensor = hidden @ self.weights[f"{name}.weight"].T
        return output

    def _norm(self, hidden: Tensor, name: str) -> Tensor:
        mean = hidden.square().mean(dim=-1, keepdim=True)
        scale = torch.rsqrt(mean + self.config["rms_norm_eps"])
        output: Tensor = hidden * scale * self.weights[f"{name}.weight"]
        return output

    def _rotation(self, length: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine ``[length, head_dim / 2]`` of the angle of each position and pair."""
        half = self.config["head_dim"] // 2
        exponent = torch.arange(half, dtype=self.dtype) / half
        frequency = torch.as_tensor(self.config["rope_theta"], dtype=self.dtype) ** -exponent
        angle = torch.arange(length, dtype=self.dtype)[:, None] * frequency
        return angle.cos(), angle.sin()

    def _attention(
        self, hidden: Tensor, name: str, cosine: Tensor, sine: Tensor, rounding: Rounding
    ) -> Tensor:
        query, key, value = (
            self._heads(rounding(self._linear(hidden, f"{name}.{part}_proj"))) for part in "qkv"
        )
        query, key = _rotated(query, cosine, sine), _rotated(key, cosine, sine)
        group = query.shape[1] // key.shape[1]
        key, value = (each.repeat_interleave(group, dim=1) for each in (key, value))
        scores = query @ key.transpose(-1, -2) * self.config["head_dim"] ** -0.5
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = torch.softmax(scores.masked_fill(future, -torch.inf), dim=-1)
        attended = (weights @ value).transpose(1, 2).flatten(2)
        return rounding(self._linear(attended, f"{name}.o_proj"))

    def _heads(self, projected: Tensor) -> Tensor:
        """From ``[copies, n, heads * head_dim]`` to ``[copies, heads, n, head_dim]``."""
        heads = projected.reshape(*projected.shape[:2], -1, self.config["head_dim"])
        return heads.transpose(1, 2)

    def _mlp(self, hidden: Tensor, name: str, rounding: Rounding) -> Tensor:
        gate = rounding(self._linear(hidden, f"{name}.gate_proj"))
        up = rounding(self._linear(hidden, f"{name}.up_proj"))
        return rounding(self._linear(silu(gate) * up, f"{name}.down_proj"))


def _rotated(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """The first half of each head is the real part, the second the imaginary one."""
    real, imaginary = heads.chunk(2, dim=-1)
    parts = (real * cosine - imaginary * sine, imaginary * cosine + real * sine)
    return torch.cat(parts, dim=-1)
