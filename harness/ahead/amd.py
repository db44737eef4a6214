"""Reading an AMD kernel: its assembly, which ends in the notes that the loader reads.

The compiler writes beside each block of instructions which loop it is in; the blocks of a loop need
not follow each other. Spills are vector registers that go to scratch memory. Scalar registers that
are kept in lanes of vector registers are counted apart: they cost instructions, not memory.
"""

from __future__ import annotations

import re
from collections import Counter

from kvassay.harness.ahead.compiling import Binary
from kvassay.harness.ahead.report import Loop, NotRead

BLOCK = re.compile(r"^(?:\.L(BB\w+)|; %bb\.\d+):")
HEADER = re.compile(r"; =>\s*This (?:Inner )?Loop Header")
MEMBER = re.compile(r"; +in Loop: Header=(BB\w+)")
OPERATION = re.compile(r"^\s+([vsdgb][a-z]*_\w+)")
LOAD = re.compile(r"^(?:global|buffer|flat)_load_(\w+)")
WIDTHS = {"dwordx4": 16, "dwordx3": 12, "dwordx2": 8, "dword": 4, "ushort": 2, "sshort": 2}
WIDTHS |= {"short": 2, "ubyte": 1, "sbyte": 1}
"""By the beginning of a load's name, longer ones first."""


def read(binary: Binary) -> dict[str, object]:
    """Registers, spills, shared memory and loops, by the names of `Report`."""
    text = binary.assembly["amdgcn"]
    return {**read_notes(text), "shared": binary.shared, **read_code(text)}


def read_notes(text: str) -> dict[str, int]:
    """What the loader is told about the one kernel in a text."""
    _, begins, notes = text.partition(".amdgpu_metadata")
    if not begins:
        raise NotRead("the assembly has no notes for the loader")

    def note(name: str) -> int:
        found = re.findall(rf"\.{name}:\s+(\d+)", notes)
        if len(found) != 1:
            raise NotRead(f"expected one note {name}, found {len(found)}")
        return int(found[0])

    return {
        "registers": note("vgpr_count"),
        "spilled": max(note("vgpr_spill_count"), note("private_segment_fixed_size") // 4),
        "scalar_spills": note("sgpr_spill_count"),
    }


def read_code(text: str) -> dict[str, object]:
    """Instructions, and the loops among them."""
    lines = text.partition(".amdgpu_metadata")[0].splitlines()
    number = sum(bool(OPERATION.match(line)) for line in lines)
    if not number:
        raise NotRead("the assembly has no instructions")
    return {"instructions": number, "loops": tuple(loops(lines))}


def loops(lines: list[str]) -> list[Loop]:
    """Loops that multiply matrices, without the loops in them, in their order."""
    bodies: dict[str, list[str]] = {}
    block, loop = "", ""
    for line in lines:
        if start := BLOCK.match(line):
            block, loop = start[1] or "", ""
        if HEADER.search(line):
            loop = block
        elif member := MEMBER.search(line):
            loop = member[1]
        if loop:
            bodies.setdefault(loop, []).append(line)
    return [_loop(body) for body in bodies.values() if _products(body)]


def _products(body: list[str]) -> dict[str, int]:
    number = sum("v_mfma_" in line for line in body)
    return {"MFMA": number} if number else {}


def _loop(body: list[str]) -> Loop:
    loads: Counter[int] = Counter()
    for line in body:
        operation = OPERATION.match(line)
        load = LOAD.match(operation[1]) if operation else None
        if load:
            loads[_width(load[1])] += 1
    return Loop(products=_products(body), copies={}, loads=dict(loads), in_flight=None)


def _width(kind: str) -> int:
    for prefix, size in WIDTHS.items():
        if kind.startswith(prefix):
            return size
    raise NotRead(f"a load of unknown width: {kind}")
