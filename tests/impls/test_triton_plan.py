"""Tiles fit the GPU that they are cut for."""

from __future__ import annotations

import pytest
import torch

from kvassay.harness.ahead.targets import TARGETS
from kvassay.harness.contract import AttentionBatch
from kvassay.impls.triton_plan import TUNINGS, Tile, plan


def tile(target: str, dims: tuple[int, int], tokens: int, dtype: torch.dtype) -> Tile:
    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    batch = AttentionBatch(
        query=empty(tokens, 32, dims[0]),
        key_cache=empty(4096, 16, 1, dims[0]),
        value_cache=empty(4096, 16, 1, dims[1]),
        block_table=torch.zeros(1, 256, dtype=torch.int32),
        seq_lens=torch.tensor([4096], dtype=torch.int32),
        query_start=torch.tensor([0, tokens], dtype=torch.int32),
    )
    return plan(batch, TUNINGS[target]).tile


def test_there_is_a_tuning_for_each_target() -> None:
    assert list(TUNINGS) == list(TARGETS)
    for name, target in TARGETS.items():
        assert TUNINGS[name].shared_memory == target.shared_memory
        assert TUNINGS[name].warp == target.warp


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2])
@pytest.mark.parametrize("tokens", [1, 512])
@pytest.mark.parametrize(
    "dims", [(64, 64), (80, 80), (128, 128), (192, 128), (256, 256), (576, 512)]
)
def test_the_tiles_that_are_kept_fit(
    target: str, dims: tuple[int, int], tokens: int, dtype: torch.dtype
) -> None:
    cut, tuning = tile(target, dims, tokens, dtype), TUNINGS[target]
    assert cut.num_stages == tuning.num_stages
    row = (cut.dim + cut.dim_rest + cut.dim_v) * dtype.itemsize
    kept = cut.num_stages - cut.to_registers
    assert kept * cut.block_n * row <= tuning.shared_memory
    assert cut.block_m * cut.dim_v <= tuning.accumulators
    assert cut.num_warps <= tuning.most_warps


def test_groups_of_warps_keep_a_tile_that_others_do_not() -> None:
    assert not tile("sm_90", (128, 128), 512, torch.bfloat16).to_registers
    assert tile("sm_90", (128, 128), 1, torch.bfloat16).to_registers
    assert tile("sm_80", (128, 128), 512, torch.bfloat16).to_registers
