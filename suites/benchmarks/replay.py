"""A trace replayed through cache managers, beside its policy, the optimum and the ceiling.

    python -m kvassay.suites.benchmarks.replay --impl radix --trace mooncake-conversation

Block ids are replayed as they were recorded, one request after another (``--concurrency N``: with N
of them live). The unit is the block of the trace, partial last ones included (``--full-blocks``:
without them); counts are of the whole trace, the cold start included. Policy and optimum are of
all requests, those that a manager refuses included; the ceiling is what an infinite cache hits of
the admissions that there were. Ctrl-C ends the run and keeps what was measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kvassay.harness.contract import CacheManager, Capability
from kvassay.harness.environment import capture
from kvassay.harness.record import Direction, Metric, Record, write
from kvassay.harness.recording import subject_of
from kvassay.harness.registry import Registration, Unavailable, UnknownImplementation, find
from kvassay.harness.replaying.counts import Counts
from kvassay.harness.replaying.optimum import optimum
from kvassay.harness.replaying.policies import flat_lru
from kvassay.harness.replaying.replay import Replayed, replay
from kvassay.harness.replaying.stream import NoBlocks, Prompt, prompts
from kvassay.harness.traces.finding import KNOWN, NoTrace, requests
from kvassay.harness.traces.reading import BadTrace, Opener
from kvassay.suites.benchmarks.arguments import positive

SUITE = "replay"
USAGE_ERROR = 2
INTERRUPTED = 130
WIDEST = 1000
"""Columns; a table is never folded, whatever the terminal."""


@dataclass(frozen=True)
class Case:
    """What is replayed."""

    trace: str
    capacity: int
    """Blocks."""
    concurrency: int = 1
    full_blocks: bool = False
    limit: int | None = None
    """Requests of the trace; None for all."""

    def stream(self, opened: Opener) -> Iterator[Prompt]:
        """The prompts."""
        some = islice(requests(self.trace, opened), self.limit)
        return prompts(some, full_only=self.full_blocks)

    def options(self) -> dict[str, str]:
        """For a record."""
        return {
            "trace": self.trace,
            "capacity": str(self.capacity),
            "concurrency": str(self.concurrency),
            "blocks": "full" if self.full_blocks else "all",
            "limit": "none" if self.limit is None else str(self.limit),
        }


@dataclass(frozen=True)
class Row:
    """A case through one manager."""

    registration: Registration
    case: Case
    got: Replayed
    lru: Counts | None = None
    optimum: Counts | None = None
    complete: bool = True
    """False if the run was ended before the trace."""


class Run:
    """The cases through the managers, and the rows that there are so far."""

    def __init__(self, progress: Progress) -> None:
        self.rows: list[Row] = []
        self._progress = progress

    def play(self, case: Case, found: list[Registration]) -> None:
        """Add a row for each manager; `KeyboardInterrupt` adds what there is, and is passed on."""
        stream = list(case.stream(self._opener(f"policies, {case.trace}, {case.capacity}")))
        lru, most = flat_lru(stream, case.capacity), optimum(stream, case.capacity)
        del stream
        for registration in found:
            self._replay(case, registration, lru, most)

    def _replay(self, case: Case, entry: Registration, lru: Counts, most: Counts) -> None:
        seen: list[Replayed] = []

        def watch(totals: Replayed) -> None:
            seen[:] = [totals]

        opened = self._opener(f"{entry.name}, {case.trace}, {case.capacity}")
        try:
            got = replay(
                entry,
                case.stream(opened),
                case.capacity,
                concurrency=case.concurrency,
                watch=watch,
            )
        except KeyboardInterrupt:
            self.rows += [Row(entry, case, totals, complete=False) for totals in seen]
            raise
        self.rows.append(Row(entry, case, got, lru, most))

    def _opener(self, label: str) -> Opener:
        return partial(self._opened, label)

    def _opened(self, label: str, path: Path) -> IO[bytes]:
        return self._progress.open(path, "rb", description=label)


# ----------------------------------------------------------------------------------------- showing


def table(rows: list[Row]) -> Table:
    """The rows side by side, a column for each."""
    shown = Table(show_edge=False, pad_edge=False)
    shown.add_column("blocks of the trace")
    for row in rows:
        live = f", {row.case.concurrency} live" if row.case.concurrency > 1 else ""
        ended = "" if row.complete else "\n(interrupted)"
        heading = f"{row.registration.name}\n{row.case.trace}\n{row.case.capacity:,} blocks{live}"
        shown.add_column(heading + ended, justify="right", no_wrap=True)
    columns = [_quantities(row) for row in rows]
    for name in columns[0]:
        shown.add_row(name, *(_cell(column[name]) for column in columns))
    return shown


def markdown(rows: list[Row]) -> str:
    """The same as a page: a line for each row."""
    columns = [_quantities(row) for row in rows]
    head = ["manager", "version", "trace", "capacity", "live", *columns[0]]
    lines = [head, ["---"] * len(head)]
    for row, column in zip(rows, columns, strict=True):
        entry, case = row.registration, row.case
        name = entry.name if row.complete else f"{entry.name} (interrupted)"
        told = [name, entry.version, case.trace, f"{case.capacity:,}", str(case.concurrency)]
        lines.append([*told, *map(_cell, column.values())])
    machine = capture(seed="none")
    made = f"Python {machine.python}, {machine.processor}, {machine.time[:10]}"
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"# Replay\n\nWritten by `kvassay bench replay --page`; {made}. In blocks.\n\n{text}\n"


def _quantities(row: Row) -> dict[str, object]:
    got = row.got
    return {
        "requests": got.requests,
        "asked for": got.blocks,
        "hit": got.hits,
        "hit, %": _percent(got.counts.ratio),
        "least recently used would hit": None if row.lru is None else row.lru.hits,
        "optimum": None if row.optimum is None else row.optimum.hits,
        "infinite cache (ceiling)": got.ceiling,
        "missed of the ceiling": got.missed,
        "false hits": got.false,
        "refused requests": got.refused,
        "requests that waited": got.waited,
        "evicted": got.evictions,
        "pool held by live requests, %": _percent(got.used_share),
        "pool cached and idle, %": _percent(got.cached_share),
        "s in the manager": f"{got.seconds:.2f}",
    }


def _cell(value: object) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.2f}"


def record_of(row: Row) -> Record:
    """A row's record."""
    entry, got = row.registration, row.got
    counters = ("requests", "blocks", "hits", "ceiling", "missed", "false")
    more = ("refused", "refused_blocks", "waited", "evictions", "most_used")
    counted = {name: getattr(got, name) for name in (*counters, *more)}
    bounds = {"lru": row.lru, "optimum": row.optimum}
    counted |= {name: None if counts is None else counts.hits for name, counts in bounds.items()}
    return Record(
        suite=SUITE,
        subject=subject_of(entry),
        environment=capture(seed="none"),
        options=row.case.options() | {"complete": "yes" if row.complete else "no"},
        counters={name: value for name, value in counted.items() if value is not None},
        metrics=[
            _metric("hit ratio, blocks", "1", Direction.HIGHER, got.counts.ratio),
            _metric("pool held by live requests, mean", "1", Direction.NEITHER, got.used_share),
            _metric("pool cached and idle, mean", "1", Direction.NEITHER, got.cached_share),
            _metric("time in the manager", "s", Direction.LOWER, got.seconds),
        ],
    )


def _metric(name: str, unit: str, direction: Direction, value: float | None) -> Metric:
    return Metric(name=name, unit=unit, direction=direction, value=value)


# ------------------------------------------------------------------------------------ command line


def _managers(references: list[str]) -> list[Registration]:
    found = [entry for reference in references for entry in find(reference)]
    return [entry for entry in found if entry.kind is CacheManager]


def _without_counters(entry: Registration) -> Registration:
    offered = entry.declaration.capabilities - {Capability.COUNTERS}
    return replace(entry, declaration=replace(entry.declaration, capabilities=offered))


def _cases(options: argparse.Namespace) -> list[Case]:
    traces = options.trace or ["mooncake-conversation"]
    wanted = product(traces, options.capacity or [10000])
    return [
        Case(trace, capacity, options.concurrency, options.full_blocks, options.limit)
        for trace, capacity in wanted
    ]


def _parser() -> argparse.ArgumentParser:
    about = __doc__.splitlines()[0] if __doc__ else ""
    parser = argparse.ArgumentParser(prog="kvassay bench replay", description=about)
    parser.add_argument("--impl", action="append", help="a manager; may be repeated (radix)")
    names = ", ".join(KNOWN)
    parser.add_argument("--trace", action="append", help=f"{names}, or FORMAT:PATH")
    parser.add_argument("--capacity", action="append", type=positive, help="blocks (10000)")
    parser.add_argument("--concurrency", type=positive, default=1, help="live requests (1)")
    parser.add_argument("--full-blocks", action="store_true", help="without partial last blocks")
    parser.add_argument("--limit", type=positive, help="so many requests of the trace")
    parser.add_argument("--record", type=Path, help="folder for a record of each row")
    parser.add_argument("--page", type=Path, help="file for the table in Markdown")
    parser.add_argument(
        "--no-counters",
        action="store_true",
        help="do not ask for counters: some managers count block by block, which takes long",
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    """From the command line; the exit status."""
    options = _parser().parse_args(arguments)
    console, status = Console(), 0
    with Progress(console=Console(stderr=True), transient=True) as progress:
        run = Run(progress)
        try:
            found = _managers(options.impl or ["radix"])
            if options.no_counters:
                found = [_without_counters(entry) for entry in found]
            for case in _cases(options):
                run.play(case, found)
        except KeyboardInterrupt:
            status = INTERRUPTED
        except (UnknownImplementation, Unavailable, NoTrace, NoBlocks, BadTrace) as error:
            print(error, file=sys.stderr)
            status = USAGE_ERROR
    if run.rows:
        shown = table(run.rows)
        console.width = max(console.width, Console(width=WIDEST).measure(shown).maximum)
        console.print(shown)
        if options.page is not None:
            options.page.write_text(markdown(run.rows), encoding="utf-8")
    if options.record is not None:
        for row in run.rows:
            write(record_of(row), options.record)
    return status


if __name__ == "__main__":
    sys.exit(main())
