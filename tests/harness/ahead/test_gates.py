"""What gates object to, and that they object where there is nothing to look at."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kvassay.harness.ahead.gates import GATES
from kvassay.harness.ahead.report import Loop, Report, from_json

LOOP = Loop(products={"HGMMA": 8}, copies={16: 16}, loads={4: 3}, in_flight=2)
GOOD = Report(
    name="prefill",
    target="sm_90",
    phase="prefill",
    threads=256,
    registers=200,
    shared=131072,
    tile_bytes=32768,
    instructions=3000,
    loops=(LOOP, LOOP),
)
DECODE = replace(GOOD, phase="decode", loops=(replace(LOOP, products={"HMMA": 8}),))
LOADS = Loop(products={"MFMA": 8}, copies={}, loads={16: 8, 4: 3}, in_flight=None)
AMD = replace(GOOD, target="gfx942", shared=32768, loops=(LOADS,))


def objecting(report: Report) -> set[str]:
    return {name for name, gate in GATES.items() if gate(report)}


@pytest.mark.parametrize("report", [GOOD, DECODE, AMD])
def test_nobody_objects_to_what_is_good(report: Report) -> None:
    assert objecting(report) == set()


@pytest.mark.parametrize(
    "nothing",
    [
        replace(GOOD, error="NotRead: no cuobjdump"),
        replace(GOOD, loops=()),
        replace(GOOD, instructions=0),
        replace(GOOD, registers=0),
        replace(GOOD, tile_bytes=0),
    ],
)
def test_every_gate_objects_where_there_is_nothing_to_look_at(nothing: Report) -> None:
    assert objecting(nothing) == set(GATES)


@pytest.mark.parametrize(
    ("report", "gate", "message"),
    [
        (replace(GOOD, spilled=8), "fits", "spills 8 bytes"),
        (replace(AMD, spilled=8), "fits", "spills 8 registers"),
        (replace(GOOD, shared=262144), "fits", "262144 bytes of shared memory of 232448"),
        (replace(AMD, shared=65537), "fits", "65537 bytes of shared memory of 65536"),
        (replace(GOOD, threads=512), "fits", "102400 registers of 65536"),
        (replace(AMD, threads=512, registers=257), "fits", "528 registers of 512"),
        (replace(GOOD, tensor_memory=513), "fits", "513 columns"),
        (replace(GOOD, loops=(LOOP, replace(LOOP, copies={16: 7}))), "copies", "28672 bytes of"),
        (replace(GOOD, loops=(replace(LOOP, copies={16: 16, 8: 2}),)), "copies", "2 copies of 8"),
        (replace(GOOD, loops=(replace(LOOP, loads={2: 5}),)), "copies", "past shared memory"),
        (replace(AMD, loops=(replace(LOADS, loads={16: 8, 2: 1}),)), "copies", "1 copies of 2"),
        (replace(DECODE, shared=40000), "in flight", "hold 1 tile"),
        (replace(DECODE, loops=(replace(LOOP, in_flight=1),)), "in flight", "has 1 tile"),
        (replace(DECODE, loops=(replace(LOOP, in_flight=None),)), "in flight", "has None tile"),
        (replace(GOOD, loops=DECODE.loops), "products", "HMMA"),
        (replace(GOOD, target="sm_100"), "products", "not by tcgen05"),
    ],
)
def test_one_gate_objects(report: Report, gate: str, message: str) -> None:
    assert objecting(report) == {gate}
    assert message in " ".join(GATES[gate](report))


def test_what_is_narrow_by_nature_is_let_through() -> None:
    scales = replace(LOOP, copies={16: 16, 4: 2})
    assert objecting(replace(GOOD, loops=(scales,))) == {"copies"}
    assert objecting(replace(GOOD, loops=(scales,), narrow=(4,))) == set()


def test_a_report_survives_json() -> None:
    assert from_json(json.loads(json.dumps(DECODE.as_json()))) == DECODE
