"""Relations: what is right passes whatever it claims, and each sees the mistake that it is for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from kvassay.harness.attention import relations
from kvassay.harness.attention.campaign import verdict_on
from kvassay.harness.attention.case import (
    CacheLayout,
    Case,
    Contents,
    Garbage,
    Placement,
    RowLayout,
    Scaling,
    Trial,
    load,
    to_json,
)
from kvassay.harness.attention.check import CHECKS, Check
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.explain import EXPECTED
from kvassay.harness.attention.oracle_kernel import OracleKernel, spoiled, twisted
from kvassay.harness.attention.wrong import Anomaly, Refused, Wrong
from kvassay.harness.budget import expect
from kvassay.harness.contract import (
    AttentionBatch,
    AttentionResult,
    Capability,
    Declaration,
    Determinism,
    EmptyRow,
    Rounding,
    Tail,
)
from kvassay.impls.faulty.tiled_attention import Habits, TiledAttention

ALL = frozenset(
    {
        Capability.CAUSAL,
        Capability.WINDOW,
        Capability.SOFTCAP,
        Capability.ALIBI,
        Capability.SINKS,
        Capability.SCALES,
        Capability.LSE,
        Capability.OUTPUT,
    }
)
README = Path(relations.__file__).parent / "README.md"
RELATIONS = [check for check in CHECKS.values() if check.title.startswith("relation ")]
ELSEWHERE = {12, 26}
"""Rows of the table that are told to be looked at by others."""


def declaring(**fields: Any) -> Declaration:
    return Declaration(**{"capabilities": ALL, "tail": Tail.ANY, **fields})


def correct(**fields: Any) -> Kernel:
    declaration = declaring(**fields)
    return Kernel(OracleKernel(declaration), declaration)


def verdicts(check: Check, kernel: Kernel, cases: list[Case]) -> list[Any]:
    """What is said of each case that is not refused."""
    said = []
    for case in cases:
        try:
            said.append(verdict_on(check, kernel, case))
        except Refused:
            continue
    return said


def cases_of(check: Check, kernel: Kernel) -> list[Case]:
    return list(check.cases(kernel, Random(0)))


def named(name: str) -> Check:
    return CHECKS[name]


# -------------------------------------------------------------------------------- the whole table


def test_the_table_shows_all_relations_and_their_checks() -> None:
    rows = re.findall(r"^\| (\d+) \| .*?\|(.*?)\|", README.read_text(encoding="utf-8"), re.M)
    assert {int(number) for number, _ in rows} == set(range(1, 29))
    told = {
        (int(number), name) for number, cell in rows for name in re.findall(r"`([\w-]+)`", cell)
    }
    registered = {(int(re.findall(r"\d+", c.title)[0]), c.name) for c in RELATIONS}
    assert {each for each in told if each[0] not in ELSEWHERE} == registered
    assert {number for number, _ in registered} == set(range(1, 29)) - ELSEWHERE


@pytest.mark.parametrize("check", RELATIONS, ids=lambda check: check.name)
def test_the_correct_kernel_passes_and_the_control_is_seen(check: Check) -> None:
    kernel = correct(determinism=Determinism.PREFIX)
    cases = cases_of(check, kernel)
    assert verdicts(check, kernel, cases) == [None] * len(cases)
    control = Kernel(check.control(kernel.declaration), kernel.declaration)
    convicted = [v for v in verdicts(check, control, cases) if isinstance(v, Wrong)]
    by_itself = [verdict for verdict in convicted if verdict.expected != EXPECTED]
    assert by_itself, "seen by the oracle at most"
    assert all(verdict.story for verdict in by_itself)


@pytest.mark.parametrize("check", RELATIONS, ids=lambda check: check.name)
def test_so_it_is_without_any_claim_of_determinism_or_lse(check: Check) -> None:
    few = ALL - {Capability.LSE, *((Capability.OUTPUT,) if not check.needs else ())}
    declaration = Declaration(few | check.needs)
    kernel = Kernel(Restless(), declaration)
    cases = cases_of(check, kernel)[:1]
    assert verdicts(check, kernel, cases) == [None] * len(cases)
    assert cases
    control = Kernel(check.control(declaration), declaration)
    assert any(isinstance(verdict, Wrong) for verdict in verdicts(check, control, cases))


class Restless:
    """Correct, in another way at every call: tiles, their order, splits, what is rounded."""

    def __init__(self) -> None:
        self._rng = Random(1)

    def __call__(self, batch: AttentionBatch) -> AttentionResult:
        habits = Habits(
            tile=self._rng.choice((16, 32, 128)),
            splits=self._rng.choice((1, 2, 5)),
            order="random",
            round_weights=self._rng.random() < 0.5,
        )
        return TiledAttention(habits)(batch)


def _poor(batch: AttentionBatch) -> AttentionResult:
    """Decode with float16 and blocks of 32 slots in HND order, for the plainest attention."""
    heads_first = batch.key_cache.stride(1) < batch.key_cache.stride(2)
    decode = bool((batch.query_start.diff() == 1).all())
    sizes = batch.key_cache.shape[1] == 32 and batch.query.shape[2] == 128
    plain = batch.k_scale is None and batch.scale is None and batch.causal
    if not (heads_first and decode and sizes and plain and batch.query.dtype == torch.float16):
        raise NotImplementedError("not offered")
    return OracleKernel(Declaration())(batch)


def test_a_kernel_that_offers_little_is_never_convicted() -> None:
    declaration = Declaration({Capability.CAUSAL})
    kernel = Kernel(_poor, declaration)
    judged = set()
    for check in RELATIONS:
        if check.unclaimed(declaration) is None:
            cases = cases_of(check, kernel)
            said = verdicts(check, kernel, cases)
            assert cases, check.name
            assert not any(said), check.name
            judged |= {check.name} if said else set()
    assert judged >= {"run-twice", "other-garbage", "batch-composition", "permuted-keys"}


def test_cases_follow_from_their_seed() -> None:
    kernel = correct()
    for check in RELATIONS:
        assert cases_of(check, kernel) == cases_of(check, kernel)


def test_a_stored_case_is_judged_alike(tmp_path: Path) -> None:
    check = named("chunked-prefill")
    control = Kernel(twisted("top-left")(declaring()), declaring())
    for case in cases_of(check, correct()):
        path = tmp_path / "case.json"
        path.write_text(to_json(Trial(check.name, case)), encoding="utf-8")
        assert str(verdict_on(check, control, load(path).case)) == str(
            verdict_on(check, control, case)
        )


# ------------------------------------------------------------------------------ whatever the case

SMALL = Case(((5, 2), (3, 1)), head_dim=4, head_dim_v=4, block_size=2)
ODD_CASES = [
    replace(SMALL, seqs=()),
    replace(SMALL, seqs=((0, 0),)),
    replace(SMALL, seqs=((0, 2), (4, 0))),
    replace(SMALL, seqs=((1, 3), (2, 2), (6, 1))),
    replace(SMALL, seqs=((6, 1),), causal=False, contents=Contents.TINY, dtype="float16"),
    replace(SMALL, seqs=((6, 4),), window_left=0, evicted=True, garbage=Garbage.NAN),
    replace(SMALL, alibi=True, softcap=2.0, window_left=2, buffers=True),
    replace(SMALL, sinks=True, scale=0.0),
    replace(SMALL, cache_layout=CacheLayout.V_IN_K, seqs=((6, 1), (4, 1))),
    replace(SMALL, shared_blocks=1, placement=Placement.REVERSED, row_layout=RowLayout.FUSED),
    replace(SMALL, k_scale=Scaling.TOKEN, v_scale=Scaling.TENSOR, cache_dtype="int8"),
    replace(SMALL, k_scale=Scaling.HEAD, v_scale=Scaling.HEAD, cache_dtype="float8_e4m3fn"),
    replace(SMALL, num_q_heads=1, num_kv_heads=1, head_dim=1, head_dim_v=1),
    replace(SMALL, contents=Contents.HUGE, seqs=((4, 1), (2, 1)), mark=1),
]


@pytest.mark.parametrize("case", ODD_CASES, ids=lambda case: str(case.seqs))
def test_any_case_is_judged_right_or_refused(case: Case) -> None:
    kernel = correct(determinism=Determinism.PREFIX)
    for check in RELATIONS:
        assert not any(verdicts(check, kernel, [case])), check.name


# -------------------------------------------------------------------------- to the bit, or not


def bit_of(sees: Callable[[AttentionBatch], bool]) -> Any:
    """A kernel whose first bit depends on something in the batch."""

    def spoil(batch: AttentionBatch, result: AttentionResult) -> AttentionResult:
        if not result.output.numel() or not sees(batch):
            return result
        output = result.output.clone()
        bits = output.view(torch.int16)
        bits[..., 0] ^= 1
        return AttentionResult(output, result.lse)

    return spoiled(spoil)


BITS = {
    "other-block-ids": lambda batch: int(batch.block_table[0, 0]) > 0,
    "longer-neighbour": lambda batch: int(batch.seq_lens.max()) > 100,
    "batch-composition": lambda batch: len(batch.seq_lens) == 3,
    "empty-sequences": lambda batch: int(batch.query_start.diff().min()) == 0,
    "chunked-prefill": lambda batch: len(batch.seq_lens) > 1,
    "last-rows": lambda batch: int(batch.query_start.diff().max()) > 11,
    "shared-blocks": lambda batch: bool((batch.block_table[:, 0] == batch.block_table[0, 0]).all()),
}
"""Something that one version has, by the name of a relation."""
NEEDED = {
    "other-block-ids": Determinism.BATCH,
    "longer-neighbour": Determinism.BATCH,
    "batch-composition": Determinism.BATCH,
    "empty-sequences": Determinism.BATCH,
    "chunked-prefill": Determinism.CHUNK,
    "last-rows": Determinism.CHUNK,
    "shared-blocks": Determinism.PREFIX,
}


@pytest.mark.parametrize("name", BITS)
def test_bits_count_from_the_level_on_that_is_claimed(name: str) -> None:
    check, levels = named(name), list(Determinism)
    below, needed = levels[levels.index(NEEDED[name]) - 1], NEEDED[name]
    (case, *_) = cases_of(check, correct())
    for claimed in (below, needed):
        declaration = declaring(determinism=claimed)
        kernel = Kernel(bit_of(BITS[name])(declaration), declaration)
        (verdict,) = verdicts(check, kernel, [case])
        if claimed is below:
            assert verdict is None
        else:
            assert isinstance(verdict, Wrong)
            assert verdict.anomaly is Anomaly.BITS


@pytest.mark.parametrize(
    ("name", "sees"),
    [
        ("other-garbage", lambda batch: bool((batch.key_cache == 0).all(dim=-1).any())),
        ("evicted-blocks", lambda batch: float(batch.key_cache.float().abs().sum()) > 2.5e7),
        ("other-contents", lambda batch: float(batch.query.float().abs().max()) > 8),
        ("later-tokens", lambda batch: float(batch.query.float().abs().max()) > 8),
    ],
)
def test_the_law_asks_for_bits_without_a_claim(
    name: str, sees: Callable[[AttentionBatch], bool]
) -> None:
    check, declaration = named(name), declaring(determinism=Determinism.NONE)
    (case, *_) = cases_of(check, correct())
    if name == "evicted-blocks":
        sees = _more_than(case)
    kernel = Kernel(bit_of(sees)(declaration), declaration)
    (verdict,) = verdicts(check, kernel, [case])
    assert isinstance(verdict, Wrong)
    assert verdict.anomaly is Anomaly.BITS
    assert verdict.invariant == ("K2" if check.invariants[0] == "K2" else "K14")


def _more_than(case: Case) -> Callable[[AttentionBatch], bool]:
    """Whether there is more garbage than with all blocks there."""
    whole = correct().build(replace(case, evicted=False)).batch.key_cache.float().abs().sum()
    return lambda batch: float(batch.key_cache.float().abs().sum()) > float(whole)


class Changing:
    """Correct, but the first bits of the rows are others at some calls."""

    def __init__(self, calls: Callable[[int], bool]) -> None:
        self._calls, self._number = calls, -1
        self._right = OracleKernel(declaring())

    def __call__(self, batch: AttentionBatch) -> AttentionResult:
        result = self._right(batch)
        self._number += 1
        if self._calls(self._number):
            result.output.view(torch.int16)[..., 0] ^= 1
        return result


def test_bits_that_change_by_themselves_are_no_broken_law() -> None:
    declaration = declaring(determinism=Determinism.NONE)
    coin = Random(2)
    kernel = Kernel(Changing(lambda _: coin.random() < 0.5), declaration)
    for name in ("other-garbage", "other-contents", "later-tokens", "run-twice"):
        check = named(name)
        cases = cases_of(check, correct())
        assert verdicts(check, kernel, cases) == [None] * len(cases)


def test_nor_are_those_that_changed_once_when_the_kernel_was_tuned() -> None:
    for name in ("batch-composition", "run-twice"):
        check = named(name)
        (case, *_) = cases_of(check, correct())
        for claimed in (Determinism.RUN, Determinism.PREFIX):
            kernel = Kernel(Changing(lambda n: n == 0), declaring(determinism=claimed))
            assert verdicts(check, kernel, [case]) == [None]


def test_a_kernel_that_claims_to_repeat_itself_has_to() -> None:
    check = named("run-twice")
    (case, *_) = cases_of(check, correct())
    kernel = Kernel(Changing(lambda n: n % 3 == 2), declaring(determinism=Determinism.RUN))
    (verdict,) = verdicts(check, kernel, [case])
    assert isinstance(verdict, Wrong)
    assert verdict.anomaly is Anomaly.BITS


# ------------------------------------------------------------------------------ within rounding


def _off_by(share: float, sees: Callable[[AttentionBatch], bool]) -> Any:
    """Errors of this share of sigma, upwards in some batches and downwards in others."""

    def spoil(batch: AttentionBatch, result: AttentionResult) -> AttentionResult:
        expected = expect(batch, Rounding.P)
        error = share * expected.sigma * (1.0 if sees(batch) else -1.0)
        return AttentionResult((expected.output + error).to(result.output.dtype), result.lse)

    return spoiled(spoil)


def test_a_difference_counts_where_neither_result_is_wrong_by_itself() -> None:
    check = named("batch-composition")
    (case, *_) = cases_of(check, correct())
    case = replace(case, dtype="float32", cache_dtype="float32", seqs=((33, 5), (48, 1), (20, 3)))
    declaration = declaring(determinism=Determinism.NONE)
    said = {}
    for share in (2.0, 5.0, 8.0):
        broken = _off_by(share, lambda batch: len(batch.seq_lens) == 3)(declaration)
        (said[share],) = verdicts(check, Kernel(broken, declaration), [case])
    assert said[2.0] is None
    assert said[5.0].expected != EXPECTED
    assert said[8.0].expected != EXPECTED
    alone = Kernel(_off_by(5.0, lambda batch: True)(declaration), declaration)
    assert verdicts(check, alone, [case]) == [None]


def test_what_is_wrong_in_both_versions_alike_is_not_right() -> None:
    for claimed in (Determinism.NONE, Determinism.PREFIX):
        declaration = declaring(determinism=claimed)
        for name, mistake, broken in (
            ("other-block-ids", "next-head", "K7"),
            ("permuted-keys", "no-scale", "K9"),
        ):
            kernel = Kernel(twisted(mistake)(declaration), declaration)
            check = named(name)
            for verdict in verdicts(check, kernel, cases_of(check, correct())):
                assert (verdict.expected, verdict.invariant) == (EXPECTED, broken)
                assert verdict.looks in verdict.story


def test_rows_that_see_no_key_may_hold_anything_where_that_is_declared() -> None:
    rng = Random(4)

    def spoil(batch: AttentionBatch, result: AttentionResult) -> AttentionResult:
        empty = result.lse.isneginf()
        output = torch.where(empty[..., None], rng.random(), result.output)
        return AttentionResult(output.to(result.output.dtype), result.lse)

    check = named("other-garbage")
    case = Case(((0, 1), (5, 1)))
    for row in (EmptyRow.UNTOUCHED, EmptyRow.ZERO):
        declaration = declaring(empty_row=row, determinism=Determinism.PREFIX)
        kernel = Kernel(spoiled(spoil)(declaring()), declaration)
        (verdict,) = verdicts(check, kernel, [case])
        assert (verdict is None) == (row is EmptyRow.UNTOUCHED)


@pytest.mark.parametrize(
    ("raised", "broken"),
    [
        (lambda batch: float(batch.block_table[0, 0] > 0), ("K8", Anomaly.ADDRESS)),
        (lambda batch: float(1 + (batch.block_table[0, 0] > 0)), ("K1", Anomaly.OUTPUT)),
    ],
    ids=["one version is right", "both are wrong"],
)
def test_what_was_changed_is_blamed_if_it_has_a_part_in_it(
    raised: Callable[[AttentionBatch], float], broken: tuple[str, Anomaly]
) -> None:
    def spoil(batch: AttentionBatch, result: AttentionResult) -> AttentionResult:
        noise = torch.linspace(-1, 1, result.output.shape[-1])
        output = result.output + raised(batch) * noise
        return AttentionResult(output.to(result.output.dtype), result.lse)

    check, declaration = named("other-block-ids"), declaring()
    (case, *_) = cases_of(check, correct())
    (verdict,) = verdicts(check, Kernel(spoiled(spoil)(declaration), declaration), [case])
    assert (verdict.invariant, verdict.anomaly, verdict.looks) == (*broken, "")
    assert verdict.expected != EXPECTED


def test_a_known_mistake_is_blamed_rather_than_what_was_changed() -> None:
    check, declaration = named("chunked-prefill"), declaring()
    (case, *_) = cases_of(check, correct())
    kernel = Kernel(twisted("top-left")(declaration), declaration)
    (verdict,) = verdicts(check, kernel, [case])
    assert (verdict.invariant, verdict.anomaly) == ("K5", Anomaly.CAUSAL)
    assert verdict.looks in verdict.story


# ------------------------------------------------------------------------------------- page order


def test_page_order_is_seen_where_positions_count_and_nowhere_else() -> None:
    declaration = declaring(determinism=Determinism.PREFIX)
    kernel = Kernel(twisted("page-order")(declaration), declaration)
    decode = Case(((50, 1), (37, 1)), seed=3)
    for name in ("permuted-keys", "repeated-keys", "one-key-more"):
        assert verdicts(named(name), kernel, [decode]) == [None]
    behind = replace(decode, seqs=((50, 2),))
    assert verdicts(named("later-tokens"), kernel, [behind]) == [None]
    seen = (
        ("other-blocks", replace(decode, seqs=((48, 48),))),
        ("other-blocks", replace(decode, window_left=20)),
        ("permuted-heads", replace(decode, alibi=True)),
    )
    for name, case in seen:
        (verdict,) = verdicts(named(name), kernel, [case])
        assert isinstance(verdict, Wrong), name
