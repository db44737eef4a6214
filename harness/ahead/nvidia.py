"""Reading an NVIDIA binary: ``cuobjdump`` lists its instructions and what it takes.

In a loop over tiles, copies are committed in groups (LDGDEPBAR), and before a tile is used the loop
waits until at most n later groups are on their way (DEPBAR.LE SB0, n). With g groups per tile that
leaves n / g tiles in flight at the wait; the loop then starts the copies of one more, so that
``n / g + 1`` tiles are in flight while it computes.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from kvassay.harness.ahead.compiling import Binary
from kvassay.harness.ahead.report import Loop, NotRead

INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);", re.M)
TO = re.compile(r"(P\w.*)?0x([0-9a-f]+)\s*$")
"""What a branch hangs on, if on anything, and where it leads."""
RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
WAIT = re.compile(r"SB0, (0x[0-9a-f]+|\d+)")
FAMILIES = (("UTC", "tcgen05"), ("HGMMA", "HGMMA"), ("QGMMA", "HGMMA"), ("HMMA", "HMMA"))
WIDTHS = (("128", 16), ("64", 8), ("U16", 2), ("S16", 2), ("U8", 1), ("S8", 1))

Line = tuple[int, str, str]
"""Address, instruction with its suffixes, predicate and operands."""


def tool() -> str:
    """The disassembler that comes with Triton. Raises `NotRead` where it does not."""
    import triton

    path = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    if not path.is_file():
        raise NotRead(f"no cuobjdump in Triton {triton.__version__}")
    return str(path)


def read(binary: Binary) -> dict[str, object]:
    """Registers, spills, static shared memory and loops, by the names of `Report`."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(binary.assembly["cubin"])
        listing = _dump("-sass", cubin)
        resources = _dump("-res-usage", cubin)
    return {**read_resources(resources, listing), "shared": binary.shared, **read_code(listing)}


def read_resources(resources: str, listing: str) -> dict[str, int]:
    """Registers, and bytes of stack frame, or of loads and stores that go there."""
    found = RESOURCES.findall(resources)
    if len(found) != 1:
        raise NotRead(f"expected the resources of one kernel, found {len(found)}")
    registers, stack, _, local = (int(number) for number in found[0])
    spills = len(re.findall(r"\b(?:LDL|STL)\b", listing))
    return {"registers": registers, "spilled": max(stack + local, 4 * spills)}


def read_code(listing: str) -> dict[str, object]:
    """Instructions, and the loops among them."""
    found = INSTRUCTION.findall(listing)
    lines = [(int(at, 16), name, predicate + rest) for at, predicate, name, rest in found]
    if not lines:
        raise NotRead("the disassembly has no instructions")
    return {"instructions": len(lines), "loops": tuple(loops(lines))}


def loops(lines: list[Line]) -> list[Loop]:
    """Innermost loops that multiply matrices, in their order."""
    jumps = [
        (at, int(to[2], 16), bool(to[1]))
        for at, name, rest in lines
        if name.startswith("BRA") and (to := TO.search(rest))
    ]
    spans = [
        (to, at)
        for at, to, hangs in jumps
        if to < at and (hangs or _is_entered_once(to, at, jumps))
    ]
    bodies = {
        (first, last): [line for line in lines if first <= line[0] <= last] for first, last in spans
    }
    found = [span for span, body in bodies.items() if products(body)]
    return [_loop(bodies[span]) for span in sorted(innermost(found))]


def _is_entered_once(first: int, last: int, jumps: list[tuple[int, int, bool]]) -> bool:
    """Whether nobody jumps into the middle: what lies out of line ends in a branch back, too."""
    return not any(first < to <= last and not first <= at <= last for at, to, _ in jumps)


def innermost(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those of the ranges of addresses that hold no other."""
    return [
        (first, last)
        for first, last in spans
        if not any(
            (first, last) != other and first <= other[0] and other[1] <= last for other in spans
        )
    ]


def products(body: list[Line]) -> dict[str, int]:
    """Matrix instructions by family."""
    found: Counter[str] = Counter()
    for _, name, _ in body:
        stem = name.partition(".")[0]
        for prefix, family in FAMILIES:
            if stem.startswith(prefix) and stem.endswith("MMA"):
                found[family] += 1
                break
    return dict(found)


def _loop(body: list[Line]) -> Loop:
    return Loop(
        products=products(body),
        copies=_widths(body, "LDGSTS"),
        loads=_widths(body, "LDG"),
        in_flight=_in_flight(body),
    )


def _widths(body: list[Line], stem: str) -> dict[int, int]:
    found: Counter[int] = Counter()
    for _, name, _ in body:
        first, *suffixes = name.split(".")
        if first == stem:
            found[next((size for suffix, size in WIDTHS if suffix in suffixes), 4)] += 1
    return dict(found)


def _in_flight(body: list[Line]) -> int | None:
    """None where nothing is copied asynchronously."""
    groups = sum(name == "LDGDEPBAR" for _, name, _ in body)
    waits = [
        int(match[1], 0)
        for _, name, rest in body
        if name == "DEPBAR.LE" and (match := WAIT.search(rest))
    ]
    if not groups:
        return None
    if not waits:
        raise NotRead("a loop copies asynchronously and never waits")
    if len(waits) > groups:
        raise NotRead(f"a loop of {groups} groups of copies waits {len(waits)} times")
    return min(waits) // (groups // len(waits)) + 1


def _dump(what: str, cubin: Path) -> str:
    done = subprocess.run(
        [tool(), what, str(cubin)], capture_output=True, text=True, check=False, timeout=120
    )
    if done.returncode:
        raise NotRead(f"cuobjdump {what}: {done.stderr.strip() or done.returncode}")
    return done.stdout
