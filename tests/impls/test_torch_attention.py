"""The kernel in plain PyTorch: agreement with the oracle, and what of the bits it promises."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from random import Random

import pytest
import torch
from torch.testing import assert_close

from kvassay.harness.attention.build import build
from kvassay.harness.attention.case import Case
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.budget import expect, judge
from kvassay.harness.contract import AttentionBatch, AttentionResult, Capability
from kvassay.harness.registry import find
from kvassay.impls.torch_attention import TorchAttention
from kvassay.reference.attention import attend

(REGISTERED,) = find("torch")
pytestmark = pytest.mark.usefixtures("one_thread")
SEQS = ((9, 3), (4, 0), (0, 1), (2, 5), (13, 1))


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
    cases = pairs_of_features(())
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
        Case(((3000, 1),), softcap=2.0),
        Case(((700, 33),), window_left=300, alibi=True),
        Case(((1500, 2),), sinks=True, dtype="float32", cache_dtype="float32"),
        Case(((2000, 1),), cache_dtype="float8_e4m3fn", k_scale="token", v_scale="token"),
    ],
    ids=["decode", "prefill", "float32", "float8"],
)
def test_long_rows_agree_with_the_oracle(kernel: Kernel, case: Case) -> None:
    built = kernel.build(case)
    assert problem_of(kernel.attend(built), built.batch) is None


def test_a_float64_query_is_computed_in_float64() -> None:
    built = build(Case(SEQS, dtype="float32", cache_dtype="float32", softcap=3.0, alibi=True))
    batch = replace(built.batch, query=built.batch.query.double())
    got, exact = TorchAttention()(batch), attend(batch)
    assert got.output.dtype == torch.float64
    assert_close(got.output, exact.output)
    assert not torch.equal(TorchAttention()(built.batch).output.double(), exact.output)


@pytest.mark.parametrize("sinks", [False, True])
def test_a_row_that_sees_no_key_is_zero_exactly(kernel: Kernel, sinks: bool) -> None:
    built = kernel.build(Case(SEQS, sinks=sinks, garbage="nan", buffers=True))
    result = kernel.attend(built)
    empty = [3, 4, 5, 6]
    assert result.output[empty].eq(0).all()
    lse = built.batch.sinks if sinks else torch.tensor(-torch.inf)
    assert torch.equal(result.lse[empty], lse.expand(4, 4))
    assert result.lse[[0, 1, 2, 7, 8, 9]].isfinite().all()


def test_a_sink_far_from_all_logits_takes_all_or_nothing() -> None:
    batch = build(Case(SEQS)).batch
    high = TorchAttention()(replace(batch, sinks=torch.full((4,), 500.0)))
    assert high.output.eq(0).all()
    assert high.lse.eq(500).all()
    low = TorchAttention()(replace(batch, sinks=torch.full((4,), -1e30)))
    assert torch.equal(low.output, TorchAttention()(batch).output)


def test_nothing_to_do_is_done(kernel: Kernel) -> None:
    for seqs in ((), ((5, 0), (0, 0))):
        result = kernel.attend(kernel.build(Case(seqs)))
        assert tuple(result.output.shape) == (0, 4, 64)
        assert tuple(result.lse.shape) == (0, 4)


# ----------------------------------------------------------------------------------------- bits


def test_garbage_that_nobody_may_look_at_changes_no_bit(kernel: Kernel) -> None:
    case = Case(SEQS, window_left=3, evicted=True, k_scale="token", v_scale="token")
    shown = {
        garbage: bits(kernel.attend(kernel.build(replace(case, garbage=garbage))))
        for garbage in ("zero", "finite", "largest", "nan", "inf")
    }
    assert all(each == shown["zero"] for each in shown.values())
    other = kernel.build(replace(case, seed=1))
    assert bits(kernel.attend(other)) != shown["zero"]


LAYOUTS = ("nhd", "hnd", "padded", "interleaved", "packed", "far")


def test_neither_layout_nor_placement_changes_a_bit(kernel: Kernel) -> None:
    for dtype in ("bfloat16", "float32"):
        plain = Case(SEQS, head_dim=8, head_dim_v=8, block_size=2, dtype=dtype, cache_dtype=dtype)
        shown = bits(kernel.attend(kernel.build(plain)))
        for layout in LAYOUTS:
            case = replace(plain, cache_layout=layout)
            assert bits(kernel.attend(kernel.build(case))) == shown, layout
        for rows in ("padded", "fused"):
            case = replace(plain, row_layout=rows)
            assert bits(kernel.attend(kernel.build(case))) == shown, rows
        for placement in ("identity", "reversed", "high"):
            case = replace(plain, placement=placement)
            assert bits(kernel.attend(kernel.build(case))) == shown, placement


def part(batch: AttentionBatch, order: list[int]) -> tuple[AttentionBatch, list[int]]:
    """Some sequences of a batch in another order, and which rows they had before."""
    starts = batch.query_start.tolist()
    rows = [row for b in order for row in range(starts[b], starts[b + 1])]
    counts = [0, *(starts[b + 1] - starts[b] for b in order)]
    chosen = replace(
        batch,
        query=batch.query[rows],
        block_table=batch.block_table[order],
        seq_lens=batch.seq_lens[order],
        query_start=torch.tensor(counts).cumsum(0).int(),
    )
    return chosen, rows


def test_what_else_is_in_the_batch_changes_no_bit() -> None:
    """Alone, in any order and among others: over lengths, rows, heads, sizes and types."""
    rng = Random(0)
    for seed in range(30):
        lengths = [rng.choice((1, 2, 7, 16, 33, 64, 100, 257)) for _ in range(4)]
        group = rng.choice((1, 3, 4, 8))
        case = Case(
            tuple((length, min(length, rng.choice((1, 1, 2, 5, 16)))) for length in lengths),
            num_q_heads=2 * group,
            head_dim=rng.choice((1, 8, 64, 80)),
            head_dim_v=rng.choice((8, 64)),
            block_size=rng.choice((1, 5, 16)),
            dtype=(dtype := rng.choice(("float32", "float16", "bfloat16"))),
            cache_dtype=dtype,
            window_left=rng.choice((None, 10)),
            seed=seed,
        )
        batch = build(case).batch
        whole = TorchAttention()(batch)
        for order in ([0], [3], [2, 1, 0, 3], [1, 1]):
            chosen, rows = part(batch, order)
            got = TorchAttention()(chosen)
            assert torch.equal(got.output, whole.output[rows]), case
            assert torch.equal(got.lse, whole.lse[rows]), case


# -------------------------------------------------------------------------------------- buffers


def test_results_go_where_the_batch_says() -> None:
    batch = build(Case(SEQS)).batch
    new = TorchAttention()(batch)
    output = torch.full((12, 6, 70), torch.nan, dtype=torch.bfloat16)
    lse = torch.full((12, 6), torch.nan)
    inner, row = output[1:11, 1:5, 3:67], lse[1:11, 1:5]
    got = TorchAttention()(replace(batch, output=inner, lse=row))
    assert got.output is inner
    assert got.lse is row
    assert torch.equal(inner, new.output)
    assert torch.equal(row, new.lse)
    assert int(output.isfinite().sum()) == inner.numel()
    assert int(lse.isnan().sum()) == lse.numel() - row.numel()


@pytest.mark.parametrize("name", ["output", "lse"])
def test_one_buffer_does_without_the_other(name: str) -> None:
    batch = build(Case(SEQS)).batch
    new = TorchAttention()(batch)
    buffer = torch.full_like(getattr(new, name), torch.nan)
    got = TorchAttention()(replace(batch, **{name: buffer}))
    assert getattr(got, name) is buffer
    assert bits(got) == bits(new)


def test_results_carry_no_gradient() -> None:
    batch = build(Case(SEQS)).batch
    batch.query.requires_grad_()
    assert not TorchAttention()(batch).output.requires_grad


def test_it_declares_all_that_a_kernel_can_offer() -> None:
    assert REGISTERED.declaration.has(
        *(Capability.CAUSAL, Capability.WINDOW, Capability.SOFTCAP, Capability.ALIBI),
        *(Capability.SINKS, Capability.SCALES, Capability.LSE, Capability.OUTPUT),
        Capability.VALIDATES_INPUT,
    )
    assert isinstance(REGISTERED.build(), TorchAttention)
