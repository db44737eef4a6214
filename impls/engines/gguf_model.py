"""A Llama's folder as one GGUF file, which llama.cpp and OpenVINO read.

Rotary pairs lie side by side there, not in two halves, so the rows of the query's and the key's
projection change places. The vocabulary is made up (bytes, a few merges, names without meaning), as
prompts and outputs are token ids.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

BYTES = 256
MERGES = (("t", "h"), ("th", "e"), ("i", "n"), ("in", "g"), ("e", "r"), ("a", "n"), ("o", "u"))
SPECIAL = ("<|bos|>", "<|eos|>")
SMALLEST = BYTES + len(MERGES) + len(SPECIAL)
"""Tokens of a vocabulary."""
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(folder: Path) -> Path:
    """The model in `folder` (Hugging Face's names) as ``model.gguf`` beside it; returns its path.

    `ValueError` for a vocabulary that has no room for bytes.
    """
    size = _config(folder)["vocab_size"]
    if size < SMALLEST:
        raise ValueError(f"vocab_size: expected at least {SMALLEST} for a GGUF, got {size}")
    return _write(folder, "model.gguf", np.float16, _name_bytes)


def write_plain_gguf(folder: Path) -> Path:
    """The same as ``plain.gguf``, for llama.cpp: it rounds what it multiplies to the weights' type.

    So that is float32. Every token is a word in ASCII, and the end of an answer is the model's own.
    """
    return _write(folder, "plain.gguf", np.float32, _name_words)


def _config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
    return config


def _write(folder: Path, name: str, dtype: Any, name_tokens: Callable[..., None]) -> Path:
    import gguf
    from safetensors.numpy import load_file

    path = folder / name
    if path.exists():
        return path
    config = _config(folder)
    unfinished = folder / f"{name}.unfinished"
    writer = gguf.GGUFWriter(unfinished, "llama")
    _describe(writer, config)
    half = dtype is np.float16
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16 if half else gguf.LlamaFileType.ALL_F32)
    name_tokens(writer, gguf, config)
    for title, tensor in load_file(folder / "model.safetensors").items():
        writer.add_tensor(_named(title), _stored(title, tensor, config, dtype))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return unfinished.rename(path)


def _named(name: str) -> str:
    part, _, _ = name.rpartition(".")
    if part in NAMES:
        return f"{NAMES[part]}.weight"
    _, _, number, inner = part.split(".", 3)
    return f"blk.{number}.{NAMES[inner]}.weight"


def _stored(name: str, tensor: Any, config: dict[str, Any], dtype: Any) -> Any:
    if tensor.ndim == 1:
        return tensor
    if name.endswith(("q_proj.weight", "k_proj.weight")):
        half = config["head_dim"] // 2
        pairs = tensor.reshape(-1, 2, half, tensor.shape[1])
        tensor = pairs.swapaxes(1, 2).reshape(tensor.shape)
    return np.ascontiguousarray(tensor.astype(dtype))


def _describe(writer: Any, config: dict[str, Any]) -> None:
    writer.add_name("random llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")


def _name_words(writer: Any, gguf: Any, config: dict[str, Any]) -> None:
    writer.add_token_list([f"word{number}" for number in range(config["vocab_size"])])
    writer.add_token_types([gguf.TokenType.NORMAL] * config["vocab_size"])
    writer.add_token_merges(["w o"])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])


def _name_bytes(writer: Any, gguf: Any, config: dict[str, Any]) -> None:
    tokens = _bytes()
    merged = [*tokens, *("".join(pair) for pair in MERGES)]
    named = [*merged, *SPECIAL]
    named += [f"<|{number}|>" for number in range(len(named), config["vocab_size"])]
    types = [gguf.TokenType.NORMAL] * len(merged)
    types += [gguf.TokenType.CONTROL] * (len(named) - len(merged))
    writer.add_token_list(named)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_bos_token_id(len(merged))
    writer.add_eos_token_id(len(merged) + 1)
    writer.add_pad_token_id(len(merged) + 1)


def _bytes() -> list[str]:
    """A printable character for each byte, as byte-level vocabularies have it."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(BYTES) if byte not in printable]
    return [
        chr(byte) if byte in printable else chr(BYTES + others.index(byte)) for byte in range(BYTES)
    ]
