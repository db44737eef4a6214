"""Bits that differ: what convicts, what is forgiven, and what a case's fields leave as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from kvassay.harness.attention.build import Built, build
from kvassay.harness.attention.case import Case, Contents, Garbage, Placement, Scaling
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.oracle_kernel import OracleKernel
from kvassay.harness.attention.probes import (
    addressing,
    dont_care,
    empty_rows,
    footprint,
    halves,
    head_map,
    row_isolation,
)
from kvassay.harness.attention.probes.bits import Law, Run, compared, differ
from kvassay.harness.attention.wrong import Anomaly, Wrong
from kvassay.harness.contract import (
    AttentionBatch,
    AttentionResult,
    Capability,
    Declaration,
    Determinism,
    EmptyRow,
)
from kvassay.harness.violation import Crash
from kvassay.impls.faulty.kernel_controls import ALL

CASE = Case(
    ((21, 1), (9, 3), (40, 1)),
    num_q_heads=2,
    num_kv_heads=1,
    head_dim=16,
    head_dim_v=16,
)
LAW = Law("K2", Anomaly.TAIL, "the same")
Spoil = Callable[[AttentionBatch, AttentionResult], AttentionResult]


def kernel(spoil: Spoil | None = None, **declared: object) -> Kernel:
    fields = {"capabilities": ALL, "determinism": Determinism.RUN, **declared}
    declaration = Declaration(**fields)  # type: ignore[arg-type]
    return Kernel(OracleKernel(declaration, spoil=spoil), declaration)


def result(*values: float, lse: float = 0.0) -> AttentionResult:
    return AttentionResult(torch.tensor([[[*values]]]), torch.tensor([[lse]]))


# ------------------------------------------------------------------------------------------- bits


def test_bits_are_those_of_output_and_lse() -> None:
    assert not differ(result(1.0, 2.0), result(1.0, 2.0)).any()
    assert differ(result(1.0, 2.0), result(1.0, 2.0000002)).all()
    assert differ(result(1.0), result(1.0, lse=1e-45)).all()
    assert not differ(result(0.0, torch.nan), result(-0.0, torch.nan)).any()
    assert differ(result(0.0), result(torch.nan)).all()


def shaken(right: AttentionResult) -> AttentionResult:
    """The same but for the last bit of one number."""
    right.output.view(torch.int16)[0, 0, 0] += 1
    return right


class Shaking:
    """Every second result is another one, by a bit or by half of it."""

    def __init__(self, much: float = 0.0) -> None:
        self.calls, self.much = 0, much

    def __call__(self, batch: AttentionBatch, right: AttentionResult) -> AttentionResult:
        self.calls += 1
        if self.calls % 2:
            return right
        return AttentionResult(shaken(right).output * (1 + self.much), right.lse)


def two_runs(tried: Kernel, exact: bool = True) -> Wrong | None:
    plain = Run.of(tried, build(CASE))
    return compared(tried, plain, build(CASE), LAW, exact=exact)


def test_who_does_not_repeat_itself_and_says_so_is_judged_by_the_budget() -> None:
    none = Determinism.NONE
    assert two_runs(kernel(Shaking(), determinism=none)) is None
    wrong = two_runs(kernel(Shaking(0.5), determinism=none))
    assert wrong is not None
    assert wrong.invariant == "K2"


def test_who_claims_to_repeat_itself_and_does_not_is_told_so() -> None:
    wrong = two_runs(kernel(Shaking()))
    assert wrong is not None
    assert (wrong.invariant, wrong.anomaly) == ("K4", Anomaly.BITS)


def test_bits_that_stay_different_convict_whatever_is_claimed() -> None:
    def looks_at_garbage(batch: AttentionBatch, right: AttentionResult) -> AttentionResult:
        past = batch.value_cache[int(batch.block_table[0, 1]), -1, 0, 0]
        return shaken(right) if past != 0 else right

    for claimed in (Determinism.NONE, Determinism.RUN):
        wrong = dont_care.judge_tame(kernel(looks_at_garbage, determinism=claimed), CASE)
        assert wrong is not None, claimed
        assert (wrong.invariant, wrong.anomaly) == ("K2", Anomaly.TAIL)


def test_what_need_not_be_exact_has_to_be_right() -> None:
    assert two_runs(kernel(Shaking()), exact=False) is None
    wrong = two_runs(kernel(Shaking(0.5)), exact=False)
    assert wrong is not None
    assert wrong.invariant == "K2"
    assert "error" in wrong.got


# ------------------------------------------------------------------------- what fields leave alone


def contents(built: Built) -> list[torch.Tensor]:
    """Query, sinks, and keys, values and scales of all positions."""
    batch = built.batch
    found = [batch.query, batch.sinks]
    for index, table in enumerate(built.tables):
        positions = torch.arange(built.case.seqs[index][0])
        blocks = torch.tensor(table)[positions // built.case.block_size]
        slots = positions % built.case.block_size
        caches = (batch.key_cache, batch.value_cache, batch.k_scale, batch.v_scale)
        found += [cache[blocks, slots].float() for cache in caches]
    return found


def everything(built: Built) -> torch.Tensor:
    """All tables and values, garbage included."""
    batch = built.batch
    return torch.cat([batch.block_table.float().flatten(), batch.value_cache.float().flatten()])


@pytest.mark.parametrize(
    "change",
    [
        {"garbage_seed": 1},
        {"garbage": Garbage.LARGEST},
        {"garbage": Garbage.ZERO},
        {"garbage": Garbage.NAN},
        {"placement": Placement.REVERSED},
        {"placement": Placement.HIGH},
    ],
)
def test_contents_do_not_change_with_garbage_or_place(change: dict[str, object]) -> None:
    case = replace(
        CASE,
        cache_dtype="int8",
        k_scale=Scaling.TOKEN,
        v_scale=Scaling.TOKEN,
        sinks=True,
    )
    plain, other = build(case), build(replace(case, **change))  # type: ignore[arg-type]
    for one, two in zip(contents(plain), contents(other), strict=True):
        assert torch.equal(one, two)
    assert not torch.equal(everything(plain), everything(other))


def test_other_garbage_is_other_garbage() -> None:
    plain, other = build(CASE), build(replace(CASE, garbage_seed=1))
    assert plain.tables == other.tables
    last = plain.tables[0][-1]
    length = CASE.seqs[0][0] % CASE.block_size
    for name in ("key_cache", "value_cache"):
        one, two = getattr(plain.batch, name), getattr(other.batch, name)
        assert torch.equal(one[last, :length], two[last, :length])
        assert not (one[last, length:] == two[last, length:]).any()


def test_the_largest_numbers_are_finite() -> None:
    for dtype in ("float32", "float16", "bfloat16"):
        built = build(replace(CASE, dtype=dtype, cache_dtype=dtype, garbage=Garbage.LARGEST))
        assert built.batch.key_cache.isfinite().all()
        assert built.batch.key_cache.abs().max() == torch.finfo(getattr(torch, dtype)).max
        assert (built.batch.key_cache < -1e4).any()


def test_high_ids_come_from_both_sides_of_both_edges() -> None:
    ids = build(replace(CASE, seqs=((64, 1),), placement=Placement.HIGH)).tables[0]
    assert sorted(ids) == [2**15 - 1, 2**15, 2**16 - 1, 2**16]


def test_nothing_but_numbers_lies_in_a_large_pool() -> None:
    """A kernel that goes through the whole pool multiplies all of it by 0."""
    built = build(replace(CASE, placement=Placement.HIGH, garbage=Garbage.ZERO))
    assert built.batch.value_cache.isfinite().all()


# ---------------------------------------------------------------------------------- other contents


def test_probes_say_nothing_of_contents_that_they_cannot_read() -> None:
    wrong = kernel(lambda batch, right: AttentionResult(2 * right.output + 1, right.lse))
    for judge in (halves.judge, head_map.judge):
        assert judge(wrong, CASE) is None
    assert head_map.judge_uneven(wrong, CASE) is None
    assert row_isolation.judge(wrong, replace(CASE, shared_blocks=1)) is None


# ------------------------------------------------------------------------------------- empty rows

EMPTY = replace(CASE, seqs=((5, 1), (0, 2), (2, 4)), contents=Contents.COUNTED, buffers=True)


def with_empty(value: float) -> Spoil:
    def spoil(batch: AttentionBatch, right: AttentionResult) -> AttentionResult:
        right.output[right.lse.isneginf()] = value
        return right

    return spoil


@pytest.mark.parametrize(
    ("declared", "value", "passes"),
    [
        (EmptyRow.ZERO, 0.0, True),
        (EmptyRow.ZERO, torch.nan, False),
        (EmptyRow.ZERO, 1e-30, False),
        (EmptyRow.NAN, torch.nan, True),
        (EmptyRow.NAN, 0.5, False),
        (EmptyRow.UNTOUCHED, 0.0, False),
    ],
)
def test_empty_rows_are_as_declared(declared: EmptyRow, value: float, passes: bool) -> None:
    wrong = empty_rows.judge(kernel(with_empty(value), empty_row=declared), EMPTY)
    assert (wrong is None) == passes
    if wrong is not None:
        assert (wrong.invariant, wrong.anomaly) == ("K3", Anomaly.EMPTY)


def test_untouched_rows_hold_what_was_there_before() -> None:
    def keeps(batch: AttentionBatch, right: AttentionResult) -> AttentionResult:
        right.lse[right.lse.isneginf()] = torch.nan
        return right

    untouched = EmptyRow.UNTOUCHED
    assert empty_rows.judge(kernel(keeps, empty_row=untouched), EMPTY) is None
    bare = replace(EMPTY, buffers=False)
    assert empty_rows.judge(kernel(with_empty(7.0), empty_row=untouched), bare) is None


def test_an_lse_that_is_no_identity_of_a_merge_is_wrong() -> None:
    def infinite(batch: AttentionBatch, right: AttentionResult) -> AttentionResult:
        right.lse[right.lse.isneginf()] = torch.inf
        return right

    wrong = empty_rows.judge(kernel(infinite), EMPTY)
    assert wrong is not None
    assert wrong.invariant == "K3"
    silent = kernel(infinite, capabilities=ALL - {Capability.LSE})
    assert empty_rows.judge(silent, EMPTY) is None


def test_a_neighbour_that_is_wrong_only_beside_empty_rows() -> None:
    def disturbed(batch: AttentionBatch, right: AttentionResult) -> AttentionResult:
        if right.lse.isneginf().any():
            right.output[0] = 1.0
        return right

    wrong = empty_rows.judge(kernel(disturbed), EMPTY)
    assert wrong is not None
    assert wrong.invariant == "K3"
    assert wrong.got == "it is right only without them"


# ----------------------------------------------------------------------------------- other probes


def test_what_a_kernel_leaves_unwritten_is_named() -> None:
    def forgets(batch: AttentionBatch, right: AttentionResult) -> AttentionResult:
        right.output[2, 1, 5] = torch.nan
        return right

    wrong = footprint.judge(kernel(forgets), replace(CASE, buffers=True))
    assert wrong is not None
    assert (wrong.invariant, wrong.anomaly) == ("K13", Anomaly.FOOTPRINT)
    assert wrong.story == ("the row at position 7 of sequence 1 (9 keys), head 1: NaN is left",)
    assert footprint.judge(kernel(), replace(CASE, buffers=True)) is None


def test_a_leak_between_queries_of_a_sequence_is_one() -> None:
    def by_the_first(batch: AttentionBatch, right: AttentionResult) -> AttentionResult:
        right.output[3] += batch.query[2, 0, 0] / 8
        return right

    wrong = row_isolation.judge(kernel(by_the_first), replace(CASE, seqs=((9, 5),)))
    assert wrong is None, "row 3 is among those whose query is changed"

    def by_the_last(batch: AttentionBatch, right: AttentionResult) -> AttentionResult:
        right.output[2] += batch.query[3, 0, 0] / 8
        return right

    wrong = row_isolation.judge(kernel(by_the_last), replace(CASE, seqs=((9, 5),)))
    assert wrong is not None
    assert (wrong.invariant, wrong.anomaly) == ("K14", Anomaly.LEAK)


def test_ids_alone_change_no_bit_only_for_who_claims_it() -> None:
    def in_pool_order(batch: AttentionBatch, right: AttentionResult) -> AttentionResult:
        """As a kernel that adds up keys in the order of their blocks."""
        return shaken(right) if batch.block_table[0, 0] > batch.block_table[0, 1] else right

    case = replace(CASE, placement=Placement.REVERSED, garbage=Garbage.ZERO)
    assert addressing.judge(kernel(in_pool_order, determinism=Determinism.RUN), case) is None
    wrong = addressing.judge(kernel(in_pool_order, determinism=Determinism.BATCH), case)
    assert wrong is not None
    assert (wrong.invariant, wrong.anomaly) == ("K8", Anomaly.ADDRESS)


def test_uneven_heads_may_crash_unless_input_is_validated() -> None:
    def crashes(batch: AttentionBatch) -> None:
        raise RuntimeError("shape '[3, 2]' is invalid")

    case = replace(CASE, num_q_heads=3, num_kv_heads=2)
    plain = Declaration(capabilities=ALL)
    assert head_map.judge_uneven(Kernel(crashes, plain), case) is None
    careful = Declaration(capabilities=ALL | {Capability.VALIDATES_INPUT})
    with pytest.raises(Crash, match="RuntimeError"):
        head_map.judge_uneven(Kernel(crashes, careful), case)


def test_halves_are_read_to_within_rounding() -> None:
    """Strong keys first or last, in chunks and in long rows."""
    case = replace(CASE, contents=Contents.HALVES, head_dim=64, head_dim_v=64)
    for mark, seqs in ((3, ((1025, 1), (30, 2))), (-3, ((1025, 1), (700, 9)))):
        marked = replace(case, mark=mark, seqs=seqs)
        assert halves.judge(kernel(), marked) is None
        assert halves.strong_keys(mark, 10).sum() == 3
