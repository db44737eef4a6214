"""The contiguous baseline: agreement with the oracle, what it refuses, what it promises."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from random import Random

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from kvassay.harness.attention.build import build
from kvassay.harness.attention.case import Case
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.budget import expect, judge
from kvassay.harness.contract import AttentionBatch, AttentionResult, Capability, PagedAttention
from kvassay.harness.registry import find
from kvassay.impls import dense_attention
from kvassay.impls.dense_attention import DenseAttention
from kvassay.reference.attention import attend

(REGISTERED,) = (entry for entry in find("contiguous") if entry.kind is PagedAttention)
pytestmark = pytest.mark.usefixtures("one_thread")
SEQS = ((9, 3), (4, 0), (0, 1), (2, 5), (13, 1))
REFUSED = ("soft cap", "sinks")


@pytest.fixture
def kernel() -> Kernel:
    return Kernel.of(REGISTERED)


def problem_of(result: AttentionResult, batch: AttentionBatch) -> str | None:
    """What the budget of the declared class has against a result."""
    declared = REGISTERED.declaration
    expected = expect(batch, declared.rounding)
    return judge(result, expected, empty_row=declared.empty_row, lse=True).problem


def bits(result: AttentionResult) -> tuple[list[float], list[float]]:
    return result.output.double().flatten().tolist(), result.lse.flatten().tolist()


# --------------------------------------------------------------------------------- right results


def test_features_and_pairs_of_them_agree_with_the_oracle(
    kernel: Kernel, pairs_of_features: Callable[[Collection[str]], list[Case]]
) -> None:
    """Memory around the output and every input are compared too, by `Kernel.attend`."""
    cases = pairs_of_features(REFUSED)
    assert len(cases) > 20
    for case in cases:
        built = kernel.build(case)
        assert problem_of(kernel.attend(built), built.batch) is None, case
    assert set(kernel.calls) == {"answered"}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_key_too_few_is_seen(kernel: Kernel, dtype: str) -> None:
    """The control of the test above."""
    built = build(Case(((60, 1),), dtype=dtype, cache_dtype=dtype))
    fewer = replace(built.batch, seq_lens=built.batch.seq_lens - 1)
    assert problem_of(kernel.instance(built.batch), built.batch) is None
    assert problem_of(kernel.instance(fewer), built.batch) is not None


@pytest.mark.parametrize(
    "case",
    [
        Case(((3000, 1),)),
        Case(((3000, 1),), contents="offset"),
        Case(((700, 33),), window_left=300),
        Case(((200, 200),), dtype="float16", cache_dtype="float16"),
        Case(((1500, 2),), alibi=True),
        Case(((2000, 1),), cache_dtype="float8_e4m3fn", k_scale="token", v_scale="token"),
    ],
    ids=["decode", "offset", "window", "prefill", "alibi", "float8"],
)
def test_long_rows_agree_with_the_oracle(kernel: Kernel, case: Case) -> None:
    built = kernel.build(case)
    assert problem_of(kernel.attend(built), built.batch) is None


@pytest.mark.parametrize(
    ("changes", "native"),
    [
        ({}, True),
        ({"dtype": "float16", "cache_dtype": "float16", "causal": False}, True),
        ({"window_left": 3}, True),
        ({"k_scale": "tensor"}, False),
        ({"v_scale": "head"}, False),
        ({"alibi": True}, False),
        ({"head_dim_v": 32}, False),
        ({"cache_dtype": "float32"}, False),
    ],
)
def test_a_query_of_16_bits_is_widened_only_where_something_would_be_rounded(
    changes: dict[str, object], native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    real = dense_attention.scaled_dot_product_attention

    def spy(query: Tensor, *arguments: Tensor, **named: object) -> Tensor:
        seen.append(query.dtype)
        return real(query, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(dense_attention, "scaled_dot_product_attention", spy)
    built = build(Case(SEQS, **changes))  # type: ignore[arg-type]
    result = DenseAttention()(built.batch)
    assert result.output.dtype == built.batch.query.dtype
    assert set(seen) == {built.batch.query.dtype if native else torch.float32}


def test_a_float64_query_is_computed_in_float64() -> None:
    built = build(Case(SEQS, dtype="float32", cache_dtype="float32", alibi=True))
    batch = replace(built.batch, query=built.batch.query.double())
    got, exact = DenseAttention()(batch), attend(batch)
    assert got.output.dtype == torch.float64
    assert_close(got.output, exact.output)
    assert not torch.equal(DenseAttention()(built.batch).output.double(), exact.output)


@pytest.mark.parametrize("causal", [False, True])
def test_a_row_that_sees_no_key_is_zero_exactly(kernel: Kernel, causal: bool) -> None:
    built = kernel.build(Case(SEQS, causal=causal, garbage="nan", buffers=True))
    result = kernel.attend(built)
    empty = [3, 4, 5, 6] if causal else [3]
    assert result.output[empty].eq(0).all()
    assert result.lse[empty].isneginf().all()
    others = [row for row in range(10) if row not in empty]
    assert result.lse[others].isfinite().all()


def test_nothing_to_do_is_done(kernel: Kernel) -> None:
    for seqs in ((), ((5, 0), (0, 0))):
        result = kernel.attend(kernel.build(Case(seqs)))
        assert tuple(result.output.shape) == (0, 4, 64)
        assert tuple(result.lse.shape) == (0, 4)


# -------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("changes", [{"softcap": 2.0}, {"sinks": True}])
def test_what_pytorch_has_not_is_refused_and_nothing_written(changes: dict[str, object]) -> None:
    built = build(Case(SEQS, buffers=True, **changes))  # type: ignore[arg-type]
    (name,) = changes
    with pytest.raises(NotImplementedError, match=f"{name}: scaled_dot_product_attention has none"):
        DenseAttention()(built.batch)
    assert built.batch.output.isnan().all()
    assert built.batch.lse.isnan().all()
    DenseAttention()(replace(built.batch, softcap=None, sinks=None))
    assert built.batch.output.isfinite().all()


def test_it_declares_what_it_does_not_refuse() -> None:
    offered = {"causal", "window", "alibi", "scales", "lse", "output", "validates_input"}
    assert REGISTERED.declaration.capabilities == {Capability(name) for name in offered}
    assert isinstance(REGISTERED.build(), DenseAttention)


# ------------------------------------------------------------------------------------------ bits


def test_garbage_that_nobody_may_look_at_changes_no_bit(kernel: Kernel) -> None:
    plain = Case(SEQS, window_left=3, evicted=True)
    for case in (plain, replace(plain, k_scale="token", v_scale="token")):
        shown = {
            garbage: bits(kernel.attend(kernel.build(replace(case, garbage=garbage))))
            for garbage in ("zero", "finite", "largest", "nan", "inf")
        }
        assert all(each == shown["zero"] for each in shown.values())
        other = kernel.build(replace(case, seed=1))
        assert bits(kernel.attend(other)) != shown["zero"]


def test_neither_layout_nor_placement_changes_a_bit(kernel: Kernel) -> None:
    plain = Case(SEQS, head_dim=8, head_dim_v=8, block_size=2)
    shown = bits(kernel.attend(kernel.build(plain)))
    for layout in ("hnd", "padded", "interleaved", "packed", "far"):
        assert bits(kernel.attend(kernel.build(replace(plain, cache_layout=layout)))) == shown
    for rows in ("padded", "fused"):
        assert bits(kernel.attend(kernel.build(replace(plain, row_layout=rows)))) == shown
    for placement in ("identity", "reversed", "high"):
        assert bits(kernel.attend(kernel.build(replace(plain, placement=placement)))) == shown


def test_what_else_is_in_the_batch_changes_no_bit() -> None:
    """A sequence alone, and among three others: over lengths, rows, heads, sizes and types."""
    rng = Random(0)
    for seed in range(30):
        lengths = [rng.choice((1, 2, 7, 16, 33, 64, 100, 257)) for _ in range(4)]
        case = Case(
            tuple((length, min(length, rng.choice((1, 1, 2, 5, 16)))) for length in lengths),
            num_q_heads=2 * rng.choice((1, 3, 4, 8)),
            head_dim=(size := rng.choice((1, 8, 64, 80))),
            head_dim_v=rng.choice((size, 64)),
            block_size=rng.choice((1, 5, 16)),
            dtype=(dtype := rng.choice(("float32", "float16", "bfloat16"))),
            cache_dtype=dtype,
            window_left=rng.choice((None, 10)),
            alibi=rng.choice((False, False, True)),
            seed=seed,
        )
        batch = build(case).batch
        whole, starts = DenseAttention()(batch), batch.query_start.tolist()
        for index in range(4):
            rows = slice(starts[index], starts[index + 1])
            alone = replace(
                batch,
                query=batch.query[rows],
                block_table=batch.block_table[index : index + 1],
                seq_lens=batch.seq_lens[index : index + 1],
                query_start=torch.tensor([0, rows.stop - rows.start]).int(),
            )
            got = DenseAttention()(alone)
            assert torch.equal(got.output, whole.output[rows]), case
            assert torch.equal(got.lse, whole.lse[rows]), case


# --------------------------------------------------------------------------------------- buffers


def test_results_go_where_the_batch_says() -> None:
    batch = build(Case(SEQS)).batch
    new = DenseAttention()(batch)
    output = torch.full((12, 6, 70), torch.nan, dtype=torch.bfloat16)
    lse = torch.full((12, 6), torch.nan)
    inner, row = output[1:11, 1:5, 3:67], lse[1:11, 1:5]
    got = DenseAttention()(replace(batch, output=inner, lse=row))
    assert got.output is inner
    assert got.lse is row
    assert torch.equal(inner, new.output)
    assert torch.equal(row, new.lse)
    assert int(output.isfinite().sum()) == inner.numel()
    assert int(lse.isnan().sum()) == lse.numel() - row.numel()


def test_results_carry_no_gradient() -> None:
    batch = build(Case(SEQS)).batch
    batch.query.requires_grad_()
    assert not DenseAttention()(batch).output.requires_grad
