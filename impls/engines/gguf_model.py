"""A Llama's folder as one GGUF file, which llama.cpp and OpenVINO read: its weights in float16.

Rotary pairs lie side by side there, not in two halves, so the rows of the query's and the key's
projection change places. The vocabulary is made up (bytes, a few merges, names without meaning), as
prompts and outputs are token ids.
"""

from __future__ import annotations

import json
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


def write_gguf(folder: Path, *, words: bool = False) -> Path:
    """The model in `folder` (Hugging Face's names) as ``model.gguf`` beside it; returns its path.

    With `words` every token is a word in ASCII, and the end is the model's own; the file is then
    ``model-words.gguf``. `ValueError` for a vocabulary that has no room for bytes without.
    """
    import gguf
    from safetensors.numpy import load_file

    path = folder / ("model-words.gguf" if words else "model.gguf")
    if path.exists():
        return path
    config = json.loads((folder / "config.json").read_text("utf-8"))
    if not words and config["vocab_size"] < SMALLEST:
        size = config["vocab_size"]
        raise ValueError(f"vocab_size: expected at least {SMALLEST} for a GGUF, got {size}")
    unfinished = folder / f"{path.name}.unfinished"
    writer = gguf.GGUFWriter(unfinished, "llama")
    _describe(writer, gguf, config)
    (_name_words if words else _name_bytes)(writer, gguf, config)
    for name, tensor in load_file(folder / "model.safetensors").items():
        writer.add_tensor(_named(name), _stored(name, tensor, config))
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


def _stored(name: str, tensor: Any, config: dict[str, Any]) -> Any:
    if tensor.ndim == 1:
        return tensor
    if name.endswith(("q_proj.weight", "k_proj.weight")):
        half = config["head_dim"] // 2
        pairs = tensor.reshape(-1, 2, half, tensor.shape[1])
        tensor = pairs.swapaxes(1, 2).reshape(tensor.shape)
    return np.ascontiguousarray(tensor.astype(np.float16))


def _describe(writer: Any, gguf: Any, config: dict[str, Any]) -> None:
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
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
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
