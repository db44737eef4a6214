"""A small Llama with random weights, as a folder that engines load: nothing is downloaded.

With weights this wide (standard deviation 0.15) the logits react to the whole context; the usual
ones (0.02) repeat two tokens whatever the prompt, so that wrong KV would not show in the output.
It has no tokenizer: prompts and outputs are token ids.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

DEVIATION = 0.15


@dataclass(frozen=True)
class Sizes:
    """The shape of the model, by the names of its configuration."""

    vocab_size: int = 1024
    hidden_size: int = 256
    intermediate_size: int = 512
    num_hidden_layers: int = 2
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    head_dim: int = 32
    max_position_embeddings: int = 4096


SMALL = Sizes()
"""2 M parameters: a prefill of 600 tokens takes tens of milliseconds on one core."""


def write_model(folder: Path, sizes: Sizes = SMALL, *, seed: int = 0) -> Path:
    """Configuration and float32 weights; the same files for the same seed. Returns `folder`."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(sizes), indent=1), encoding="utf-8")
    save_file(weights(sizes, seed), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def weights(sizes: Sizes = SMALL, seed: int = 0) -> dict[str, Any]:
    """Tensors by Hugging Face's names: float32, of numbers that float16 has as well."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.ones(shape)
        if len(shape) == 1
        else (torch.randn(shape, generator=generator) * DEVIATION).half().float()
        for name, shape in _shapes(sizes).items()
    }


def config(sizes: Sizes) -> dict[str, Any]:
    """What ``config.json`` holds."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
        **asdict(sizes),
    }


def _shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights; vectors are those of the norms."""
    hidden, inner, vocabulary = sizes.hidden_size, sizes.intermediate_size, sizes.vocab_size
    query = sizes.num_attention_heads * sizes.head_dim
    cached = sizes.num_key_value_heads * sizes.head_dim
    layer = {
        "self_attn.q_proj": (query, hidden),
        "self_attn.k_proj": (cached, hidden),
        "self_attn.v_proj": (cached, hidden),
        "self_attn.o_proj": (hidden, query),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    layers = {
        f"model.layers.{number}.{name}.weight": shape
        for number in range(sizes.num_hidden_layers)
        for name, shape in layer.items()
    }
    return {
        "model.embed_tokens.weight": (vocabulary, hidden),
        **layers,
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocabulary, hidden),
    }
