"""The Triton kernel in the interpreter: every path and feature within the rounding budget."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvassay.harness.attention.case import CacheLayout, Case, Garbage, RowLayout, Scaling
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.wrong import Refused
from kvassay.harness.budget import expect, judge
from kvassay.harness.contract import Capability, Declaration
from kvassay.harness.interpreter import use_interpreter

pytest.importorskip("triton")

DECLARED = Declaration(capabilities=frozenset({Capability.LSE, Capability.OUTPUT}))
CASES = {
    "decode": Case(((37, 1), (5, 1), (0, 1)), num_q_heads=6),
    "mixed": Case(((70, 9), (33, 1), (12, 12)), window_left=16, evicted=True),
    "tiles of one sequence": Case(((80, 80),), num_q_heads=4, num_kv_heads=1, block_size=5),
    "splits": Case(((700, 1),), sinks=True),
    "splits of a chunk": Case(((600, 3),), softcap=5.0, alibi=True),
    "splits of tiles": Case(((600, 140),), num_kv_heads=1),
    "fp8": Case(
        ((40, 1), (20, 4)),
        cache_dtype="float8_e4m3fn",
        k_scale=Scaling.TOKEN,
        v_scale=Scaling.HEAD,
    ),
    "int8": Case(
        ((40, 2),), cache_dtype="int8", k_scale=Scaling.TENSOR, v_scale=Scaling.TOKEN, scale=0.3
    ),
    "two head sizes": Case(((30, 2),), head_dim=192, head_dim_v=128, dtype="float16"),
    "strided": Case(
        ((30, 2), (18, 1)), cache_layout=CacheLayout.HND, row_layout=RowLayout.FUSED, buffers=True
    ),
    "not causal": Case(((30, 4),), causal=False, dtype="float32", cache_dtype="float32"),
}


def kernel(**options: bool) -> Kernel:
    use_interpreter()
    from kvassay.impls.triton_attention import TritonAttention

    return Kernel(TritonAttention(**options), DECLARED)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("garbage", [Garbage.NAN, Garbage.INF])
def test_a_case_is_within_the_budget(name: str, garbage: Garbage) -> None:

    under_test = kernel()
    built = under_test.build(replace(CASES[name], garbage=garbage))
    judgement = judge(under_test.attend(built), expect(built.batch), lse=True)
    assert judgement.problem is None


def test_the_cases_take_every_path() -> None:
    paths: set[str] = set()
    for case in CASES.values():
        under_test = kernel()
        under_test.attend(under_test.build(case))
        paths |= {path for path, times in under_test.paths.items() if times}
    assert paths == set(under_test.paths)


def test_a_split_of_fixed_size_does_not_depend_on_the_batch() -> None:
    under_test = kernel(batch_invariant=True)
    both = under_test.build(Case(((700, 1), (90, 1))))
    batch = both.batch
    alone = replace(
        batch,
        query=batch.query[:1],
        block_table=batch.block_table[:1],
        seq_lens=batch.seq_lens[:1],
        query_start=batch.query_start[:2],
    )
    expected = under_test.instance(alone).output[0]
    assert (under_test.attend(both).output[0] == expected).all()


def test_what_is_not_offered_is_refused() -> None:
    under_test = kernel()
    with pytest.raises(Refused, match="head sizes up to 576 are offered"):
        under_test.attend(under_test.build(Case(((3, 1),), head_dim=640)))


@pytest.mark.parametrize("name", ["fp8", "int8"])
def test_values_in_pairs_are_the_values_one_by_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_test = kernel()
    from kvassay.impls import triton_attention

    paired: list[bool] = []
    choose = triton_attention._in_pairs
    monkeypatch.setattr(
        triton_attention, "_in_pairs", lambda *given: paired.append(choose(*given)) or paired[-1]
    )
    built = under_test.build(CASES[name])
    in_pairs = under_test.attend(built)
    monkeypatch.setattr(triton_attention, "_in_pairs", lambda *_: False)
    one_by_one = under_test.attend(built)
    assert paired == [True]
    assert in_pairs.output.equal(one_by_one.output)


def test_values_at_odd_places_come_one_by_one() -> None:
    under_test = kernel()
    odd = replace(CASES["fp8"], head_dim=32, head_dim_v=33)
    built = under_test.build(odd)
    judgement = judge(under_test.attend(built), expect(built.batch), lse=True)
    assert judgement.problem is None


def test_a_type_that_came_later_is_not_offered_on_an_older_gpu() -> None:
    import torch

    kernel()
    from kvassay.impls.triton_attention import _has

    assert not _has(torch.float8_e4m3fn, (8, 0))
    assert _has(torch.float8_e4m3fn, (8, 9))
    assert _has(torch.float8_e5m2, (8, 0))
