"""The budget: the model agrees with emulated kernels, every statistic convicts its own fault."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvassay.harness.attention.build import build
from kvassay.harness.attention.calibration import (
    CORRECT,
    FAULTS,
    PLAIN,
    Point,
    batch_of,
    hostile_rows,
)
from kvassay.harness.attention.case import CacheLayout, Case, Contents, Placement, Scaling
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.emulated import Fault, Strategy, emulate
from kvassay.harness.attention.gain import gain_of, stored
from kvassay.harness.attention.hostile import CONTENTS, STRATEGIES, hostile
from kvassay.harness.attention.open_softmax import OpenSoftmax, open_softmax
from kvassay.harness.attention.precision import (
    HALF_SPACING,
    MODELLED,
    NEAREST,
    in_effect,
    precision,
)
from kvassay.harness.attention.rounding_error import error_of
from kvassay.harness.attention.ties import Runs
from kvassay.harness.budget import Judgement, expect, judge, limits
from kvassay.harness.contract import (
    AttentionBatch,
    AttentionResult,
    ContractError,
    Declaration,
    EmptyRow,
    Rounding,
)
from kvassay.impls.faulty.kernel_controls import CONTROLS
from kvassay.reference.attention import attend, sequences

F64 = torch.float64
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SIXTEEN = (BF16, FP16)
SPREAD = 2.0
"""Rounding to nearest has a relative variance from u^2 / 12 (just below a power of two) to u^2 / 3
(at one); the model takes u^2 / 6. Whatever the data, the truth is within a factor of 2."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors: threads only get in each other's way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def batch(
    seed: int = 0,
    dtype: torch.dtype = BF16,
    *,
    lengths: tuple[int, ...] = (33, 40),
    tokens: tuple[int, ...] = (1, 3),
    heads: int = 2,
    group: int = 2,
    size: int = 32,
    cache: torch.dtype | None = None,
    **options: object,
) -> AttentionBatch:
    """Normal data in blocks of 8."""
    rng = torch.Generator().manual_seed(seed)
    counts = [-(-length // 8) for length in lengths]
    table = torch.zeros(len(lengths), max(*counts, 1), dtype=torch.int32)
    for row, count, start in zip(table, counts, [1, 1 + counts[0]], strict=False):
        row[:count] = torch.arange(start, start + count)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng)

    shape = (sum(counts) + 1, 8, heads, size)
    return AttentionBatch(
        query=draw(sum(tokens), heads * group, size).to(dtype),
        key_cache=draw(*shape).to(cache or dtype),
        value_cache=draw(*shape).to(cache or dtype),
        block_table=table,
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        query_start=torch.tensor([0, *tokens]).cumsum(0).to(torch.int32),
        **options,  # type: ignore[arg-type]
    )


def exact(case: AttentionBatch) -> AttentionResult:
    """The oracle's result in the types of a kernel's."""
    right = attend(case)
    return AttentionResult(right.output.to(case.query.dtype), right.lse.to(FP32))


def verdict(case: AttentionBatch, how: Strategy = PLAIN) -> Judgement:
    return judge(emulate(case, how), expect(case, how.rounding), lse=True)


# ---------------------------------------------------------------------------- model beside kernels

FEATURES: dict[str, dict[str, object]] = {
    "plain": {},
    "window": {"window_left": 9},
    "softcap": {"softcap": 2.0},
    "alibi": {"alibi_slopes": torch.tensor([0.5, 0.1, 0.03, 0.01])},
    "sinks": {"sinks": torch.tensor([1.0, 2.0, 3.0, 4.0])},
    "not causal": {"causal": False},
    "scales": {"cache": torch.int8, "k_scale": 0.7, "v_scale": 0.6, "scale": 0.004},
    "scales per head": {
        "cache": torch.float8_e4m3fn,
        "k_scale": torch.tensor([0.7, 1.1]),
        "v_scale": torch.tensor([0.6, 1.3]),
    },
}
COUNTED = {Rounding.S: 2.0, Rounding.EAGER: 2.0, Rounding.Q_PRE: 2.0, Rounding.TF32: 8.0}
"""How often the model counts the largest error of a class at the most, for the kernels that it also
has to allow: scores rounded elsewhere, a query's error as if it were a key's, operands cut off."""
BLOCKS = Strategy(block=8)
KERNELS = [
    *((BF16, BLOCKS, features) for features in FEATURES),
    (FP16, BLOCKS, "plain"),
    (BF16, Strategy(Rounding.P_PART, block=8, splits=4), "plain"),
    (BF16, Strategy(Rounding.S), "plain"),
    (FP16, Strategy(Rounding.EAGER, normalised=True), "plain"),
    (BF16, Strategy(Rounding.EAGER, normalised=True), "softcap"),
    (BF16, Strategy(Rounding.EAGER, normalised=True), "alibi"),
    (BF16, Strategy(Rounding.Q_PRE), "plain"),
    (BF16, Strategy(Rounding.IEEE), "plain"),
    (FP32, Strategy(Rounding.TF32), "plain"),
]


def squares(case: AttentionBatch, how: Strategy) -> tuple[Tensor, Tensor]:
    """Squared error and variance of every element."""
    expected = expect(case, how.rounding)
    error = emulate(case, how).output.to(F64) - expected.output
    return error**2, expected.sigma**2


@pytest.mark.parametrize(("dtype", "how", "features"), KERNELS)
def test_the_variance_of_emulated_kernels_is_that_of_the_model(
    dtype: torch.dtype, how: Strategy, features: str
) -> None:
    options, ratios = FEATURES[features], []
    how = replace(how, dequantised="k_scale" in options and how.rounding is Rounding.P)
    for seed in range(6):
        found, modelled = squares(batch(seed, dtype, **options), how)  # type: ignore[arg-type]
        ratios.append((found.mean(-1) / modelled.mean(-1)).flatten())
    ratio = float(torch.cat(ratios).mean())
    assert 1 / SPREAD / COUNTED.get(how.rounding, 1.0) < ratio < SPREAD


@pytest.mark.parametrize("rounding", [Rounding.P, Rounding.P_PART, Rounding.IEEE])
def test_the_model_knows_which_elements_err_more(rounding: Rounding) -> None:
    errors, variances = [], []
    for seed in range(20):
        case = batch(seed, size=64)
        case = replace(case, value_cache=case.value_cache * torch.logspace(-2, 2, 64).to(BF16))
        found, modelled = squares(case, Strategy(rounding, splits=4, block=8))
        errors.append(found.flatten())
        variances.append(modelled.flatten())
    error, variance = torch.cat(errors), torch.cat(variances)
    parts = variance.argsort().chunk(10)
    assert variance[parts[-1]].mean() > 1000 * variance[parts[0]].mean()
    for part in parts:
        ratio = float(error[part].sum() / variance[part].sum())
        assert 1 / SPREAD < ratio < SPREAD


@pytest.mark.parametrize("rounding", [Rounding.S, Rounding.EAGER, Rounding.Q_PRE])
def test_the_lse_of_classes_that_round_logits_errs_as_the_model_says(rounding: Rounding) -> None:
    ratios = []
    for seed in range(12):
        case = batch(seed)
        expected = expect(case, rounding)
        got = emulate(case, Strategy(rounding, normalised=True)).lse
        ratios.append(((got - expected.lse) / expected.sigma_lse) ** 2)
    ratio = float(torch.cat(ratios).mean())
    assert 1 / SPREAD / COUNTED[rounding] < ratio < SPREAD


def first_sequence(case: AttentionBatch) -> OpenSoftmax:
    return open_softmax(case, next(sequences(case)))


def test_a_query_is_rounded_once_for_all_keys() -> None:
    """Values that are the keys' make the effect far larger than that of independent errors."""
    case = batch(lengths=(200,), tokens=(1,), heads=1, group=1, size=16)
    case = replace(case, value_cache=case.key_cache)
    head = first_sequence(case)
    plain = precision(Rounding.P, BF16)
    shared = replace(plain, query=plain.storage)
    modelled = error_of(head, shared, BF16).unstored - error_of(head, plain, BF16).unstored
    rng, found = torch.Generator().manual_seed(1), []
    for _ in range(400):
        noise = torch.randn(head.query.shape, generator=rng, dtype=F64)
        moved = head.query * (1 + NEAREST * plain.storage * noise)
        weights = torch.softmax(head.scale * moved @ head.key.mT, dim=-1)
        found.append(weights @ head.value - head.output)
    variance = torch.stack(found).square().mean(dim=0)
    assert 1 / SPREAD < float(variance.sum() / modelled.sum()) < SPREAD
    apart = replace(plain, key=plain.storage)
    independent = error_of(head, apart, BF16).unstored - error_of(head, plain, BF16).unstored
    assert float(variance.sum() / independent.sum()) > SPREAD**2


def test_runs_add_up_what_is_rounded_alike() -> None:
    rng = torch.Generator().manual_seed(0)
    position = torch.randint(0, 5, (2, 3, 11), generator=rng).to(F64)
    amount = torch.rand(2, 3, 11, generator=rng, dtype=F64)
    value = torch.randn(2, 11, 4, generator=rng, dtype=F64)
    centre = torch.randn(2, 3, 4, generator=rng, dtype=F64)
    counts = torch.rand(2, 3, 11, generator=rng) < 0.8
    runs = Runs(position, 1.0, counts)
    for head, row in itertools.product(range(2), range(3)):
        at = (head, row)
        groups: dict[object, list[int]] = {}
        for key in range(11):
            name = float(position[at][key]) if counts[at][key] else ("alone", key)
            groups.setdefault(name, []).append(key)
        sums = [amount[at][keys].sum() for keys in groups.values()]
        total = runs.by_row(runs.totals(amount) ** 2)[at]
        assert torch.allclose(total, sum(each**2 for each in sums))
        moved = amount[at][:, None] * (value[head] - centre[at])
        together = sum(moved[keys].sum(dim=0) ** 2 for keys in groups.values())
        apart = (moved**2).sum(dim=0)
        assert torch.allclose(runs.surplus(amount, value, centre)[at], together - apart)


@pytest.mark.parametrize("dtype", SIXTEEN)
@pytest.mark.parametrize("noise", [0.0, 0.05, 0.2, 0.5, 1.0])
def test_what_storing_leaves_is_what_rounding_noisy_numbers_leaves(
    dtype: torch.dtype, noise: float
) -> None:
    rng = torch.Generator().manual_seed(0)
    output = torch.linspace(1.01, 1.05, 7, dtype=F64)
    spacing = 2 * HALF_SPACING[dtype]
    mean, variance = stored(output, torch.full_like(output, (noise * spacing) ** 2), dtype)
    draws = output + noise * spacing * torch.randn(4000, 7, generator=rng, dtype=F64)
    kept = draws.to(dtype).to(F64)
    flip = spacing / len(kept)  # what one draw that falls on the other side makes of the mean
    error = (variance / len(kept)).sqrt() + flip
    assert bool(((kept.mean(dim=0) - mean).abs() <= 5 * error).all())
    assert bool((kept.var(dim=0) <= SPREAD * variance + 5 * spacing * flip).all())
    assert bool((variance <= SPREAD * kept.var(dim=0) + 5 * spacing * flip).all())


# -------------------------------------------------------------------------- each statistic convicts


def edited(case: AttentionBatch, edit: Callable[[AttentionResult], None]) -> Judgement:
    """What is said of the exact result after an edit."""
    result = exact(case)
    edit(result)
    return judge(result, expect(case), lse=True)


def test_the_exact_result_is_accepted() -> None:
    for dtype in (*SIXTEEN, FP32):
        judgement = edited(batch(dtype=dtype), lambda result: None)
        assert judgement.problem is None
        assert not judgement.wrong_rows.any()
        assert 0 < judgement.row < judgement.limits.row


def test_a_row_is_convicted_where_no_element_is() -> None:
    case = batch(size=128)
    sigma = expect(case).sigma

    def edit(result: AttentionResult) -> None:
        result.output[2, 1] += (4 * sigma[2, 1]).to(BF16)

    judgement = edited(case, edit)
    assert judgement.problem is not None
    assert judgement.problem.startswith("row error of ")
    assert "at token 2, head 1" in judgement.problem
    assert judgement.wrong_rows.nonzero().tolist() == [[2, 1]]
    assert judgement.element < judgement.limits.element


def test_an_element_is_convicted_where_its_row_is_not() -> None:
    case = batch(size=128)
    sigma = expect(case).sigma

    def edit(result: AttentionResult) -> None:
        result.output[1, 2, 7] += (14 * sigma[1, 2, 7]).to(BF16)

    judgement = edited(case, edit)
    assert judgement.problem is not None
    assert judgement.problem.startswith("element error of ")
    assert judgement.problem.endswith("over 8, at token 1, head 2, dim 7")
    assert judgement.wrong_rows.nonzero().tolist() == [[1, 2]]
    assert judgement.row < judgement.limits.row


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_a_gain_is_convicted_where_no_row_is(dtype: torch.dtype) -> None:
    case = batch_of(Point({BF16: "bf16", FP16: "fp16"}[dtype], "plain", 128, 0))
    off = replace(case, v_scale=1 + HALF_SPACING[dtype])
    judgement = judge(emulate(off, PLAIN), expect(case), lse=True)
    assert judgement.problem is not None
    assert judgement.problem.startswith("gain of ")
    assert judgement.row < judgement.limits.row
    assert judgement.element < judgement.limits.element
    assert judgement.wrong_rows.all()
    assert verdict(case).problem is None


def test_the_gain_of_one_kv_head_convicts_that_head() -> None:
    case = batch_of(Point("bf16", "plain", 128, 2))
    scales = torch.tensor([1.0, 1.0, 1 - 2.0**-8, 1.0])
    judgement = judge(emulate(replace(case, v_scale=scales), PLAIN), expect(case), lse=True)
    assert judgement.problem is not None
    assert judgement.problem.endswith("in KV head 2")
    assert judgement.wrong_rows.all(dim=0).tolist() == [False, False, True, False]


def test_the_lse_is_convicted_where_the_output_is_right() -> None:
    def edit(result: AttentionResult) -> None:
        result.lse[3, 0] *= 1 + 1e-5

    judgement = edited(batch(), edit)
    assert judgement.problem is not None
    assert judgement.problem.startswith("LSE error of ")
    assert judgement.problem.endswith("over 8, at token 3, head 0")
    assert judgement.wrong_rows.nonzero().tolist() == [[3, 0]]


def test_an_lse_that_is_not_claimed_is_not_looked_at() -> None:
    case = batch()
    result = AttentionResult(exact(case).output, torch.zeros(2))
    judgement = judge(result, expect(case), lse=False)
    assert judgement.problem is None
    assert judgement.lse is None
    assert judge(result, expect(case), lse=True).problem is not None


@pytest.mark.parametrize("fault", [name for name in FAULTS if name != Fault.ROUNDED_SUM])
def test_every_planted_fault_is_convicted(fault: str) -> None:
    case = batch_of(Point("fp16", "plain", 128 if "split" in fault else 133, 1))
    if fault == Fault.MERGE_BASE_2:
        case = batch_of(Point("fp16", "plain", 1000, 1))
    expected = expect(case)
    judgement = judge(FAULTS[fault](case), expected, lse=True)
    assert judgement.problem is not None
    assert judgement.wrong_rows.any()
    assert judge(emulate(case, Strategy(splits=8)), expected, lse=True).problem is None


# ------------------------------------------------------------------------------------- exact rules


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda r: AttentionResult(r.output[:, :, :-1], r.lse), "the output has shape (4, 4, 31)"),
        (lambda r: AttentionResult(r.output.float(), r.lse), "the output is of torch.float32"),
        (lambda r: AttentionResult(r.output, None), "an LSE is claimed, and none was returned"),
        (lambda r: AttentionResult(r.output, r.lse.T[:3]), "the LSE has shape (3, 4)"),
        (lambda r: AttentionResult(r.output, r.lse.double()), "the LSE is of torch.float64"),
    ],
)
def test_shapes_and_types_are_exact(
    change: Callable[[AttentionResult], AttentionResult], problem: str
) -> None:
    case = batch()
    judgement = judge(change(exact(case)), expect(case), lse=True)
    assert judgement.problem is not None
    assert judgement.problem.startswith(problem)
    assert judgement.wrong_rows.all()
    assert judgement.row == judgement.gain == judgement.lse == math.inf


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_output_or_lse_that_is_not_finite_is_convicted(value: float) -> None:
    def output(result: AttentionResult) -> None:
        result.output[1, 2, 3] = value

    def lse(result: AttentionResult) -> None:
        result.lse[1, 2] = value

    judgement = edited(batch(), output)
    assert judgement.problem == "the output is not finite at token 1, head 2, dim 3"
    assert judgement.wrong_rows.nonzero().tolist() == [[1, 2]]
    assert judgement.element == math.inf
    judgement = edited(batch(), lse)
    assert judgement.problem is not None
    assert judgement.problem.startswith("LSE error of inf sigma")


def with_empty(**options: object) -> AttentionBatch:
    """The second sequence has no keys; its row is the last."""
    return batch(lengths=(33, 0), tokens=(1, 1), **options)  # type: ignore[arg-type]


SINKS = torch.tensor([1.0, 2.0, 3.0, 4.0])
EMPTY_CASES = [
    # declared, sinks, output, LSE (None: the right one), accepted
    (EmptyRow.ZERO, False, 0.0, -math.inf, True),
    (EmptyRow.ZERO, False, 2.0**-20, -math.inf, False),
    (EmptyRow.ZERO, False, math.nan, -math.inf, False),
    (EmptyRow.ZERO, False, 0.0, math.inf, False),
    (EmptyRow.ZERO, False, 0.0, math.nan, False),
    (EmptyRow.ZERO, False, 0.0, -1e30, False),
    (EmptyRow.ZERO, True, 0.0, None, True),
    (EmptyRow.ZERO, True, 0.0, -math.inf, False),
    (EmptyRow.ZERO, True, math.nan, None, False),
    (EmptyRow.NAN, False, math.nan, math.nan, True),
    (EmptyRow.NAN, False, math.nan, -math.inf, True),
    (EmptyRow.NAN, False, math.nan, 0.0, False),
    (EmptyRow.NAN, False, 0.0, -math.inf, False),
    (EmptyRow.NAN, True, 0.0, None, True),
    (EmptyRow.NAN, True, math.nan, math.nan, True),
    (EmptyRow.NAN, True, 1.0, None, False),
    (EmptyRow.UNTOUCHED, False, 123.0, 7.0, True),
    (EmptyRow.UNTOUCHED, True, math.nan, math.nan, True),
]


@pytest.mark.parametrize(("declared", "sinks", "output", "lse", "accepted"), EMPTY_CASES)
def test_empty_rows_are_as_declared(
    declared: EmptyRow, sinks: bool, output: float, lse: float | None, accepted: bool
) -> None:
    case = with_empty(sinks=SINKS if sinks else None)
    result = exact(case)
    result.output[1] = output
    if lse is not None:
        result.lse[1] = lse
    expected = expect(case)
    assert expected.empty.tolist() == [False, True]
    judgement = judge(result, expected, empty_row=declared, lse=True)
    assert (judgement.problem is None) is accepted
    assert judgement.wrong_rows[1].any() is not accepted
    assert not judgement.wrong_rows[0].any()


def test_a_row_that_sees_keys_is_judged_whatever_is_declared_for_empty_ones() -> None:
    case = with_empty()
    for declared in EmptyRow:
        result = exact(case)
        result.output[0].mul_(2)
        judgement = judge(result, expect(case), empty_row=declared, lse=True)
        assert judgement.wrong_rows[0].all()


# -------------------------------------------------------------------------------------- extremes


def test_a_batch_of_empty_rows_only() -> None:
    case = batch(lengths=(0, 0), tokens=(1, 1))
    assert verdict(case).problem is None
    result = exact(case)
    result.output.add_(1)
    assert judge(result, expect(case), lse=True).wrong_rows.all()


def test_a_batch_without_rows() -> None:
    case = batch(lengths=(5, 3), tokens=(0, 0))
    assert verdict(case).problem is None


def test_one_key_is_returned_as_it_is() -> None:
    case = batch(lengths=(1, 1), tokens=(1, 1))
    assert verdict(case).problem is None
    result = exact(case)
    result.output[0, 0] = 0
    assert judge(result, expect(case), lse=True).wrong_rows.nonzero().tolist() == [[0, 0]]


@pytest.mark.parametrize("factor", [1e-3, 1.0, 50.0])
@pytest.mark.parametrize("dtype", [*SIXTEEN, FP32])
def test_peaky_and_flat_logits(dtype: torch.dtype, factor: float) -> None:
    case = batch(dtype=dtype)
    case = replace(case, query=case.query * factor)
    for rounding in MODELLED:
        if dtype == FP16 and rounding in (Rounding.S, Rounding.EAGER) and factor > 1:
            continue
        assert verdict(case, Strategy(rounding)).problem is None
    wrong = replace(case, value_cache=case.value_cache.roll(1, 2))
    assert judge(emulate(wrong, PLAIN), expect(case), lse=True).problem is not None


@pytest.mark.parametrize(
    ("dtype", "factor"), [(FP16, 1e-5), (FP16, 1e-7), (BF16, 1e-38), (FP16, 1e4), (BF16, 1e36)]
)
def test_values_near_the_ends_of_the_range(dtype: torch.dtype, factor: float) -> None:
    case = batch(dtype=dtype)
    case = replace(case, value_cache=(case.value_cache.float() * factor).to(dtype))
    expected = expect(case)
    for how in CORRECT.values():
        assert judge(emulate(case, how), expected, lse=True).problem is None
    result = exact(case)
    result.output.neg_()
    assert judge(result, expected, lse=True).problem is not None


def test_an_output_past_the_range_may_overflow_and_nothing_else_may() -> None:
    case = batch(dtype=FP16)
    case = replace(case, value_cache=case.value_cache.abs() * 200, v_scale=1e4)
    result = exact(case)
    assert result.output.isinf().any()
    expected = expect(case)
    assert judge(result, expected, lse=True).problem is None
    result.output.clamp_(max=torch.finfo(FP16).max)
    assert judge(result, expected, lse=True).problem is None
    result.output[0, 0] = -math.inf
    assert judge(result, expected, lse=True).wrong_rows.nonzero().tolist() == [[0, 0]]


def test_keys_that_no_row_sees_do_not_matter() -> None:
    case = batch(window_left=4, tokens=(1, 1))
    blocks = case.block_table[:, 0].long()
    poisoned = replace(case, value_cache=case.value_cache.clone())
    poisoned.value_cache[blocks] = math.nan
    one, other = expect(case), expect(poisoned)
    for name in ("output", "sigma", "sigma_lse", "gain_error"):
        assert torch.equal(getattr(one, name), getattr(other, name))


def test_what_has_no_finite_result_is_refused() -> None:
    case = batch()
    case.value_cache[case.block_table[0, 0]] = math.nan
    with pytest.raises(ValueError, match="expected values with a finite result, got output"):
        expect(case)
    with pytest.raises(ValueError, match=r"query: expected one of .*, got torch\.float64"):
        expect(batch(dtype=F64))
    with pytest.raises(ValueError, match=r"got torch\.int8"):
        limits(Rounding.P, torch.int8)


# ---------------------------------------------------------------------------- classes and scales


def test_the_class_in_effect_depends_on_the_types() -> None:
    assert in_effect(Rounding.TF32, BF16) is Rounding.P
    assert in_effect(Rounding.TF32, FP32) is Rounding.TF32
    for rounding in set(MODELLED) - {Rounding.TF32}:
        assert in_effect(rounding, FP32) is Rounding.IEEE
    assert expect(batch(dtype=FP32), Rounding.P).rounding is Rounding.IEEE


def test_nobody_is_judged_by_a_class_that_is_not_modelled() -> None:
    """The controls are all other classes: each has limits and a model."""
    assert set(Rounding) - {*MODELLED} == {Rounding.FP8}
    case = batch(cache=torch.float8_e4m3fn)
    for rounding in Rounding:
        declaration = Declaration(rounding=rounding)
        if rounding in MODELLED:
            Kernel(None, declaration)
            assert expect(case, rounding).sigma.isfinite().all()
            continue
        with pytest.raises(ContractError, match=r"rounding=fp8: .* not modelled yet"):
            Kernel(None, declaration)
        with pytest.raises(ValueError, match="not modelled yet"):
            expect(case, rounding)
        with pytest.raises(ValueError, match="not modelled yet"):
            limits(rounding, BF16)


def test_limits_are_tighter_where_less_is_rounded() -> None:
    for dtype in SIXTEEN:
        assert limits(Rounding.P, dtype).row < limits(Rounding.S, dtype).row
    assert limits(Rounding.IEEE, FP32).gain < limits(Rounding.P, FP16).gain


@pytest.mark.parametrize("cache", [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("dtype", SIXTEEN)
def test_scales_may_be_applied_before_or_after_the_products_and_not_twice(
    dtype: torch.dtype, cache: torch.dtype
) -> None:
    case = batch(dtype=dtype, cache=cache, lengths=(100, 70), scale=0.05)
    blocks, size, heads = case.key_cache.shape[:3]
    scales = torch.rand(blocks, size, heads, generator=torch.Generator().manual_seed(0)) + 0.5
    for factor in (0.7, scales[0, 0], scales):
        scaled = replace(case, k_scale=factor, v_scale=factor)
        expected = expect(scaled)
        for how in (PLAIN, Strategy(dequantised=True), Strategy(splits=3, block=16)):
            assert judge(emulate(scaled, how), expected, lse=True).problem is None
        for twice in ({"k_scale": factor * factor}, {"v_scale": factor * factor}):
            wrong = emulate(replace(scaled, **twice), PLAIN)
            assert judge(wrong, expected, lse=True).problem is not None


def test_a_kernel_of_a_rougher_class_is_not_of_class_p() -> None:
    case = batch_of(Point("bf16", "peaky", 1000, 0))
    for rounding in (Rounding.S, Rounding.EAGER, Rounding.Q_PRE):
        how = Strategy(rounding)
        assert verdict(case, how).problem is None
        assert judge(emulate(case, how), expect(case), lse=True).problem is not None
    long = batch_of(Point("bf16", "plain", 1000, 0))
    rounded_sum = replace(PLAIN, fault=Fault.ROUNDED_SUM)
    assert judge(emulate(long, rounded_sum), expect(long), lse=True).problem is not None


# ------------------------------------------------------------------------------------- false alarms


def test_values_that_all_round_the_same_way_are_no_gain() -> None:
    case = batch_of(Point("bf16", "plain", 1000, 0))
    narrow = case.value_cache.float() / 100 + 1 + 3 * 2.0**-9
    case = replace(case, value_cache=narrow.to(BF16))
    expected = expect(case)
    for how in CORRECT.values():
        result = emulate(case, how)
        assert judge(result, expected, lse=True).problem is None
        error = result.output.to(F64) - expected.output
        every, variance = torch.ones_like(expected.lse) > 0, expected.sigma**2
        naive, _ = gain_of(error, expected.output, variance, every, expected.num_kv_heads)
        assert float(naive.abs().max()) > limits(Rounding.P, BF16).gain
    off = emulate(replace(case, v_scale=1 + 2.0**-7), PLAIN)
    assert judge(off, expected, lse=True).problem is not None


def test_equal_logits_are_rounded_alike() -> None:
    """All keys have the weight of exp(-1) beside a sink, and all values are positive."""
    case = batch(lengths=(200, 200), tokens=(1, 1), sinks=torch.ones(4))
    case = replace(case, query=case.query * 0, value_cache=case.value_cache.abs())
    expected = expect(case)
    error = emulate(case, PLAIN).output.to(F64) - expected.output
    assert judge(emulate(case, PLAIN), expected, lse=True).problem is None
    head = first_sequence(case)
    u = HALF_SPACING[BF16]
    independent = (NEAREST * u) ** 2 * (head.squares + head.output**2)
    naive = error[0].square().mean(dim=-1) / head.rows(independent)[0].mean(dim=-1)
    assert float(naive.max().sqrt()) > 1.2
    assert expected.freedom.max() < head.value.shape[2]


@pytest.mark.parametrize("seed", range(6))
def test_scales_per_token_make_equal_probabilities_round_unequally(seed: int) -> None:
    """Half of the keys have the row's largest logit, and values of both signs."""
    token = Scaling.TOKEN
    case = Case(
        ((56, 40),),
        cache_dtype="float8_e5m2",
        block_size=8,
        causal=False,
        k_scale=token,
        v_scale=token,
        contents=Contents.HALVES,
        mark=7,
        seed=seed,
    )
    built = build(case).batch
    expected = expect(built)
    assert isinstance(built.v_scale, Tensor)
    for how in CORRECT.values():
        judgement = judge(emulate(built, how), expected, lse=True)
        assert judgement.gain < 0.5 * judgement.limits.gain
    off = emulate(replace(built, v_scale=built.v_scale * 1.1), PLAIN)
    assert judge(off, expected, lse=True).problem is not None


def test_equal_elements_of_the_query_are_rounded_alike() -> None:
    """What aims at the heavy half is one number, in all rows and heads."""
    control = CONTROLS["query-scaled-first"]
    case = Case(
        ((3, 1), (3, 0), (0, 0)),
        num_q_heads=8,
        head_dim=576,
        head_dim_v=512,
        block_size=8,
        causal=False,
        sinks=True,
        contents=Contents.HALVES,
        cache_layout=CacheLayout.V_IN_K,
        placement=Placement.IDENTITY,
        seed=1177004367,
    )
    built = build(case).batch
    expected, got = expect(built, control.declaration.rounding), control.build()(built)
    judgement = judge(got, expected, lse=True)
    assert judgement.problem is None
    assert 0.2 * judgement.limits.gain < judgement.gain < 0.6 * judgement.limits.gain
    off = AttentionResult(got.output * 1.03, got.lse)
    assert judge(off, expected, lse=True).problem is not None


@pytest.mark.parametrize("seed", range(6))
def test_no_hostile_batch_raises_an_alarm(seed: int) -> None:
    rows = list(hostile_rows(seed))
    assert {row.name for row in rows} == set(STRATEGIES)
    assert not any(row.rejected for row in rows)


def test_hostile_batches_have_every_content_and_feature() -> None:
    drawn = [hostile(seed) for seed in range(200)]
    assert {content for content, _ in drawn} == set(CONTENTS)
    batches = [case for _, case in drawn]
    for name in ("window_left", "softcap", "alibi_slopes", "sinks", "k_scale", "scale"):
        assert any(getattr(case, name) is not None for case in batches)
    assert any(not case.causal for case in batches)
    assert any(0 in case.seq_lens.tolist() for case in batches)
    assert len({case.key_cache.dtype for case in batches}) == 6
