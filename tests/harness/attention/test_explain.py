"""A wrong result is told by place and by what it looks like, under the right invariant."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from kvassay.harness.attention.case import CacheLayout, Case, Garbage, Placement
from kvassay.harness.attention.compare import compare
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.emulated import Strategy, emulate
from kvassay.harness.attention.explain import explain, ranges, where
from kvassay.harness.attention.keys_seen import keys_seen
from kvassay.harness.attention.likeness import common_factor, f64, likeness
from kvassay.harness.attention.oracle_kernel import OracleKernel, spoiled, twisted
from kvassay.harness.attention.twists import TWISTS
from kvassay.harness.attention.wrong import Anomaly, Wrong
from kvassay.harness.contract import (
    AttentionBatch,
    AttentionResult,
    Capability,
    Declaration,
    PagedAttention,
    Tail,
)
from kvassay.reference import attention as oracle

ALL = Declaration(
    capabilities=frozenset(
        {
            Capability.CAUSAL,
            Capability.WINDOW,
            Capability.SOFTCAP,
            Capability.ALIBI,
            Capability.SINKS,
            Capability.SCALES,
            Capability.LSE,
        }
    ),
    tail=Tail.ANY,
)
CASE = Case(((21, 4), (30, 1)), head_dim=32, head_dim_v=32)


def told(attend: PagedAttention, case: Case = CASE) -> Wrong:
    kernel = Kernel(attend, ALL)
    seen = compare(kernel, case)
    assert not seen.right
    return explain(kernel, case, seen)


def spoil(change: Callable[[AttentionBatch, AttentionResult], None]) -> PagedAttention:
    def spoiling(batch: AttentionBatch, result: AttentionResult) -> AttentionResult:
        change(batch, result)
        return result

    return spoiled(spoiling)(ALL)


# ---------------------------------------------------------------------------------------- places


def test_numbers_become_ranges() -> None:
    assert ranges([0, 1, 2, 5, 7, 8]) == "0 to 2, 5, 7 to 8"
    assert ranges([]) == ""


def test_wrong_rows_are_told_by_sequence_position_and_head() -> None:
    wrong = torch.zeros(5, 4, dtype=torch.bool)
    wrong[1:3, 2:] = True
    wrong[4] = True
    assert where(CASE, wrong) == [
        "sequence 0 (keys: 21, queries: 4): positions 18 to 19, heads 2 to 3",
        "sequence 1 (keys: 30, queries: 1): every row, every head",
    ]


def test_of_many_wrong_sequences_the_rest_is_counted() -> None:
    case = Case(tuple((3, 1) for _ in range(9)))
    lines = where(case, torch.ones(9, 4, dtype=torch.bool))
    assert len(lines) == 5
    assert lines[-1] == "sequences beyond these: 5"


# ----------------------------------------------------------------------------------- explanations


@pytest.mark.parametrize("name", ["last-key", "first-key", "top-left", "next-head", "no-scale"])
def test_a_mistake_is_recognised(name: str) -> None:
    wrong = told(twisted(name)(ALL))
    assert wrong.looks == f"it looks as if {TWISTS[name].words}"
    assert wrong.looks in wrong.got
    assert (wrong.invariant, wrong.anomaly) == (TWISTS[name].invariant, TWISTS[name].anomaly)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["no-scale", "no-k-scale", "no-v-scale", "base-2"])
def test_it_is_recognised_where_it_makes_numbers_much_larger(name: str, dtype: str) -> None:
    case = replace(
        CASE, dtype=dtype, cache_dtype="float8_e4m3fn", k_scale="tensor", v_scale="tensor"
    )
    assert told(twisted(name)(ALL), case).looks == f"it looks as if {TWISTS[name].words}"


@pytest.mark.parametrize("name", ["no-scale", "no-k-scale"])
def test_it_is_recognised_although_large_logits_make_float32_less_exact(name: str) -> None:
    case = Case(((300, 20), (70, 1)), dtype="float32", cache_dtype="int8", k_scale="head")

    def attend(batch: AttentionBatch) -> AttentionResult:
        wrong = {"no-scale": {"scale": 1.0}, "no-k-scale": {"k_scale": None}}[name]
        return emulate(replace(batch, **wrong), Strategy())

    assert told(attend, case).looks == f"it looks as if {TWISTS[name].words}"


def test_what_is_wrong_at_one_phase_only_is_told_so() -> None:
    case = replace(CASE, softcap=1.5)
    assert told(twisted("no-softcap-decode")(ALL), case).looks.endswith("soft cap at decode")
    assert told(twisted("no-softcap")(ALL), case).looks.endswith("there is no soft cap")


def test_two_mistakes_at_once_are_not_taken_for_one() -> None:
    def attend(batch: AttentionBatch) -> AttentionResult:
        wrong = TWISTS["last-key"].apply(replace(batch, scale=0.9 * batch.query.shape[2] ** -0.5))
        return AttentionResult(wrong.output.to(batch.query.dtype), wrong.lse.float())

    wrong = told(attend)
    assert wrong.looks == ""
    assert (wrong.invariant, wrong.anomaly) == ("K1", Anomaly.OUTPUT)


@pytest.mark.parametrize("name", TWISTS)
def test_a_mistake_about_what_is_not_there_is_none(name: str) -> None:
    kernel = Kernel(OracleKernel(ALL), ALL)
    batch = kernel.build(Case(((16, 1),), num_q_heads=1, num_kv_heads=1, head_dim=16)).batch
    if not TWISTS[name].when(batch):
        right, twist = oracle.attend(batch), TWISTS[name].apply(batch)
        assert torch.equal(right.output, twist.output)
        assert torch.equal(right.lse, twist.lse)


def test_a_right_result_is_like_no_mistake() -> None:
    assert likeness(compare(Kernel(OracleKernel(ALL), ALL), CASE)) is None


# --------------------------------------------------------------------------------- without a twist


def test_one_factor_for_all_is_told_with_its_value() -> None:
    def larger(batch: AttentionBatch, result: AttentionResult) -> None:
        result.output.mul_(1.25)

    wrong = told(spoil(larger))
    assert wrong.looks == "the output has a factor too many"
    assert "factor: 1.25" in wrong.story
    assert wrong.invariant == "K1"
    scaled = replace(CASE, cache_dtype="int8", k_scale="tensor", v_scale="tensor")
    assert told(spoil(larger), scaled).invariant == "K10"


def test_a_right_result_has_no_factor() -> None:
    seen = compare(Kernel(OracleKernel(ALL), ALL), CASE)
    assert common_factor(f64(seen.result.output), seen) is None


def test_only_the_lse() -> None:
    def shift(batch: AttentionBatch, result: AttentionResult) -> None:
        result.lse.add_(0.125)

    wrong = told(spoil(shift))
    assert (wrong.invariant, wrong.anomaly) == ("K1", Anomaly.LSE)
    assert wrong.looks == "only the LSE is wrong"


def test_what_the_lse_has_no_part_in_is_not_laid_to_it() -> None:
    def one_element(batch: AttentionBatch, result: AttentionResult) -> None:
        result.output[0, 0, 0] *= 1.05

    kernel = Kernel(spoil(one_element), ALL)
    case = replace(CASE, dtype="float32", cache_dtype="float32", contents="offset")
    seen = compare(kernel, case)
    assert seen.judgement.lse is not None
    assert seen.judgement.lse < seen.judgement.limits.lse
    assert explain(kernel, case, seen).looks == ""


def test_infinities_out_of_finite_numbers_break_the_range() -> None:
    def overflow(batch: AttentionBatch, result: AttentionResult) -> None:
        result.output[0, 0, 0] = torch.inf

    wrong = told(spoil(overflow))
    assert (wrong.invariant, wrong.anomaly) == ("K12", Anomaly.RANGE)


def test_rows_without_keys() -> None:
    case = replace(CASE, seqs=((3, 5), (9, 1)))

    def ones(batch: AttentionBatch, result: AttentionResult) -> None:
        result.output[:2] = 1.0

    wrong = told(spoil(ones), case)
    assert (wrong.invariant, wrong.anomaly) == ("K3", Anomaly.EMPTY)


def test_what_depends_on_garbage_reads_what_it_must_not() -> None:
    """Large numbers anywhere in the pool move every other column: no twist."""

    def attend(batch: AttentionBatch) -> AttentionResult:
        right = OracleKernel(ALL)(batch)
        if float(batch.value_cache.abs().max()) > 100:
            right.output[..., ::2] += 1.0
        return right

    wrong = told(attend, replace(CASE, garbage=Garbage.FINITE))
    assert (wrong.invariant, wrong.anomaly) == ("K2", Anomaly.TAIL)
    assert "zeros" in wrong.looks


def test_what_depends_on_the_layout_depends_on_addresses() -> None:
    def attend(batch: AttentionBatch) -> AttentionResult:
        dense = batch.key_cache.stride(1) > batch.key_cache.stride(2)
        right = OracleKernel(ALL)(batch)
        if not dense:
            right.output[..., ::2] += 1.0
        return right

    case = replace(CASE, cache_layout=CacheLayout.HND, placement=Placement.IDENTITY)
    wrong = told(attend, case)
    assert (wrong.invariant, wrong.anomaly) == ("K8", Anomaly.ADDRESS)
    assert wrong.looks == "it is right with a dense cache"


# ---------------------------------------------------------------------------------- keys read back


def rows(*wrong: int) -> torch.Tensor:
    marked = torch.zeros(5, 4, dtype=torch.bool)
    marked[list(wrong)] = True
    return marked


def test_keys_that_are_not_seen_are_named() -> None:
    kernel = Kernel(twisted("last-key")(ALL), ALL)
    assert keys_seen(kernel, CASE, rows(1, 4)) == [
        "sequence 0, position 18, head 0 does not see key 18",
        "sequence 1, position 29, head 0 does not see key 29",
    ]


def test_keys_that_must_not_be_seen_are_named() -> None:
    case = replace(CASE, window_left=3)
    kernel = Kernel(twisted("no-window")(ALL), ALL)
    (line,) = keys_seen(kernel, case, rows(0))
    assert line == (
        "sequence 0, position 17, head 0 sees keys 0, 1, 2, 3, 4, 5, ..., which it must not"
    )


def test_slots_that_hold_no_key_are_noticed() -> None:
    kernel = Kernel(twisted("whole-block")(ALL), ALL)
    (line,) = keys_seen(kernel, CASE, rows(4))
    assert line.endswith("sees slots that hold no key of its sequence")


def test_a_kernel_that_sees_the_right_keys_gets_no_line() -> None:
    assert keys_seen(Kernel(OracleKernel(ALL), ALL), CASE, rows(0, 1, 2, 3, 4)) == []
    assert keys_seen(Kernel(twisted("no-scale")(ALL), ALL), CASE, rows(0)) == []


def test_a_kernel_that_refuses_the_question_gets_no_line() -> None:
    def refuse(batch: AttentionBatch) -> AttentionResult:
        raise NotImplementedError

    assert keys_seen(Kernel(refuse, ALL), CASE, rows(0)) == []
