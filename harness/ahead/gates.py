"""What every binary must be. A gate says what is wrong, in words; no words, no objection.

What cannot be looked at is wrong: an error of compiler or disassembler, a kernel for attention in
which no loop multiplies matrices, a loop that does not copy whole tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvassay.harness.ahead.report import Loop, Report
from kvassay.harness.ahead.targets import TARGETS

WIDEST = 16
"""Bytes per thread of the widest copy from global memory."""
LEAST_IN_FLIGHT = 2
"""Tiles on their way while decode computes on another: bandwidth times latency of an H200 is 29 KB
per multiprocessor, and a tile of keys and values is 32 KB at most."""

Gate = Callable[[Report], list[str]]


def fits(report: Report) -> list[str]:
    """No register goes to memory, and a block takes no more than the device has."""
    return list(_read(report)) or list(_fits(report))


def copies(report: Report) -> list[str]:
    """Each loop takes whole tiles from global memory, 16 bytes per thread at a time."""
    return list(_read(report)) or [
        problem for loop in report.loops for problem in _copies(report, loop)
    ]


def in_flight(report: Report) -> list[str]:
    """In decode, two tiles are on their way while one is computed on.

    Two things must say so: how many groups of copies the loop's wait leaves on their way (see
    `harness.ahead.nvidia`), and that shared memory holds two tiles. Where nothing copies
    asynchronously (AMD) there is nothing to hold it to.
    """
    problems = list(_read(report))
    if problems or report.phase != "decode" or TARGETS[report.target].backend != "cuda":
        return problems
    room = report.shared // max(1, report.tile_bytes)
    if room < LEAST_IN_FLIGHT:
        problems.append(f"{report.shared} bytes of shared memory hold {room} tile(s)")
    return problems + [
        f"a loop has {loop.in_flight} tile(s) in flight"
        for loop in report.loops
        if loop.in_flight is None or loop.in_flight < LEAST_IN_FLIGHT
    ]


def products(report: Report) -> list[str]:
    """Each loop multiplies on tensor cores; in prefill, by the instruction for large tiles."""
    problems = list(_read(report))
    target = TARGETS[report.target]
    allowed = (target.large_product,) if report.phase == "prefill" else target.small_products
    return problems + [
        f"a loop multiplies by {sorted(loop.products)}, not by {' or '.join(allowed)}"
        for loop in report.loops
        if not set(loop.products) & set(allowed)
    ]


GATES: dict[str, Gate] = {
    "fits": fits,
    "copies": copies,
    "in flight": in_flight,
    "products": products,
}


def _read(report: Report) -> Iterator[str]:
    """Whether there is anything to look at."""
    if report.error is not None:
        yield report.error
    elif not (report.registers and report.instructions and report.threads):
        yield "nothing was read"
    elif report.phase != "other" and not report.loops:
        yield "no loop multiplies matrices"
    elif report.phase != "other" and not report.tile_bytes:
        yield "how large a tile is was not said"


def _fits(report: Report) -> Iterator[str]:
    target = TARGETS[report.target]
    if report.spilled:
        yield f"spills {report.spilled} {'registers' if target.backend == 'hip' else 'bytes'}"
    for what, taken, there_are in (
        ("registers of a thread", report.registers, target.thread_registers),
        ("registers", target.held(report.registers, report.threads), target.registers),
        ("bytes of shared memory", report.shared, target.shared_memory),
        ("threads", report.threads, target.threads),
        ("columns of tensor memory", report.tensor_memory, 512),
    ):
        if taken > there_are:
            yield f"takes {taken} {what} of {there_are}"


def _copies(report: Report, loop: Loop) -> Iterator[str]:
    """Whatever is loaded otherwise is single numbers: blocks of the table, 4 bytes each."""
    asynchronous = TARGETS[report.target].backend == "cuda"
    tiles = loop.copies if asynchronous else loop.loads
    whole = tiles.get(WIDEST, 0) * WIDEST * report.threads
    if whole < report.tile_bytes:
        yield f"16-byte copies bring {whole} bytes of a tile of {report.tile_bytes}"
    narrow = {*report.narrow} if asynchronous else {4, *report.narrow}
    for width in sorted({*tiles} - {WIDEST} - narrow):
        yield f"{tiles[width]} copies of {width} bytes"
    if asynchronous:
        for width in sorted({*loop.loads} - {4}):
            yield f"{loop.loads[width]} loads of {width} bytes past shared memory"
