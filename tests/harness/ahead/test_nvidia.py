"""Reading what cuobjdump prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvassay.harness.ahead import nvidia
from kvassay.harness.ahead.compiling import Binary
from kvassay.harness.ahead.report import NotRead

RESOURCES = " Function f:\n  REG:168 STACK:{stack} SHARED:1024 LOCAL:0 CONSTANT[0]:792\n"
LOOP = """
	code for sm_90a
        /*0000*/                   LDC R1, c[0x0][0x28] ;          /* 0x00000a00ff017b82 */
                                                                   /* 0x000e620000000800 */
        /*0010*/                   LDGSTS.E.BYPASS.128 [R12], desc[UR20][R44.64] ;
        /*0020*/                   DEPBAR.LE SB0, 0x2 ;
        /*0030*/                   HMMA.16816.F32.BF16 R4, R4, R8, R4 ;
        /*0040*/              @!PT LDS RZ, [RZ] ;
        /*0050*/               @P1 LDGSTS.E.BYPASS.128 [R12], desc[UR20][R44.64] ;
        /*0060*/                   LDGDEPBAR ;
        /*0070*/                   LDGSTS.E.64 [R12], desc[UR20][R44.64] ;
        /*0080*/                   LDG.E R3, desc[UR20][R44.64] ;
        /*0090*/                   LDGDEPBAR ;
        /*00a0*/               @P3 BRA 0x20 ;
        /*00b0*/                   DEPBAR.LE SB0, 0x0 ;
        /*00c0*/                   EXIT ;
        /*00d0*/                   BRA 0xd0;
"""


def test_a_loop_is_read() -> None:
    read = nvidia.read_code(LOOP)
    assert read["instructions"] == 14
    (loop,) = read["loops"]
    assert loop.products == {"HMMA": 1}
    assert loop.copies == {16: 1, 8: 1}
    assert loop.loads == {4: 1}


@pytest.mark.parametrize(("left", "tiles"), [(0, 1), (2, 2), (4, 3)])
def test_tiles_in_flight_are_what_the_wait_leaves_and_one(left: int, tiles: int) -> None:
    (loop,) = nvidia.read_code(LOOP.replace("SB0, 0x2", f"SB0, 0x{left}"))["loops"]
    assert loop.in_flight == tiles


def test_an_unrolled_loop_has_no_more_in_flight() -> None:
    lines = LOOP.splitlines()
    start, stop = (
        next(at for at, line in enumerate(lines) if address in line)
        for address in ("/*0020*/", "/*00a0*/")
    )
    (loop,) = nvidia.read_code("\n".join([*lines[:stop], *lines[start:]]))["loops"]
    assert loop.products == {"HMMA": 2}
    assert loop.in_flight == 2


def test_a_loop_may_end_in_a_branch_that_hangs_on_nothing() -> None:
    endless = LOOP.replace("@P3 BRA 0x20", "BRA 0x20").replace("@!PT LDS RZ, [RZ]", "@P0 BRA 0xb0")
    assert nvidia.read_code(endless)["loops"] == nvidia.read_code(LOOP)["loops"]


def test_the_way_back_from_a_wait_out_of_line_is_no_loop() -> None:
    back = LOOP.replace("BRA 0xd0", "BRA 0x30").replace("LDC R1, c[0x0][0x28]", "BRA 0xc0")
    assert nvidia.read_code(back)["loops"] == nvidia.read_code(LOOP)["loops"]


def test_a_loop_without_products_or_around_one_is_none() -> None:
    assert nvidia.read_code(LOOP.replace("HMMA", "FFMA"))["loops"] == ()
    around = LOOP.replace("/*00c0*/                   EXIT", "/*00c0*/  @P0 BRA 0x0")
    assert len(nvidia.read_code(around)["loops"]) == 1


@pytest.mark.parametrize(
    ("instruction", "family"),
    [("HGMMA.64x64x16.F32.BF16", "HGMMA"), ("UTCHMMA", "tcgen05"), ("UTCQMMA", "tcgen05")],
)
def test_families(instruction: str, family: str) -> None:
    assert nvidia.products([(0, instruction, "")]) == {family: 1}
    assert nvidia.products([(0, "UTCBAR", ""), (0, "FFMA", "")]) == {}


def test_a_loop_that_copies_and_never_waits_is_not_read() -> None:
    with pytest.raises(NotRead, match="never waits"):
        nvidia.read_code(LOOP.replace("DEPBAR.LE SB0, 0x2", "NOP"))


def test_spills_are_the_stack_or_what_goes_there() -> None:
    assert nvidia.read_resources(RESOURCES.format(stack=0), LOOP)["spilled"] == 0
    assert nvidia.read_resources(RESOURCES.format(stack=24), LOOP)["spilled"] == 24
    local = LOOP.replace("LDS RZ", "LDL R1")
    assert nvidia.read_resources(RESOURCES.format(stack=0), local)["spilled"] == 4


@pytest.mark.parametrize("resources", ["", RESOURCES.format(stack=0) * 2])
def test_resources_of_no_kernel_or_of_two_are_not_read(resources: str) -> None:
    with pytest.raises(NotRead, match="resources of one kernel"):
        nvidia.read_resources(resources, LOOP)


def test_an_empty_listing_is_not_read() -> None:
    with pytest.raises(NotRead, match="no instructions"):
        nvidia.read_code("code for sm_90a\n")


def test_without_a_disassembler_nothing_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    triton = pytest.importorskip("triton")
    monkeypatch.setattr(triton, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(NotRead, match="no cuobjdump"):
        nvidia.read(Binary("f", {"cubin": b"ELF"}, 0, 0, 4, 0.0))


def test_what_is_no_binary_is_not_read() -> None:
    pytest.importorskip("triton")
    with pytest.raises(NotRead, match="cuobjdump"):
        nvidia.read(Binary("f", {"cubin": b"nothing"}, 0, 0, 4, 0.0))
