"""What was read from one binary."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


class NotRead(RuntimeError):
    """A binary, or a tool that reads it, lacks what was to be looked at."""


@dataclass(frozen=True)
class Loop:
    """The instructions of one innermost loop that multiplies matrices."""

    products: dict[str, int]
    """Matrix instructions by family."""
    copies: dict[int, int]
    """Asynchronous copies from global to shared memory, by bytes per thread."""
    loads: dict[int, int]
    """Other loads from global memory, by bytes per thread."""
    in_flight: int | None
    """Tiles on their way while one is computed on; None where the hardware counts otherwise."""


@dataclass(frozen=True)
class Report:
    """Resources and instructions of one launch on one target."""

    name: str
    target: str
    phase: str
    """``decode``, ``prefill``, or ``other`` for what multiplies no matrices."""
    kernel: str = ""
    threads: int = 0
    registers: int = 0
    spilled: int = 0
    """Bytes (NVIDIA) or registers (AMD) that go to memory for want of registers."""
    scalar_spills: int = 0
    """Scalar registers kept in lanes of vector registers (AMD): no memory is touched."""
    shared: int = 0
    tensor_memory: int = 0
    tile_bytes: int = 0
    """Keys and values of a tile."""
    narrow: tuple[int, ...] = ()
    """Widths under 16 bytes that are right here: scales of single tokens are single numbers."""
    instructions: int = 0
    loops: tuple[Loop, ...] = ()
    seconds: float = 0.0
    error: str | None = None
    """Why there is nothing to look at."""

    def products(self) -> str:
        """The families in its loops, for people."""
        return "+".join(sorted({family for loop in self.loops for family in loop.products})) or "-"

    def widths(self) -> str:
        """How keys and values come, for people: bytes per copy or load, widest first."""
        widths = {
            width
            for loop in self.loops
            for width in (loop.copies or {key: 1 for key in loop.loads if key > 4})
        }
        return "/".join(str(width) for width in sorted(widths, reverse=True)) or "-"

    def in_flight(self) -> str:
        """Tiles in flight in the loop that has the fewest."""
        known = [loop.in_flight for loop in self.loops if loop.in_flight is not None]
        return str(min(known)) if known else "-"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def from_json(data: dict[str, Any]) -> Report:
    """What `Report.as_json` gave, through JSON, in which keys are strings."""
    loops = tuple(
        Loop(
            products=loop["products"],
            copies={int(width): number for width, number in loop["copies"].items()},
            loads={int(width): number for width, number in loop["loads"].items()},
            in_flight=loop["in_flight"],
        )
        for loop in data["loops"]
    )
    return Report(**{**data, "loops": loops, "narrow": tuple(data["narrow"])})
