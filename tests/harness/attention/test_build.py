"""From a case to tensors: what is where, and what is garbage."""

from dataclasses import replace

import pytest
import torch

from kvassay.harness.attention.build import build, gone
from kvassay.harness.attention.case import (
    CacheLayout,
    Case,
    Contents,
    Garbage,
    Placement,
    RowLayout,
    Scaling,
)
from kvassay.reference.attention import attend, sequences

SMALL = Case(
    ((20, 3), (7, 1), (0, 0), (9, 9)),
    num_q_heads=4,
    num_kv_heads=2,
    head_dim=16,
    head_dim_v=16,
    block_size=4,
)
PLAIN = attend(build(SMALL).batch)


@pytest.mark.parametrize("layout", list(CacheLayout))
def test_the_result_does_not_depend_on_the_cache_layout(layout: CacheLayout) -> None:
    built = build(replace(SMALL, cache_layout=layout))
    exact = attend(built.batch)
    assert torch.isfinite(exact.output).all()
    if layout is not CacheLayout.V_IN_K:
        assert torch.equal(exact.output, PLAIN.output)
    assert layout is CacheLayout.NHD or not _dense_nhd(built.batch.key_cache, built.batch)


def _dense_nhd(key_cache: torch.Tensor, batch: object) -> bool:
    value_cache = batch.value_cache  # type: ignore[attr-defined]
    apart = key_cache.untyped_storage().data_ptr() != value_cache.untyped_storage().data_ptr()
    return key_cache.is_contiguous() and value_cache.is_contiguous() and apart


@pytest.mark.parametrize("layout", list(RowLayout))
@pytest.mark.parametrize("placement", list(Placement))
def test_nor_on_where_things_lie(layout: RowLayout, placement: Placement) -> None:
    exact = attend(build(replace(SMALL, row_layout=layout, placement=placement)).batch)
    assert torch.equal(exact.output, PLAIN.output)


def test_the_placement_decides_the_ids() -> None:
    tables = [build(replace(SMALL, placement=placement)).tables for placement in Placement]
    assert all(one != other for i, one in enumerate(tables) for other in tables[:i])


@pytest.mark.parametrize("garbage", list(Garbage))
@pytest.mark.parametrize(
    "cache_dtype", ["float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"]
)
def test_garbage_is_never_looked_at(garbage: Garbage, cache_dtype: str) -> None:
    case = replace(
        SMALL,
        cache_dtype=cache_dtype,
        window_left=3,
        evicted=True,
        k_scale=Scaling.TOKEN,
        v_scale=Scaling.TOKEN,
        garbage=garbage,
    )
    assert torch.isfinite(attend(build(case).batch).output).all()


def test_garbage_fills_what_nobody_may_read() -> None:
    built = build(replace(SMALL, garbage=Garbage.NAN))
    key = built.batch.key_cache.float()
    live = torch.zeros(key.shape[:2], dtype=torch.bool)
    for sequence in (0, 1, 3):
        for position in range(SMALL.seqs[sequence][0]):
            live[built.tables[sequence][position // 4], position % 4] = True
    assert torch.equal(torch.isnan(key).any(-1).any(-1), ~live)
    assert (built.batch.block_table[1, 2:] == 2**30).all()


def test_blocks_left_of_the_window_are_gone() -> None:
    case = replace(SMALL, window_left=3, evicted=True, garbage=Garbage.INF)
    built = build(case)
    assert gone(case, 0) == (20 - 3 - 3) // 4
    assert (built.batch.block_table[0, :3] == -1).all()
    assert (built.batch.block_table[0, 3:5] >= 0).all()


def test_shared_blocks_are_one_storage_with_one_content() -> None:
    built = build(replace(SMALL, shared_blocks=1))
    assert built.tables[0][0] == built.tables[3][0]
    keys = [sequence.key for sequence in sequences(built.batch)]
    assert torch.equal(keys[0][:4], keys[2][:4])
    assert not torch.equal(keys[0][4:8], keys[2][4:8])


def test_high_ids_lie_on_both_sides_of_the_edges() -> None:
    built = build(replace(SMALL, placement=Placement.HIGH))
    ids = {block for table in built.tables for block in table}
    assert min(ids) < 2**15 <= max(ids)
    many = build(replace(SMALL, seqs=((400, 1),), placement=Placement.HIGH))
    assert max(many.tables[0]) >= 2**16


def test_far_blocks_start_past_two_to_the_31_elements() -> None:
    built = build(replace(SMALL, cache_layout=CacheLayout.FAR))
    ids = [block for table in built.tables for block in table]
    assert max(ids) * built.batch.key_cache.stride(0) > 2**31


def test_seed_and_contents_decide_everything() -> None:
    again = build(SMALL).batch
    assert torch.equal(again.query, build(SMALL).batch.query)
    assert not torch.equal(again.query, build(replace(SMALL, seed=1)).batch.query)


def test_a_needle_takes_nearly_all_the_weight() -> None:
    case = replace(SMALL, contents=Contents.NEEDLE, mark=5, causal=False)
    first = next(sequences(build(case).batch))
    weight = torch.softmax(first.logits, -1)[..., 5]
    assert weight.min() > 0.98


def test_halves_differ_in_weight_and_value() -> None:
    case = replace(SMALL, contents=Contents.HALVES, mark=10, causal=False)
    first = next(sequences(build(case).batch))
    assert first.logits[..., :10].mean() - first.logits[..., 10:].mean() > 3
    assert first.value[:10].mean() > 0.5
    assert first.value[10:].mean() < -0.5


def test_counted_values_are_unit_vectors_by_position() -> None:
    first = next(sequences(build(replace(SMALL, contents=Contents.COUNTED)).batch))
    assert torch.equal(first.value[:, 0].argmax(-1), torch.arange(20) % 16)
    placed = next(sequences(build(replace(SMALL, contents=Contents.PLACED)).batch))
    assert torch.equal(placed.value[:, 1].argmax(-1), torch.arange(20) % 15)
    assert (first.logits[first.visible.expand_as(first.logits)] == 0).all()


def test_scales_stay_in_range_and_vary_over_what_they_say() -> None:
    case = replace(SMALL, cache_dtype="int8", k_scale=Scaling.HEAD, v_scale=Scaling.TOKEN)
    batch = build(case).batch
    assert batch.k_scale.shape == (2,)
    assert batch.v_scale.shape == batch.value_cache.shape[:3]
    assert (batch.k_scale * 32 >= 0.5).all()
    assert (batch.k_scale * 32 <= 2).all()
    assert isinstance(build(replace(case, k_scale=Scaling.TENSOR)).batch.k_scale, float)
