"""Reading the assembly of an AMD kernel."""

from __future__ import annotations

import pytest

from kvassay.harness.ahead import amd
from kvassay.harness.ahead.compiling import Binary
from kvassay.harness.ahead.report import NotRead

CODE = """
; %bb.0:
	s_load_dwordx2 s[0:1], s[4:5], 0x0
.LBB0_1:                                ;   in Loop: Header=BB0_3 Depth=1
	global_load_dwordx4 v[0:3], v[4:5], off
	buffer_load_dword v6, v7, s[0:3], 0
	v_mfma_f32_16x16x16_bf16 v[0:3], v[4:5], v[6:7], 0
	s_branch .LBB0_3
.LBB0_2:
	global_load_ushort v[0:3], v[4:5], off
	s_endpgm
.LBB0_3:                                ; =>This Inner Loop Header: Depth=1
	global_load_dwordx4 v[0:3], v[4:5], off
; %bb.4:                                ;   in Loop: Header=BB0_3 Depth=1
	s_cbranch_scc1 .LBB0_1
"""
NOTES = """
	.amdgpu_metadata
    .private_segment_fixed_size: 0
    .sgpr_spill_count: 5
    .vgpr_count:     198
    .vgpr_spill_count: 0
	.end_amdgpu_metadata
"""


def read(text: str) -> dict[str, object]:
    return amd.read(Binary("f", {"amdgcn": text}, 4096, 0, 4, 0.0))


def test_a_kernel_is_read() -> None:
    found = read(CODE + NOTES)
    assert found["registers"] == 198
    assert found["spilled"] == 0
    assert found["scalar_spills"] == 5
    assert found["shared"] == 4096
    (loop,) = found["loops"]
    assert loop.products == {"MFMA": 1}
    assert loop.loads == {16: 2, 4: 1}
    assert loop.in_flight is None


@pytest.mark.parametrize(
    ("old", "new", "spilled"),
    [("vgpr_spill_count: 0", "vgpr_spill_count: 7", 7), ("size: 0", "size: 36", 9)],
)
def test_spills_are_vector_registers_and_scratch(old: str, new: str, spilled: int) -> None:
    assert read(CODE + NOTES.replace(old, new))["spilled"] == spilled


def test_a_loop_without_products_is_none() -> None:
    assert read(CODE.replace("v_mfma", "v_fma") + NOTES)["loops"] == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CODE, "no notes"),
        (NOTES, "no instructions"),
        (CODE + NOTES.replace(".vgpr_count", ".other"), "one note vgpr_count, found 0"),
        (CODE.replace("load_dwordx4", "load_b512") + NOTES, "unknown width"),
    ],
)
def test_what_lacks_a_part_is_not_read(text: str, message: str) -> None:
    with pytest.raises(NotRead, match=message):
        read(text)
