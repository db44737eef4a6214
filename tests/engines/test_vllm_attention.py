"""The adapter of vLLM's CPU attention: right on a small lattice, convicted when broken.

What the engine itself has wrong is shown with its own operators alone, beside the deviation that
documents it.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from kvassay.harness import registry
from kvassay.harness.attention.case import CacheLayout, Case, Contents, Garbage, RowLayout, Scaling
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.wrong import Refused
from kvassay.harness.budget import Judgement, expect, judge
from kvassay.impls.engines import vllm_attention as adapter

MIXED = Case(((40, 40), (75, 1), (64, 7), (5, 0), (33, 1)), block_size=32)
EIGHT_BIT = replace(MIXED, k_scale=Scaling.TENSOR, v_scale=Scaling.TENSOR)
LATTICE = {
    "mixed": MIXED,
    "float32": replace(MIXED, dtype="float32", cache_dtype="float32"),
    "float16": replace(MIXED, dtype="float16", cache_dtype="float16"),
    "not causal": replace(MIXED, causal=False),
    "window": replace(MIXED, window_left=13),
    "window 0": replace(MIXED, window_left=0),
    "evicted": replace(MIXED, window_left=3, evicted=True),
    "soft cap": replace(MIXED, softcap=5.0),
    "ALiBi": replace(MIXED, alibi=True, num_q_heads=6),
    "sinks": replace(MIXED, sinks=True),
    "all of them": replace(MIXED, window_left=6, softcap=3.0, alibi=True, sinks=True, scale=0.3),
    "blocks of 96": replace(MIXED, block_size=96),
    "head size 80": replace(MIXED, head_dim=80, head_dim_v=80),
    "seven heads on one": replace(MIXED, num_q_heads=7, num_kv_heads=1),
    "keys in e4m3": replace(EIGHT_BIT, cache_dtype="float8_e4m3fn"),
    "keys in e5m2": replace(EIGHT_BIT, cache_dtype="float8_e5m2", dtype="float16"),
    "heads outside": replace(MIXED, cache_layout=CacheLayout.HND),
    "fused rows": replace(MIXED, row_layout=RowLayout.FUSED),
    "given buffers": replace(MIXED, buffers=True),
    "shared blocks": replace(MIXED, seqs=((70, 1), (65, 5), (64, 1)), shared_blocks=2),
    "a row without keys": replace(MIXED, seqs=((0, 1), (6, 1))),
    "no rows": replace(MIXED, seqs=((3, 0),)),
}
REFUSED = {
    "blocks of 16": replace(MIXED, block_size=16),
    "head size 48": replace(MIXED, head_dim=48, head_dim_v=48),
    "narrow values": replace(MIXED, head_dim_v=32),
    "types": replace(MIXED, cache_dtype="float16"),
    "int8 cache": replace(EIGHT_BIT, cache_dtype="int8"),
    "scale of a 16-bit cache": replace(MIXED, k_scale=Scaling.TENSOR),
    "scale by head": replace(LATTICE["keys in e4m3"], v_scale=Scaling.HEAD),
    "scale by token": replace(LATTICE["keys in e4m3"], k_scale=Scaling.TOKEN),
    "symmetric window": replace(MIXED, causal=False, window_left=3),
    "more queries than keys": replace(MIXED, seqs=((2, 3),)),
    "buffers with gaps": replace(MIXED, buffers=True, row_layout=RowLayout.PADDED),
    "three heads on two": replace(MIXED, num_q_heads=3),
}
TOO_LARGE = replace(MIXED, softcap=1.0, contents=Contents.HUGE)


def test_importing_the_adapter_does_not_import_vllm() -> None:
    code = "import kvassay.impls.engines.vllm_attention, sys; "
    code += "sys.exit(not {'torch', 'vllm'}.isdisjoint(sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def kernel() -> Kernel:
    pytest.importorskip("vllm", reason=f"needs vLLM: {adapter.INSTALL}")
    (registration,) = registry.find(adapter.__name__)
    # On two cores, threads of torch wait for each other most of the time.
    torch.set_num_threads(1)
    return Kernel.of(registration)


def judged(kernel: Kernel, case: Case) -> Judgement:
    built = kernel.build(case)
    result = kernel.attend(built)
    declared = kernel.declaration
    expected = expect(built.batch, declared.rounding)
    return judge(result, expected, empty_row=declared.empty_row, lse=False)


@pytest.mark.parametrize("name", LATTICE)
def test_agrees_with_the_oracle(kernel: Kernel, name: str) -> None:
    assert judged(kernel, LATTICE[name]).problem is None


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_what_the_engine_does_not_offer(kernel: Kernel, name: str) -> None:
    with pytest.raises(Refused):
        kernel.attend(kernel.build(REFUSED[name]))


def test_refuses_blocks_that_do_not_exist(kernel: Kernel) -> None:
    batch = kernel.build(MIXED).batch
    table = batch.block_table.clone()
    table[1, 2] = batch.key_cache.shape[0]
    with pytest.raises(ValueError, match="expected blocks 0 to"):
        kernel.instance(replace(batch, block_table=table))


def test_needs_finite_numbers_where_it_must_not_read(kernel: Kernel) -> None:
    """What tail=finite says: this would fail if any garbage were allowed."""
    assert judged(kernel, replace(MIXED, garbage=Garbage.FINITE)).problem is None
    assert judged(kernel, replace(MIXED, garbage=Garbage.NAN)).problem is not None


def test_leaves_a_row_without_keys_as_it_was(kernel: Kernel) -> None:
    """What empty_row=untouched says."""
    batch = kernel.build(LATTICE["a row without keys"]).batch
    output = torch.full_like(batch.query, 7.0)
    kernel.instance(replace(batch, output=output))
    assert (output[0] == 7.0).all()
    assert (output[1] != 7.0).all()


def test_repeats_to_the_bit(kernel: Kernel) -> None:
    first, second = (kernel.attend(kernel.build(MIXED)).output for _ in range(2))
    assert torch.equal(first, second)


# ------------------------------------------------------------------------------- planted faults


def _a_slot_not_written(operators: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stock = operators.cpu_attn_reshape_and_cache

    def but_one(*arguments: Any, **named: Any) -> None:
        slots = arguments[4].clone()
        slots[8::32] = -1
        stock(*arguments[:4], slots, *arguments[5:], **named)

    monkeypatch.setattr(operators, "cpu_attn_reshape_and_cache", but_one)


def _one_key_too_many(operators: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stock = operators.cpu_attention_with_kv_cache

    def wider(**named: Any) -> None:
        stock(**named | {"sliding_window": named["sliding_window"] + 1})

    monkeypatch.setattr(operators, "cpu_attention_with_kv_cache", wider)


@pytest.mark.parametrize(
    ("plant", "case"),
    [(_a_slot_not_written, LATTICE["mixed"]), (_one_key_too_many, LATTICE["window"])],
)
def test_a_planted_fault_is_convicted(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, plant: Any, case: Case
) -> None:
    assert judged(kernel, case).problem is None
    plant(kernel.instance._vllm.operators, monkeypatch)
    assert judged(kernel, case).problem is not None


# ----------------------------------------------------------------------- documented deviation


def test_a_soft_cap_of_large_logits_is_not_a_number_for_the_engine(kernel: Kernel) -> None:
    problem = judged(kernel, TOO_LARGE).problem
    assert problem is not None
    assert "not finite" in problem
    engine = kernel.instance._vllm
    ends = {logit: _capped(engine, logit).isfinite().all().item() for logit in (80.0, 100.0)}
    assert ends == {80.0: True, 100.0: False}


def _capped(engine: Any, logit: float) -> Any:
    """One query on two keys with soft cap 1, by the engine's operators."""
    one = torch.tensor([1], dtype=torch.int32)
    starts, two = torch.tensor([0, 1], dtype=torch.int32), 2 * one
    key_cache, value_cache = torch.zeros(1, 1, 64, 32).chunk(2, dim=2)
    row = torch.zeros(1, 1, 32)
    row[..., 0] = logit
    key = torch.zeros(2, 1, 32)
    key[1, 0, 0] = 1.0
    slots = torch.arange(2)
    engine.operators.cpu_attn_reshape_and_cache(key, key, key_cache, value_cache, slots, "vec")
    schedule = engine.operators.cpu_attn_get_scheduler_metadata(
        1, 1, 1, 32, two, torch.float32, starts, True, -1, "vec", True
    )
    output = torch.zeros(1, 1, 32)
    engine.operators.cpu_attention_with_kv_cache(
        row, key_cache, value_cache, output, starts, two, 1.0, True, None, -1,
        torch.zeros(1, 1, dtype=torch.int32), 1.0, schedule, None,
    )  # fmt: skip
    return output
