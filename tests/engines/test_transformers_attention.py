"""The adapters of transformers' paged attention: right on a small lattice, convicted when broken.

What the engine itself has wrong is shown with its own functions alone: refused by the adapter, or
documented as a deviation.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvassay.harness import registry
from kvassay.harness.attention.case import Case, Contents, Garbage, Scaling
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.wrong import Refused
from kvassay.harness.budget import Judgement, expect, judge
from kvassay.impls.engines import transformers_attention as adapter

NAMES = ("transformers-eager", "transformers-sdpa")
MIXED = Case(
    ((9, 9), (21, 1), (16, 7), (5, 0), (8, 1)),
    block_size=4,
    head_dim=32,
    head_dim_v=32,
    garbage=Garbage.NAN,
)
LATTICE = {
    "mixed": MIXED,
    "float32": replace(MIXED, dtype="float32", cache_dtype="float32"),
    "float16": replace(MIXED, dtype="float16", cache_dtype="float16"),
    "prefills only": replace(MIXED, seqs=((9, 9), (4, 4))),
    "one decode row": replace(MIXED, seqs=((9, 1),)),
    "window": replace(MIXED, window_left=5),
    "window beyond the chunk": replace(MIXED, window_left=17),
    "evicted": replace(MIXED, window_left=3, evicted=True),
    "window 0 at decode": replace(MIXED, seqs=((9, 1), (4, 1)), window_left=0),
    "scale": replace(MIXED, scale=0.3),
    "page of 1": replace(MIXED, block_size=1),
    "page of 5": replace(MIXED, block_size=5, window_left=7),
    "odd head size": replace(MIXED, head_dim=13, head_dim_v=13),
    "one KV head": replace(MIXED, num_q_heads=7, num_kv_heads=1),
    "shared blocks": replace(MIXED, seqs=((13, 1), (9, 5), (12, 12)), shared_blocks=2),
    "no rows": replace(MIXED, seqs=((3, 0),)),
}
REFUSED = {
    "not causal": replace(MIXED, causal=False),
    "soft cap": replace(MIXED, softcap=5.0),
    "ALiBi": replace(MIXED, alibi=True),
    "k_scale": replace(MIXED, k_scale=Scaling.TENSOR),
    "v_scale": replace(MIXED, v_scale=Scaling.TENSOR),
    "types": replace(MIXED, cache_dtype="float16"),
    "narrow values": replace(MIXED, head_dim_v=16),
    "buffers": replace(MIXED, buffers=True),
    "window of one key": replace(MIXED, window_left=0),
    "more queries than keys": replace(MIXED, seqs=((2, 3),)),
    "no keys": replace(MIXED, seqs=((0, 1),)),
    "three heads on two": replace(MIXED, num_q_heads=3),
}
FAR_LOGITS = replace(LATTICE["float16"], contents=Contents.HUGE)


def test_importing_the_adapter_does_not_import_the_engine() -> None:
    code = "import kvassay.impls.engines.transformers_attention, sys; "
    code += "sys.exit(not {'torch', 'transformers'}.isdisjoint(sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True)


def kernel_of(name: str) -> Kernel:
    pytest.importorskip("transformers", reason=f"needs transformers: {adapter.INSTALL}")
    found = {entry.name: entry for entry in registry.find(adapter.__name__)}
    # On two cores, threads of torch wait for each other most of the time.
    torch.set_num_threads(1)
    return Kernel.of(found[name])


@pytest.fixture(params=NAMES)
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return kernel_of(request.param)


def judged(kernel: Kernel, case: Case) -> Judgement:
    built = kernel.build(case)
    result = kernel.attend(built)
    declared = kernel.declaration
    expected = expect(built.batch, declared.rounding)
    return judge(result, expected, empty_row=declared.empty_row, lse=False)


@pytest.mark.parametrize("name", LATTICE)
def test_agrees_with_the_oracle(kernel: Kernel, name: str) -> None:
    assert judged(kernel, LATTICE[name]).problem is None


@pytest.mark.parametrize("window", [None, 5])
def test_eager_attends_to_sinks(window: int | None) -> None:
    case = replace(MIXED, sinks=True, window_left=window)
    assert judged(kernel_of("transformers-eager"), case).problem is None
    with pytest.raises(Refused, match="sinks"):
        judged(kernel_of("transformers-sdpa"), case)


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_what_the_engine_has_no_place_for(kernel: Kernel, name: str) -> None:
    with pytest.raises(Refused):
        kernel.attend(kernel.build(REFUSED[name]))


def test_repeats_to_the_bit(kernel: Kernel) -> None:
    first, second = (kernel.attend(kernel.build(MIXED)).output for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("garbage", [Garbage.FINITE, Garbage.INF, Garbage.ZERO])
def test_any_garbage_may_stand_where_it_must_not_read(kernel: Kernel, garbage: Garbage) -> None:
    with_nan, other = (
        kernel.attend(kernel.build(replace(MIXED, garbage=each))).output
        for each in (Garbage.NAN, garbage)
    )
    assert torch.equal(with_nan, other)


# ------------------------------------------------------------------------------- planted faults


def _one_key_too_many(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = kernel.instance._engine
    stock = engine.build_attention_mask

    def wider(mask: Any, query_starts: Any, key_starts: Any, window: int) -> None:
        stock(mask, query_starts, key_starts, window + 1)

    monkeypatch.setattr(engine, "build_attention_mask", wider)


def _pages_swapped(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.generation.continuous_batching.cache_allocators import (
        FullAttentionCacheAllocator,
    )

    stock = FullAttentionCacheAllocator.get_read_indices

    def swapped(pool: Any, name: str, past: int, queries: int) -> Any:
        table = pool.block_table[name]
        pool.block_table[name] = [*table[1::-1], *table[2:]]
        try:
            return stock(pool, name, past, queries)
        finally:
            pool.block_table[name] = table

    monkeypatch.setattr(FullAttentionCacheAllocator, "get_read_indices", swapped)


@pytest.mark.parametrize(
    ("plant", "case"),
    [(_one_key_too_many, LATTICE["window"]), (_pages_swapped, LATTICE["mixed"])],
)
def test_a_planted_fault_is_convicted(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, plant: Any, case: Case
) -> None:
    assert judged(kernel, case).problem is None
    plant(kernel, monkeypatch)
    assert judged(kernel, case).problem is not None


# ---------------------------------------------------------------------- what the engine has wrong


def test_a_window_of_one_key_is_none_for_the_engine(kernel: Kernel) -> None:
    """Hence the refusal."""
    masks = []
    for window in (1, 2):
        masks.append(torch.zeros(1, 1, 3, 3))
        kernel.instance._engine.build_attention_mask(masks[-1], [0, 3], [0, 3], window)
    seen_of_one, seen_of_two = ((mask[0, 0] == 0).int().tolist() for mask in masks)
    assert seen_of_two == [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    assert seen_of_one == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_eager_drops_a_soft_cap() -> None:
    """Hence the refusal."""
    function = kernel_of("transformers-eager").instance._engine.attention["paged|eager"]
    query, key, value = 9 * torch.randn(3, 1, 1, 4, 16)
    module = SimpleNamespace(num_key_value_groups=1)
    capped, plain = (
        function(module, query, key, value, None, scaling=1.0, **more)[0]
        for more in ({"softcap": 1.0}, {})
    )
    assert torch.equal(capped, plain)


def test_a_finite_mask_lets_large_float16_logits_through(kernel: Kernel) -> None:
    assert judged(kernel, FAR_LOGITS).problem is not None
    assert (
        judged(kernel, replace(FAR_LOGITS, dtype="bfloat16", cache_dtype="bfloat16")).problem
        is None
    )
    engine = kernel.instance._engine
    outputs = []
    for logit in (60000.0, 30000.0):
        query, key, value = torch.zeros(3, 1, 1, 2, 16, dtype=torch.float16)
        query[..., 0] = key[:, :, 1, 0] = logit**0.5
        key[:, :, 0, 0] = -(logit**0.5)
        value[:, :, 1] = 1.0
        mask = torch.full((1, 1, 2, 2), torch.finfo(torch.float16).min, dtype=torch.float16)
        # Two requests of one token each: the first one sees the first key, whose value is 0.
        engine.build_attention_mask(mask, [0, 1, 2], [0, 1, 2], 1)
        module = SimpleNamespace(num_key_value_groups=1)
        function = engine.attention[kernel.instance.function]
        output, _ = function(module, query, key, value, mask, scaling=1.0, is_causal=False)
        outputs.append(output[0, 0, 0, 0].item())
    assert outputs == [1.0, 0.0]
