"""What a decoder-only transformer has to compute and to move, per token and per step.

Dense, with gated feed-forward layers and grouped-query attention. Weights count without the input
embeddings, of which a step reads a row per token.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """Sizes of a model."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    element_bytes: int
    """Of weights and of the KV cache."""

    @property
    def layer_parameters(self) -> int:
        """Weights of all layers' matrices."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def head_parameters(self) -> int:
        """Weights of the output projection."""
        return self.hidden * self.vocabulary

    @property
    def weight_bytes(self) -> int:
        """What every step reads."""
        return (self.layer_parameters + self.head_parameters) * self.element_bytes

    @property
    def token_bytes(self) -> int:
        """A token's keys and values in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.element_bytes

    @property
    def token_flop(self) -> int:
        """Matrix products of one token in the layers, attention apart."""
        return 2 * self.layer_parameters

    @property
    def head_flop(self) -> int:
        """The output projection of one row."""
        return 2 * self.head_parameters

    @property
    def pair_flop(self) -> int:
        """Attention of one query token to one key, in all heads and layers."""
        return 4 * self.layers * self.heads * self.head_dim


LLAMA_3_8B = Model("Llama 3 8B, 16 bit", 32, 4096, 32, 8, 128, 14336, 128256, 2)
LLAMA_3_70B = Model("Llama 3 70B, 16 bit", 80, 8192, 64, 8, 128, 28672, 128256, 2)
RANDOM_LLAMA = Model("random Llama, float32", 2, 256, 8, 2, 32, 512, 1024, 4)
"""The one that the engines' tests write."""

MODELS = {"llama-3-8b": LLAMA_3_8B, "llama-3-70b": LLAMA_3_70B, "random-llama": RANDOM_LLAMA}
