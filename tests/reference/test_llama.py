"""The Llama without a cache: against the library's, and by what must not matter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kvassay.harness.engines.random_llama import Sizes, config, weights, write_model
from kvassay.reference.llama import Llama

SIZES = Sizes(
    vocab_size=64,
    hidden_size=64,
    intermediate_size=96,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
)
TOKENS = tuple((7 * index + index * index) % 64 for index in range(40))


def model(dtype: torch.dtype = torch.float64) -> Llama:
    return Llama(config(SIZES), weights(SIZES), dtype)


def test_later_tokens_do_not_matter_and_earlier_ones_do() -> None:
    logits = model().logits(TOKENS)
    assert logits.shape == (1, 40, 64)
    assert torch.allclose(model().logits(TOKENS[:23]), logits[:, :23], atol=1e-12)
    changed = model().logits((TOKENS[0] + 1, *TOKENS[1:]))
    assert ((changed - logits).abs().amax(dim=-1) > 1e-3).all()


def test_the_first_row_wanted_and_copies() -> None:
    whole = model().logits(TOKENS)
    assert torch.allclose(model().logits(TOKENS, first=37), whole[:, 37:], atol=1e-12)
    twice = model().logits(TOKENS, copies=2)
    assert torch.allclose(twice, whole.expand(2, -1, -1), atol=1e-12)


def test_another_type_is_off_by_its_rounding() -> None:
    off = (model(torch.float32).logits(TOKENS).double() - model().logits(TOKENS)).abs().max()
    assert 0 < off < 1e-3


def test_rounding_is_asked_of_every_layer() -> None:
    seen = []
    model().logits(TOKENS, rounding=lambda output: seen.append(output.shape) or output)  # type: ignore[func-returns-value]
    assert len(seen) == 1 + 2 * 9 + 2


def test_it_is_a_llama() -> None:
    with pytest.raises(ValueError, match="expected llama, got 'mamba'"):
        Llama({"model_type": "mamba"}, {})


def test_it_is_the_librarys_model(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    folder = write_model(tmp_path, SIZES)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor([TOKENS])).logits
    # Its angles are computed in float32.
    assert torch.allclose(Llama.load(folder).logits(TOKENS), expected, atol=1e-4, rtol=0)
    assert not torch.allclose(Llama.load(folder).logits(TOKENS[::-1]), expected, atol=1e-1)
