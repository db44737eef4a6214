"""Right kernels pass however they go about it; every mistake is convicted, and explained."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import islice
from random import Random
from typing import Any

import pytest
import torch

from kvassay.harness.attention.case import Case, Placement, Scaling
from kvassay.harness.attention.check import Check
from kvassay.harness.attention.compare import judged
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.emulated import Strategy, emulate
from kvassay.harness.attention.offers import Offers
from kvassay.harness.attention.oracle_check import (
    MODIFIERS,
    ORACLE,
    SCALES,
    SCORES,
    SIZES,
    judge,
    telling,
)
from kvassay.harness.attention.oracle_kernel import OracleKernel, twisted
from kvassay.harness.attention.reach import Reach, missing, reached
from kvassay.harness.attention.shrink import shrink
from kvassay.harness.attention.twists import TWISTS
from kvassay.harness.attention.wrong import Refused, Wrong
from kvassay.harness.budget import Expected, expect
from kvassay.harness.contract import (
    AttentionBatch,
    AttentionResult,
    Capability,
    Declaration,
    EmptyRow,
    Rounding,
    Tail,
)
from kvassay.harness.deadline import Deadline

FEATURES = frozenset(
    {
        Capability.CAUSAL,
        Capability.WINDOW,
        Capability.SOFTCAP,
        Capability.ALIBI,
        Capability.SINKS,
        Capability.SCALES,
        Capability.LSE,
    }
)
ALL = Declaration(capabilities=FEATURES | {Capability.OUTPUT}, tail=Tail.ANY)
CHECKS = (ORACLE, SCORES, SCALES, SIZES)
DRAWN = 60
"""Generated cases on which every mistake has to show."""


def right(declaration: Declaration = ALL) -> Kernel:
    return Kernel(OracleKernel(declaration), declaration)


def drawn(check: Check, under_test: Kernel, number: int, seed: int = 0) -> Iterator[Case]:
    return islice(check.cases(under_test, Random(seed)), number)


def convictions(check: Check, under_test: Kernel, number: int, seed: int = 0) -> list[Wrong]:
    """Of the first cases; at least one is answered."""
    found, answers = [], 0
    for case in drawn(check, under_test, number, seed):
        try:
            wrong = check.judge(under_test, case)
        except Refused:
            continue
        answers += 1
        if wrong is not None:
            found.append(wrong)
    assert answers
    return found


# --------------------------------------------------------------------------------- no false alarm


DECLARED = {
    "all": ALL,
    "no LSE": Declaration(capabilities=FEATURES - {Capability.LSE}, empty_row=EmptyRow.NAN),
    "nothing": Declaration(),
}


@pytest.mark.parametrize(
    ("check", "name"),
    [(c, name) for c in CHECKS for name, d in DECLARED.items() if not c.unclaimed(d)],
    ids=lambda each: each if isinstance(each, str) else each.name,
)
def test_a_right_kernel_is_never_convicted(check: Check, name: str) -> None:
    assert convictions(check, right(DECLARED[name]), 40, seed=1) == []


STRATEGIES = (
    Strategy(block=16, splits=3),
    Strategy(rounding=Rounding.P_PART, splits=4, block=32),
    Strategy(rounding=Rounding.S),
    Strategy(rounding=Rounding.EAGER, normalised=True),
    Strategy(rounding=Rounding.Q_PRE),
    Strategy(rounding=Rounding.IEEE),
    Strategy(wide_probabilities=True, dequantised=True, block=128),
)


@pytest.mark.parametrize("how", STRATEGIES, ids=lambda how: f"{how.rounding}-{how.splits}")
def test_kernels_that_round_as_they_declare_are_never_convicted(how: Strategy) -> None:
    def attend(batch: AttentionBatch) -> AttentionResult:
        if bool((batch.seq_lens == 0).any()):
            raise NotImplementedError("sequences of no key")
        return emulate(batch, how)

    declaration = Declaration(capabilities=FEATURES, rounding=how.rounding)
    assert convictions(ORACLE, Kernel(attend, declaration), 40, seed=2) == []


# --------------------------------------------------------------------- every mistake is convicted


@cache
def problems() -> list[tuple[Case, AttentionBatch, Expected]]:
    """The first cases of the check, and one with block ids that need 17 bits."""
    under_test = right()
    high = Case(((40, 1),), block_size=1, head_dim=16, head_dim_v=16, placement=Placement.HIGH)
    found = []
    for case in [*drawn(ORACLE, under_test, DRAWN), high]:
        batch = under_test.build(case).batch
        found.append((case, batch, expect(batch, ALL.rounding)))
    return found


def first_convicting(name: str) -> Case | None:
    """The first case on which a mistake exceeds the budget."""
    under_test, mistaken = right(), twisted(name)(ALL)
    for case, batch, expected in problems():
        try:
            result = mistaken(replace(batch, output=None, lse=None))
        except ValueError:
            continue
        if judged(under_test, result, expected).problem is not None:
            return case
    return None


@pytest.mark.parametrize("name", TWISTS)
def test_every_mistake_is_convicted_and_explained(name: str) -> None:
    case = first_convicting(name)
    assert case is not None, "no generated case can tell"
    wrong = judge(Kernel(twisted(name)(ALL), ALL), case)
    assert wrong is not None
    same = wrong.looks == f"it looks as if {TWISTS[name].words}"
    assert same or wrong.looks or wrong.invariant == "K3", "an equivalent at least"
    assert wrong.story


SHRUNK = (
    "late-mask",
    "top-left",
    "wide-window",
    "first-key",
    "whole-block",
    "block-repeated",
    "no-softcap",
    "alibi-sign",
    "sinks-kv-head",
    "modulo-heads",
    "v-scale-first-slot",
    "base-2",
)


@pytest.mark.parametrize("name", SHRUNK)
def test_a_shrunk_case_is_small_and_explained_by_the_mistake_itself(name: str) -> None:
    broken, case = Kernel(twisted(name)(ALL), ALL), first_convicting(name)
    assert case is not None
    words = f"it looks as if {TWISTS[name].words}"

    def fails(candidate: Case) -> bool:
        wrong = judge(broken, candidate)
        return wrong is not None and wrong.looks == words

    while not fails(case):  # an equivalent mistake explains this one
        case = next(each for each, _, _ in problems() if each != case and fails(each))
    small = shrink(case, fails, Deadline(20.0))
    wrong = judge(broken, small)
    assert wrong is not None
    assert wrong.invariant == TWISTS[name].invariant
    assert len(small.seqs) <= 2
    assert sum(keys for keys, _ in small.seqs) <= 8
    assert small.num_q_heads <= 4
    assert small.head_dim <= 8


# ------------------------------------------------------------------------------ the closer checks


def test_each_modifier_is_on_at_both_phases_where_forgetting_it_shows() -> None:
    under_test = right()
    found = list(SCORES.cases(under_test, Random(0)))
    met = [reach for case in found for reach in reached(case)]
    for name in ("SOFTCAP", "ALIBI", "SINKS", "SCALE", "WINDOW"):
        assert Reach[f"{name}_DECODE"] in met
        assert Reach[f"{name}_PREFILL"] in met
    for case in found[:12]:
        on = [t for _, change, t in MODIFIERS.values() if _is_on(case, change)]
        assert on
        assert telling(under_test, case, on)


def _is_on(case: Case, change: dict[str, Any]) -> bool:
    return all(getattr(case, name) == value for name, value in change.items())


def test_a_case_that_cannot_tell_is_known_as_such() -> None:
    flat = Case(((1, 1),), head_dim=16, head_dim_v=16, scale=0.25, window_left=5)
    assert not telling(right(), flat, ["no-window"])
    assert not telling(right(), flat, ["default-scale"]), "0.25 is what it would be anyway"
    assert telling(right(), replace(flat, scale=0.1), ["default-scale"])


def test_scales_are_tried_on_keys_and_values_of_every_type_at_both_phases() -> None:
    under_test = right()
    found = list(SCALES.cases(under_test, Random(0)))
    met = Counter(reach for case in found for reach in reached(case))
    assert missing("K10", met, ALL, lambda reach: True) == []
    kinds = {(case.cache_dtype, case.k_scale) for case in found}
    for dtype in ("float8_e4m3fn", "float8_e5m2", "int8", "bfloat16"):
        for scaling in (Scaling.TENSOR, Scaling.HEAD, Scaling.TOKEN):
            assert (dtype, scaling) in kinds
    assert all(telling(under_test, case, ["no-k-scale", "no-v-scale"]) for case in found[:6])


def broken(change: Callable[[AttentionBatch], AttentionBatch]) -> Kernel:
    """A kernel that reads another batch, in a way that no twist stands for."""
    sound = OracleKernel(ALL)
    return Kernel(lambda batch: sound(change(batch)), ALL)


def test_an_unknown_fault_of_a_modifier_breaks_the_score_pipeline() -> None:
    def change(batch: AttentionBatch) -> AttentionBatch:
        return replace(batch, softcap=None if batch.softcap is None else 1.2 * batch.softcap)

    found = convictions(SCORES, broken(change), 20)
    assert {wrong.invariant for wrong in found} == {"K9"}


def test_an_unknown_fault_of_a_scale_breaks_the_scales() -> None:
    def change(batch: AttentionBatch) -> AttentionBatch:
        return replace(batch, k_scale=None if batch.k_scale is None else 1.3 * batch.k_scale)

    found = convictions(SCALES, broken(change), 6)
    assert {wrong.invariant for wrong in found} == {"K10"}


def test_a_size_may_be_refused_but_not_computed_wrongly() -> None:
    def refuse(batch: AttentionBatch) -> AttentionResult:
        if batch.query.shape[2] & (batch.query.shape[2] - 1):
            raise NotImplementedError("head sizes other than powers of two")
        return OracleKernel(ALL)(batch)

    assert convictions(SIZES, Kernel(refuse, ALL), 30) == []

    def cut(batch: AttentionBatch) -> AttentionBatch:
        """The last columns of the query, where they fill no 16, are forgotten."""
        dim = batch.query.shape[2]
        query = batch.query.clone()
        query[..., max(8, dim // 16 * 16) :] = 0
        return replace(batch, query=query)

    found = convictions(SIZES, broken(cut), 40)
    assert found
    assert {wrong.invariant for wrong in found} == {"K11"}


def test_sizes_are_many_and_seldom_ones() -> None:
    found = list(SIZES.cases(right(), Random(0)))
    assert {80, 96, 13, 1, 512} <= {case.head_dim for case in found}
    assert {1, 3, 5, 48, 544} <= {case.block_size for case in found}
    assert {(576, 512), (192, 128)} <= {(case.head_dim, case.head_dim_v) for case in found}


# ------------------------------------------------------------------------------------- controls


NARROW: dict[str, Callable[[AttentionBatch], Any]] = {
    "takes all": lambda batch: True,
    "one row at a time": lambda b: (b.query_start.diff() == 1).all() and (b.seq_lens > 0).all(),
    "whole prefill": lambda b: (b.query_start.diff() == b.seq_lens).all(),
    "float32, head size 128, blocks of 16": lambda b: (
        b.query.dtype == b.key_cache.dtype == torch.float32
        and b.query.shape[2] == 128
        and b.key_cache.shape[1] == 16
    ),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize("name", NARROW)
def test_the_control_is_convicted_on_what_the_kernel_accepts(check: Check, name: str) -> None:
    sound, control = OracleKernel(ALL), Kernel(check.control(ALL), ALL)

    def attend(batch: AttentionBatch) -> AttentionResult:
        if not NARROW[name](batch):
            raise NotImplementedError("not offered")
        return sound(batch)

    under_test = Kernel(attend, ALL)
    assert Offers(under_test).usable
    for case in drawn(check, under_test, 40):
        try:
            assert check.judge(under_test, case) is None
        except Refused:
            continue
        if case not in under_test.refused and check.judge(control, case) is not None:
            return
    pytest.fail("the check cannot see its own control")
