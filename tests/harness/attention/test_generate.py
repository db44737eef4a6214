"""Generated cases: pairs met, edges met, and everything within what a kernel accepts."""

from collections import Counter
from collections.abc import Callable
from itertools import combinations, islice
from random import Random
from typing import Any

import pytest
import torch

from kvassay.harness.attention.case import Case, Contents, Placement
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.generate import cases, chosen, covering, pairwise
from kvassay.harness.attention.lattice import lattice, long_rows, sequences
from kvassay.harness.attention.offers import FACTORS, Offers
from kvassay.harness.attention.oracle_kernel import OracleKernel
from kvassay.harness.attention.pairwise import CoveringArray, Pair, pairs_of
from kvassay.harness.attention.random_cases import MOST_PAIRS, random_cases
from kvassay.harness.attention.reach import NEEDED, Reach, missing, reached, unreached_paths
from kvassay.harness.attention.wrong import Refused
from kvassay.harness.contract import AttentionBatch, Capability, Declaration, Tail

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
            Capability.OUTPUT,
        }
    ),
    tail=Tail.ANY,
)
FEW = Declaration(capabilities=frozenset({Capability.CAUSAL}))
UNASKED_FOR = {Reach.LAYOUT_FAR, Reach.HIGH_IDS, Reach.HUGE}
"""What other checks are for."""


def kernel(declaration: Declaration = ALL) -> Kernel:
    return Kernel(OracleKernel(declaration), declaration)


def picky(takes: Callable[[AttentionBatch], Any], declaration: Declaration = ALL) -> Kernel:
    """A right kernel that refuses what `takes` does not."""
    right = OracleKernel(declaration)

    def attend(batch: AttentionBatch) -> Any:
        if not takes(batch):
            raise NotImplementedError("not offered")
        return right(batch)

    return Kernel(attend, declaration)


def answered(under_test: Kernel, source: Any) -> list[Case]:
    """The cases that a kernel answers, called as a campaign calls it."""
    taken = []
    for case in source:
        try:
            under_test.attend(under_test.build(case))
        except Refused:
            continue
        taken.append(case)
    return taken


# --------------------------------------------------------------------------------- covering array


@pytest.mark.parametrize("seed", range(3))
def test_every_allowed_pair_meets_in_few_rows(seed: int) -> None:
    sizes = {"a": 5, "b": 4, "c": 3, "d": 2, "e": 2, "f": 4}

    def forbidden(pair: Pair) -> bool:
        return pair == (("a", 0), ("b", 0)) or pair == (("c", 1), ("f", 2))

    array = CoveringArray(sizes, Random(seed), forbidden)
    rows = list(array)
    met = {pair for row in rows for pair in pairs_of(row)}
    every = {
        ((one, i), (other, j))
        for one, other in combinations(sizes, 2)
        for i in range(sizes[one])
        for j in range(sizes[other])
    }
    assert met == {pair for pair in every if not forbidden(pair)}
    assert not array.impossible
    assert len(rows) <= 5 * 4 + 5, "two factors alone need 20"


def test_early_rows_cover_most() -> None:
    array = CoveringArray(dict.fromkeys("abcdefgh", 4), Random(0))
    total = len(array.uncovered)
    left = [len(array.uncovered) for _ in array]
    assert left[len(left) // 3] < total / 2


def test_a_pair_that_fits_in_no_row_is_told_and_ends_nothing() -> None:
    array = CoveringArray(
        {"a": 2, "b": 2, "c": 1},
        Random(0),
        lambda pair: pair == (("a", 0), ("c", 0)),
    )
    rows = list(array)
    assert all(row["a"] == 1 for row in rows)
    assert set(array.impossible) == {(("a", 0), ("b", 0)), (("a", 0), ("b", 1))}


def test_a_forbidden_pair_meets_in_no_later_row() -> None:
    array = CoveringArray({"a": 3, "b": 3, "c": 3}, Random(0))
    pair = (("a", 1), ("b", 1))
    array.forbid(pair)
    assert all(pair not in set(pairs_of(row)) for row in array)


# ------------------------------------------------------------------------------- a whole kernel


def test_every_two_offered_values_meet_in_a_case() -> None:
    under_test = kernel()
    offers = Offers(under_test)
    array = covering(offers, Random(0))
    wanted = list(array.uncovered)
    assert not list(array)[120:]
    assert not array.impossible
    drawn = list(pairwise(under_test, Random(0), offers))
    for pair in wanted:
        fields = [f for value in chosen(offers, dict(pair)).values() for f in value.fields]
        assert any(all(getattr(case, f) == v for f, v in fields) for case in drawn), pair


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("evicted", True), ("cache_layout", "hnd")),
        (("evicted", True), ("garbage", "nan")),
        (("k_scale", "token"), ("cache_dtype", "int8")),
        (("head_dim", 576), ("head_dim_v", 512)),
    ],
)
def test_values_that_need_another_meet_too(one: tuple[str, Any], other: tuple[str, Any]) -> None:
    drawn = list(pairwise(kernel(), Random(0)))
    assert any(all(getattr(case, f) == v for f, v in (one, other)) for case in drawn)


def test_nothing_is_left_out_for_a_kernel_that_takes_all() -> None:
    offers = Offers(kernel())
    assert not offers.dropped
    for name, values in FACTORS.items():
        assert set(values) <= set(offers.values[name])
    types = {dict(value.fields)["cache_dtype"] for value in offers.values["types"]}
    assert types == {
        "bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2", "int8"
    }  # fmt: skip


def test_thirty_cases_reach_everything() -> None:
    met = {reach for case in islice(cases(kernel(), Random(0)), 30) for reach in reached(case)}
    assert set(Reach) - met <= UNASKED_FOR


def test_cases_are_the_same_for_the_same_seed_and_other_ones_for_another() -> None:
    def first(seed: int) -> list[Case]:
        return list(islice(cases(kernel(), Random(seed)), 40))

    assert first(1) == first(1)
    assert first(1) != first(2)


def test_what_is_not_claimed_is_not_asked_for() -> None:
    for case in islice(cases(kernel(FEW), Random(0)), 250):
        assert case.window_left is None
        assert case.softcap is None
        assert not any((case.alibi, case.sinks, case.buffers, case.evicted))
        assert case.k_scale == case.v_scale == "none"
        assert case.garbage in ("finite", "zero")


PICKY: dict[str, Callable[[AttentionBatch], Any]] = {
    "decode only": lambda b: (b.query_start.diff() == 1).all() and (b.seq_lens > 0).all(),
    "prefill only": lambda b: (b.query_start.diff() > 1).all(),
    "head size 128": lambda b: b.query.shape[2] == b.value_cache.shape[3] == 128,
    "blocks of 32": lambda b: b.key_cache.shape[1] == 32,
    "float16": lambda b: b.query.dtype == b.key_cache.dtype == torch.float16,
    "not causal": lambda b: not b.causal,
    "HND": lambda b: b.key_cache.stride(1) < b.key_cache.stride(2) or b.key_cache.shape[2] == 1,
    "one KV head": lambda b: b.key_cache.shape[2] == 1,
}


@pytest.mark.parametrize("name", PICKY)
def test_a_kernel_that_refuses_much_gets_cases_that_it_answers(name: str) -> None:
    under_test = picky(PICKY[name])
    offers = Offers(under_test)
    assert offers.usable
    assert offers.dropped, "what it refuses is told"
    under_test.calls.clear()
    taken = answered(under_test, islice(cases(under_test, Random(0)), 60))
    assert len(taken) > 30
    assert len({case.contents for case in taken}) > 3


def test_values_refused_together_cost_the_other_pairs_nothing() -> None:
    under_test = picky(lambda batch: batch.softcap is None or batch.sinks is None)
    offers = Offers(under_test)
    assert not offers.dropped
    taken = answered(under_test, pairwise(under_test, Random(0), offers))
    assert any(case.softcap for case in taken)
    assert any(case.sinks for case in taken)
    assert not any(case.softcap and case.sinks for case in taken)
    assert any("softcap" in text and "sinks" in text for text in offers.dropped)
    later = islice(random_cases(offers, Random(0)), 200)
    assert not any(case.softcap and case.sinks for case in later), "nor are they drawn again"
    for field, options in (("softcap", (None, 2.0, 20.0)), ("sinks", (False, True))):
        for option in options:
            layouts = {c.cache_layout for c in taken if getattr(c, field) == option}
            assert len(layouts) == len(offers.values["cache_layout"]), (field, option)


def test_a_kernel_that_refuses_everything_is_asked_a_few_times_and_left_alone() -> None:
    under_test = picky(lambda batch: False)
    asked = list(islice(cases(under_test, Random(0)), 100))
    assert 0 < len(asked) < 60
    assert not answered(under_test, asked)


# ------------------------------------------------------------------------------- lattice and random


def test_the_lattice_has_every_edge() -> None:
    offers = Offers(kernel())
    size, window = 16, 8
    edges = sequences(offers, size, window)
    assert {0, 1, 15, 16, 17, 31, 32, 33, 7, 8, 9} <= {keys for keys, rows in edges if rows == 1}
    for context in (0, 1, 15, 16, 17):
        assert {rows for keys, rows in edges if keys - rows == context} >= {0, 1, 2, 16, 17}
    drawn = [case for case in lattice(offers, Random(0)) if case.block_size == size]
    of_window = {each for case in drawn if case.window_left == window - 1 for each in case.seqs}
    assert of_window == set(edges)
    mixed = Counter(len({rows > 0 for _, rows in case.seqs}) for case in drawn)
    assert mixed[2] > mixed[1] / 4, "rows and no rows in one batch"
    assert any(c.num_q_heads // c.num_kv_heads not in (1, c.num_kv_heads) for c in drawn)
    assert any(c.window_left is not None and c.window_left + 1 < c.block_size for c in drawn)


def test_long_rows_are_few_and_have_one_feature_each() -> None:
    drawn = list(long_rows(Offers(kernel()), Random(0)))
    assert 5 < len(drawn) < 20
    assert {case.evicted for case in drawn} == {False, True}
    assert all(max(keys for keys, _ in case.seqs) > 500 for case in drawn)


def test_random_cases_cost_no_more_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvassay.harness.attention.random_cases.MOST_PAIRS", 2000)
    drawn = list(islice(random_cases(Offers(kernel()), Random(0)), 50))
    assert all(case.num_pairs <= 2000 for case in drawn)


def test_random_cases_have_no_end_and_bounded_cost() -> None:
    drawn = list(islice(random_cases(Offers(kernel()), Random(0)), 300))
    assert all(case.num_pairs <= MOST_PAIRS for case in drawn)
    assert len(set(drawn)) > 295
    small = [c for c in drawn if all(keys <= 400 for keys, _ in c.seqs)]
    assert len(small) > 280
    marked = [c for c in drawn if c.contents in (Contents.NEEDLE, Contents.HALVES)]
    assert any(c.mark > 0 for c in marked)
    assert all(c.placement is not Placement.HIGH or c.block_size <= 2 for c in drawn)


# --------------------------------------------------------------------------------------- reach


def test_what_a_case_reaches() -> None:
    case = Case(((17, 1), (40, 3)), window_left=4, num_q_heads=6, num_kv_heads=3, sinks=True)
    met = reached(case)
    assert {
        Reach.DECODE,
        Reach.CHUNK,
        Reach.MIXED,
        Reach.AFTER_BLOCK_END,
        Reach.WINDOW_DECODE,
        Reach.WINDOW_PREFILL,
        Reach.WINDOW_IN_BLOCK,
        Reach.WINDOW_BELOW_BLOCK,
        Reach.HEADS_APART,
        Reach.SINKS_DECODE,
        Reach.SINKS_PREFILL,
        Reach.TAIL,
    } <= met
    absent = {
        Reach.PREFILL,
        Reach.EMPTY_ROW,
        Reach.NO_ROWS,
        Reach.AT_BLOCK_END,
        Reach.BEFORE_BLOCK_END,
        Reach.WINDOW_WIDE,
        Reach.EVICTED,
        Reach.SHARED,
        Reach.MQA,
        Reach.K_SCALE_DECODE,
        Reach.NOT_CAUSAL,
    }
    assert not met & absent


@pytest.mark.parametrize(
    ("seqs", "reach"),
    [
        (((15, 1),), Reach.BEFORE_BLOCK_END),
        (((16, 1),), Reach.AT_BLOCK_END),
        (((5, 5),), Reach.PREFILL),
        (((0, 1),), Reach.EMPTY_ROW),
        (((2, 3),), Reach.EMPTY_ROW),
        (((9, 0),), Reach.NO_ROWS),
        (((1000, 1),), Reach.LONG_ROW),
    ],
)
def test_lengths_that_are_reached(seqs: tuple[tuple[int, int], ...], reach: Reach) -> None:
    assert reach in reached(Case(seqs))
    assert reach not in reached(Case(((21, 1),)))


def test_a_window_that_cuts_nothing_has_no_edge() -> None:
    assert Reach.WINDOW_IN_BLOCK not in reached(Case(((5, 1),), window_left=7))
    assert Reach.WINDOW_IN_BLOCK in reached(Case(((9, 1),), window_left=7))
    assert Reach.WINDOW_IN_BLOCK not in reached(Case(((24, 1),), window_left=7))


def anything(reach: Reach) -> bool:
    return True


def test_what_is_missing_is_told_unless_nobody_claims_it() -> None:
    met: Counter[Reach] = Counter()
    for case in islice(cases(kernel(), Random(0)), 60):
        met.update(reached(case))
    for invariant in NEEDED:
        assert missing(invariant, met, ALL, anything) == (
            [] if invariant != "K12" else [Reach.HUGE.value]
        )
    met[Reach.SINKS_DECODE] = 0
    assert missing("K9", met, ALL, anything) == [Reach.SINKS_DECODE.value]
    assert missing("K9", met, FEW, anything) == []


def test_what_is_refused_is_not_missing() -> None:
    met = Counter({Reach.WINDOW_DECODE: 1, Reach.WINDOW_IN_BLOCK: 1})
    assert missing("K6", met, ALL, lambda reach: not reach.name.endswith("PREFILL")) == [
        Reach.WINDOW_WIDE.value
    ]
    assert Reach.WINDOW_PREFILL.value in missing("K6", met, ALL, anything)
    assert missing("K6", met, ALL, lambda reach: False) == []
    assert missing("K5", met, ALL, lambda reach: reach is Reach.CHUNK) == [Reach.CHUNK.value]


def test_paths_never_taken_are_told() -> None:
    under_test = kernel()
    assert unreached_paths(under_test) == []
    under_test.instance.paths = {"split": 0, "plain": 3}
    assert unreached_paths(under_test) == ["split"]
