"""Real models in the rig: their answers are those of the dense model, and what is wrong shows.

Needs transformers; what needs none is tested elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kvassay.harness.circumstances import Checked
from kvassay.harness.contract import (
    AttentionBatch,
    AttentionResult,
    CacheManager,
    Capability,
    ContractError,
    Declaration,
    PagedAttention,
    Rounding,
)
from kvassay.harness.registry import Registration, find
from kvassay.harness.rig.checking import Answer, Met, Subject
from kvassay.harness.rig.conformance import Branched, Check, Preempted, Together, Warm
from kvassay.harness.rig.dense import DenseReference
from kvassay.harness.rig.device import Work
from kvassay.harness.rig.jobs import Job
from kvassay.harness.rig.language import LanguageModel, Logits, load, random_llama
from kvassay.harness.rig.rig import Rig
from kvassay.impls.faulty.rig import FAULTS

pytest.importorskip("transformers", reason="transformers is not here: pip install 'kvassay[rig]'")
pytestmark = pytest.mark.filterwarnings("default")

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "initializer_range": 0.15,
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def registered(name: str, kind: type) -> Registration:
    (entry,) = (found for found in find(name) if found.kind is kind)
    return entry


def subject(
    model: Any, kernel: Any = None, rig: type[Rig] = Rig, manager: str = "radix"
) -> Subject:
    entry = registered("torch", PagedAttention)
    attend, declared = kernel or entry.build(), entry.declaration

    def device(num_blocks: int, block_size: int) -> LanguageModel:
        return LanguageModel(model, attend, declared, num_blocks, block_size)

    reference = DenseReference(model, declared)
    return Subject(registered(manager, CacheManager), device, reference, rig)


def passed(checked: Checked[Met]) -> bool:
    assert checked.problem is None, checked.problem
    return checked.passed


def mistral() -> Any:
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM(MistralConfig(**SIZES, sliding_window=8)).eval()


def gemma() -> Any:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    limits = {"sliding_window": 8, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 4}
    return Gemma2ForCausalLM(Gemma2Config(**SIZES, **limits)).eval()


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 96}
    return GPT2LMHeadModel(GPT2Config(**sizes, initializer_range=0.15)).eval()


def half() -> Any:
    return random_llama().to(torch.bfloat16)


@pytest.mark.parametrize("make", [mistral, gemma, gpt2, half], ids=lambda make: make.__name__)
def test_models_of_other_shapes_pass(make: Any) -> None:
    torch.manual_seed(1)
    assert passed(Warm()(subject(make())))


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("positions-start-behind-the-hit", Warm()),
        ("copies-not-done", Branched()),
        ("resumed-without-kv", Preempted()),
        ("answers-sorted-by-name", Together()),
    ],
    ids=lambda value: value if isinstance(value, str) else value.circumstance,
)
def test_a_fault_of_the_engine_shows_in_the_logits(name: str, check: Check) -> None:
    model = random_llama()
    assert passed(check(subject(model)))
    checked = check(subject(model, rig=FAULTS[name].build))
    assert not checked.crashed
    assert "error" in str(checked.problem)


def test_a_kernel_that_loses_a_key_is_convicted() -> None:
    right = registered("torch", PagedAttention).build()

    def forgetful(batch: AttentionBatch) -> AttentionResult:
        """The first key of a sequence of more than twelve is another one's."""
        table = batch.block_table.clone()
        table[batch.seq_lens > 12, 0] = table[0, -1]
        result: AttentionResult = right(replace(batch, block_table=table))
        return result

    checked = Together()(subject(random_llama(), kernel=forgetful))
    assert "row error" in str(checked.problem)


def alone(model: Any, tokens: tuple[int, ...]) -> torch.Tensor:
    entry = registered("torch", PagedAttention)
    device = LanguageModel(model, entry.build(), entry.declaration, 16, 4)
    table = tuple(range(100, 100 - (len(tokens) + 3) // 4, -1))
    work = Work("a", tokens, 0, range(len(tokens)), table, True)
    return device.run((), [work])["a"].values


def test_logits_react_to_every_token_of_the_context() -> None:
    model, tokens = random_llama(), tuple(range(1, 25))
    before = alone(model, tokens)
    for position in range(len(tokens)):
        changed = alone(model, (*tokens[:position], 77, *tokens[position + 1 :]))
        assert float((changed - before).abs().max()) > 0.01


def test_the_budget_sees_an_error_and_a_wrong_token() -> None:
    model, prompt = random_llama(), (3, 1, 4, 1, 5, 9, 2, 6)
    declared = registered("torch", PagedAttention).declaration
    reference = DenseReference(model, declared)
    logits = alone(model, prompt)
    best, second = (token for _, token in Logits(logits).best(2))
    job = Job("j", prompt, 1)
    assert reference.problem([Answer(job, (best,), (Logits(logits),))]) is None
    off = logits + 1e-3 * logits.abs().max()
    assert "row error" in str(reference.problem([Answer(job, (best,), (Logits(off),))]))
    off = logits.clone()
    off[50] += 3e-5
    assert "element error" in str(reference.problem([Answer(job, (best,), (Logits(off),))]))
    assert "below" in str(reference.problem([Answer(job, (second,), (Logits(logits),))]))
    assert "nothing" in str(reference.problem([Answer(job, (best,), (None,))]))
    assert reference.problem([Answer(replace(job, width=2), (second,), (Logits(logits),))]) is None


def test_equal_scores_rank_by_token() -> None:
    ranked = Logits(torch.tensor([0.0, 2.0, 2.0, 1.0])).best(3)
    assert [token for _, token in ranked] == [1, 2, 3]
    assert ranked[0][0] == ranked[1][0] < 0


def test_a_model_is_loaded_from_a_folder(tmp_path: Path) -> None:
    model = random_llama(3)
    model.save_pretrained(tmp_path)
    tokens = (5, 6, 7)
    assert torch.equal(alone(load(str(tmp_path)), tokens), alone(model, tokens))
    assert not torch.equal(alone(random_llama(4), tokens), alone(model, tokens))


def test_what_a_kernel_does_not_offer_is_refused() -> None:
    build = registered("torch", PagedAttention).build
    with pytest.raises(ContractError, match="CAUSAL"):
        LanguageModel(random_llama(), build(), Declaration(), 4, 4)
    plain = Declaration(capabilities=frozenset({Capability.CAUSAL}))
    device = LanguageModel(mistral(), build(), plain, 4, 4)
    with pytest.raises(ContractError, match="window_left: a kernel needs WINDOW"):
        device.run((), [Work("a", (1, 2), 0, range(2), (0,), True)])
    tf32 = Declaration(rounding=Rounding.TF32)
    with pytest.raises(ContractError, match="tf32"):
        DenseReference(random_llama(), tf32)
