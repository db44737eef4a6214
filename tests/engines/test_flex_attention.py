"""The FlexAttention adapter: right on a small lattice, refusing the rest, convicted when broken."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from kvassay.harness import registry
from kvassay.harness.attention.case import Case, Garbage, Scaling
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.wrong import Refused
from kvassay.harness.budget import Judgement, expect, judge
from kvassay.harness.contract import AttentionBatch
from kvassay.impls.engines import flex_attention as adapter

MIXED = Case(((9, 9), (21, 1), (16, 7), (5, 0), (8, 1)), block_size=4, head_dim=32, head_dim_v=32)
LATTICE = {
    "mixed": MIXED,
    "float32": replace(MIXED, dtype="float32", cache_dtype="float32"),
    "float16": replace(MIXED, dtype="float16", cache_dtype="float16"),
    "not causal": replace(MIXED, causal=False),
    "window": replace(MIXED, window_left=5),
    "window 0": replace(MIXED, window_left=0),
    "evicted": replace(MIXED, window_left=3, evicted=True),
    "soft cap": replace(MIXED, softcap=2.0),
    "ALiBi": replace(MIXED, alibi=True, num_q_heads=6),
    "all of them": replace(MIXED, window_left=6, softcap=3.0, alibi=True, scale=0.3),
    "page of 1": replace(MIXED, block_size=1),
    "page of 5": replace(MIXED, block_size=5),
    "one KV head": replace(MIXED, num_q_heads=7, num_kv_heads=1),
    "narrow values": replace(MIXED, head_dim_v=16),
    "shared blocks": replace(MIXED, seqs=((13, 1), (9, 5), (12, 12)), shared_blocks=2),
    "rows without keys": replace(MIXED, seqs=((0, 1), (2, 4), (6, 1))),
    "no rows": replace(MIXED, seqs=((3, 0),)),
}
REFUSED = {
    "sinks": replace(MIXED, sinks=True),
    "k_scale": replace(MIXED, k_scale=Scaling.TENSOR),
    "v_scale": replace(MIXED, v_scale=Scaling.TENSOR),
    "types": replace(MIXED, cache_dtype="float16"),
    "buffers": replace(MIXED, buffers=True),
    "three heads on two": replace(MIXED, num_q_heads=3),
}


def test_importing_the_adapter_does_not_import_torch() -> None:
    code = "import kvassay.impls.engines.flex_attention, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def kernel() -> Kernel:
    pytest.importorskip("torch.nn.attention.experimental", reason=f"needs {adapter.INSTALL}")
    (registration,) = registry.find("kvassay.impls.engines.flex_attention")
    # On two cores, threads of torch wait for each other most of the time.
    torch.set_num_threads(1)
    return Kernel.of(registration)


def judged(kernel: Kernel, case: Case) -> Judgement:
    built = kernel.build(case)
    result = kernel.attend(built)
    declared = kernel.declaration
    expected = expect(built.batch, declared.rounding)
    return judge(result, expected, empty_row=declared.empty_row, lse=True)


@pytest.mark.parametrize("name", LATTICE)
def test_agrees_with_the_oracle(kernel: Kernel, name: str) -> None:
    assert judged(kernel, LATTICE[name]).problem is None


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_what_it_has_no_means_for(kernel: Kernel, name: str) -> None:
    with pytest.raises(Refused):
        kernel.attend(kernel.build(REFUSED[name]))


def test_refuses_tables_that_torch_cannot_hold(kernel: Kernel) -> None:
    batch: AttentionBatch = kernel.build(replace(MIXED, seqs=((9, 9),))).batch
    table = batch.block_table.clone()
    table[0, 1] = batch.key_cache.shape[0]
    with pytest.raises(ValueError, match="expected blocks 0 to"):
        kernel.instance(replace(batch, block_table=table))
    table[0, 1] = table[0, 0]
    with pytest.raises(NotImplementedError, match="one logical place"):
        kernel.instance(replace(batch, block_table=table))


def test_refuses_a_pool_that_would_not_fit(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "MAX_ELEMENTS", 100)
    with pytest.raises(Refused, match="at most 100 elements"):
        kernel.attend(kernel.build(MIXED))


def test_needs_finite_numbers_where_it_must_not_read(kernel: Kernel) -> None:
    """What tail=finite says: this would fail if any garbage were allowed."""
    assert judged(kernel, replace(MIXED, garbage=Garbage.FINITE)).problem is None
    assert judged(kernel, replace(MIXED, garbage=Garbage.NAN)).problem is not None


def test_leaves_torchs_switch_as_it_was(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn.attention import flex_attention

    for before in (False, True):
        monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", before)
        kernel.attend(kernel.build(MIXED))
        assert flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG is before


def _without_lengths(tables: Any) -> None:
    """Mask and scores forget where a sequence ends, as torch's own do unless they are told."""
    mask, score = tables.get_mask_mod, tables.get_score_mod
    tables.get_mask_mod = lambda mask_mod, kv_len: mask(mask_mod)
    tables.get_score_mod = lambda score_mod, kv_len: score(score_mod)


def _with_a_page_of_another(tables: Any) -> None:
    """Torch finds a page of the second sequence in the first one's table too."""
    page = tables.page_table[1, 0]
    tables.physical_to_logical[0, page] = 0


@pytest.mark.parametrize(
    ("spoil", "case"),
    [
        (_without_lengths, LATTICE["not causal"]),
        (_with_a_page_of_another, LATTICE["mixed"]),
    ],
)
def test_a_planted_fault_is_convicted(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, spoil: Any, case: Case
) -> None:
    assert judged(kernel, case).problem is None
    stock = kernel.instance._tables

    def spoiled(*arguments: Any) -> Any:
        tables = stock(*arguments)
        spoil(tables)
        return tables

    monkeypatch.setattr(kernel.instance, "_tables", spoiled)
    assert judged(kernel, case).problem is not None


def test_repeats_to_the_bit(kernel: Kernel) -> None:
    first, second = (kernel.attend(kernel.build(MIXED)) for _ in range(2))
    assert torch.equal(first.output, second.output)
    assert torch.equal(first.lse, second.lse)
