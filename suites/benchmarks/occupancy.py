"""Where a pool's slots are while a trace is served as recorded, at every moment and in GiB seconds.

    python -m kvassay.suites.benchmarks.occupancy --impl radix --trace mooncake-conversation

Time is virtual: a request stays for its output tokens times ``--step`` seconds. Blocks are of the
trace's own size, and GiB are those of Llama 3 8B in 16 bit. Ctrl-C ends the run; what was complete
is shown.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kvassay.harness.contract import CacheManager, ContractError
from kvassay.harness.environment import capture
from kvassay.harness.memory.lengths import LLAMA_3_8B
from kvassay.harness.record import Direction, Metric, Record, write
from kvassay.harness.recording import subject_of
from kvassay.harness.registry import Registration, Unavailable, UnknownImplementation, find
from kvassay.harness.replaying.occupancy import PARTS, Occupancy, occupancy
from kvassay.harness.traces.finding import KNOWN, NoTrace, requests

SUITE = "occupancy"
USAGE_ERROR = 2
INTERRUPTED = 130
AGAIN, NOTHING = "cached, hit again later", "cached for nothing"


def quantities(got: Occupancy) -> dict[str, float]:
    """Slot-seconds by part, cached ones by what became of them."""
    parts = {part: got.parts[part] for part in PARTS if part != "cached"}
    return {**parts, AGAIN: got.hit_again, NOTHING: got.for_nothing}


def table(found: dict[Registration, Occupancy]) -> Table:
    """A column for each manager."""
    shown = Table(show_edge=False, pad_edge=False)
    shown.add_column("slots")
    for entry in found:
        shown.add_column(f"{entry.name}\n% of the pool", justify="right", no_wrap=True)
        shown.add_column(f"{entry.name}\nGiB s", justify="right", no_wrap=True)
    columns = [quantities(got) for got in found.values()]
    for part in columns[0] if columns else ():
        cells = []
        for got, column in zip(found.values(), columns, strict=True):
            cells.append(f"{100 * column[part] / (got.slots * got.seconds):.2f}")
            cells.append(f"{got.gib_seconds(column[part], LLAMA_3_8B):,.0f}")
        shown.add_row(part, *cells)
    return shown


def record_of(entry: Registration, got: Occupancy, options: dict[str, str]) -> Record:
    """One manager's record."""
    metrics = [
        Metric(
            name=f"{part}, {LLAMA_3_8B.name}",
            unit="GiB s",
            direction=Direction.NEITHER,
            value=got.gib_seconds(slot_seconds, LLAMA_3_8B),
        )
        for part, slot_seconds in quantities(got).items()
    ]
    names = ("requests", "prompt_tokens", "hit_tokens", "waited", "refused")
    return Record(
        suite=SUITE,
        subject=subject_of(entry),
        environment=capture(seed="none"),
        options=options,
        counters={name: getattr(got, name) for name in names},
        metrics=metrics,
    )


def _parser() -> argparse.ArgumentParser:
    about = __doc__.splitlines()[0] if __doc__ else ""
    parser = argparse.ArgumentParser(prog="kvassay bench occupancy", description=about)
    parser.add_argument("--impl", action="append", help="a manager; may be repeated (radix)")
    names = ", ".join(KNOWN)
    parser.add_argument("--trace", default="mooncake-conversation", help=f"{names}, or FORMAT:PATH")
    parser.add_argument("--blocks", type=int, default=10000, help="of the pool (10000)")
    parser.add_argument("--step", type=float, default=0.025, help="s per output token (0.025)")
    parser.add_argument("--limit", type=int, help="so many requests of the trace")
    parser.add_argument("--record", type=Path, help="folder for a record of each manager")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """From the command line; the exit status."""
    options = _parser().parse_args(arguments)
    found: dict[Registration, Occupancy] = {}
    status = 0
    with Progress(console=Console(stderr=True), transient=True) as progress:

        def opened(label: str, path: Path) -> IO[bytes]:
            return progress.open(path, "rb", description=label)

        try:
            entries = [entry for name in options.impl or ["radix"] for entry in find(name)]
            for entry in (entry for entry in entries if entry.kind is CacheManager):
                rows = islice(requests(options.trace, partial(opened, entry.name)), options.limit)
                found[entry] = occupancy(entry, rows, options.blocks, options.step)
        except KeyboardInterrupt:
            status = INTERRUPTED
        except (UnknownImplementation, Unavailable, ContractError, NoTrace, ValueError) as error:
            print(error, file=sys.stderr)
            status = USAGE_ERROR
    if found:
        shown = table(found)
        console = Console()
        console.width = max(console.width, Console(width=1000).measure(shown).maximum)
        console.print(shown)
    for entry, got in found.items():
        if options.record is not None:
            asked = ("trace", "blocks", "step", "limit")
            write(
                record_of(entry, got, {name: str(getattr(options, name)) for name in asked}),
                options.record,
            )
    return status


if __name__ == "__main__":
    sys.exit(main())
