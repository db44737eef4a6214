"""Hits by the size of the cache, in GiB: manager, policy, optimum and ceiling on traces.

``python -m kvassay.suites.benchmarks.capacity`` writes records to `results/capacity`, and of them
`results/capacity.md` and its chart; ``--check`` counts again and says whether what is stored is
what comes out. All of it is counted and none timed, so the same traces give the same page.

A capacity of c GiB has ``c * 2**30 / (block tokens * bytes per token)`` blocks of the trace,
rounded down, and a token takes ``2 * layers * KV heads * head size * bytes per element`` bytes of
keys and values. Rates are hits over references: the blocks of all prompts, cold ones and those
that the manager refused included. Requests come one after another, as in `replay`. Ctrl-C ends the
run; what was counted is shown.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kvassay.harness.contract import CacheManager, Capability
from kvassay.harness.environment import capture
from kvassay.harness.record import Record, write
from kvassay.harness.recording import subject_of
from kvassay.harness.registry import Registration, Unavailable, UnknownImplementation, find
from kvassay.harness.replaying.optimum import optimum
from kvassay.harness.replaying.policies import flat_lru, infinite
from kvassay.harness.replaying.replay import replay
from kvassay.harness.replaying.stream import NoBlocks, Prompt, prompts
from kvassay.harness.report import style
from kvassay.harness.traces.finding import KNOWN, NoTrace, requests
from kvassay.harness.traces.reading import BadTrace
from kvassay.harness.virtual.cost import MACHINES
from kvassay.harness.virtual.model import MODELS, Model
from kvassay.suites.benchmarks.arguments import positive
from kvassay.suites.benchmarks.stored import RESULTS, Made, image, stale, stored, told
from kvassay.suites.benchmarks.stored import write as publish

SUITE = "capacity"
NAME = RECORDS = CHART = "capacity"
PAGE = RESULTS / f"{NAME}.md"
CAPTION = "Hit rate by GiB: manager, LRU, the best possible replacement, an infinite cache"
TRACES = ("mooncake-conversation", "mooncake-synthetic", "agentic")
SIZES = tuple(2**power for power in range(2, 15))
"""GiB."""
MACHINE = MACHINES["h200"]
GIB = 2**30
USAGE_ERROR, INTERRUPTED = 2, 130


@dataclass(frozen=True)
class Trace:
    """A trace as prompts of block ids, and what an infinite cache hits of it."""

    name: str
    block_tokens: int
    requests: int
    longest: int
    """Blocks of the longest prompt."""
    references: int
    """Blocks of all prompts."""
    distinct: int
    ceiling: int
    """Hits of an infinite cache."""
    stream: tuple[Prompt, ...] = ()
    """Of a trace that is replayed; a record has none."""

    def blocks(self, gib: int, model: Model) -> int:
        """Whole blocks in so many GiB."""
        return gib * GIB // (self.block_tokens * model.token_bytes)

    def gib(self, blocks: int, model: Model) -> float:
        """GiB of so many blocks."""
        return blocks * self.block_tokens * model.token_bytes / GIB


@dataclass(frozen=True)
class Row:
    """One capacity; hits are in blocks."""

    gib: int
    blocks: int
    hits: int
    """Of the manager."""
    refused: int
    """Prompts that the manager did not admit: larger than the pool."""
    lru: int
    optimum: int


def trace_of(name: str, limit: int | None = None) -> Trace:
    """A known trace, or ``FORMAT:PATH``; `NoBlocks` for one without block ids, or a request."""
    rows = list(islice(requests(name), limit))
    (size,) = {one.block_tokens for one in rows} or {None}
    if size is None:
        raise NoBlocks(f"{name}: expected requests with block ids")
    stream = tuple(prompts(rows))
    ceiling = infinite(stream)
    distinct = len({block for prompt in stream for block in prompt})
    longest = max(map(len, stream))
    counted = (len(stream), longest, ceiling.blocks, distinct, ceiling.hits)
    return Trace(name, size, *counted, stream)


def row_of(trace: Trace, gib: int, entry: Registration, model: Model) -> Row:
    """All of one capacity."""
    blocks = trace.blocks(gib, model)
    got = replay(entry, trace.stream, blocks)
    least, most = flat_lru(trace.stream, blocks), optimum(trace.stream, blocks)
    return Row(gib, blocks, got.hits, got.refused, least.hits, most.hits)


@dataclass
class Found:
    """What was counted so far, through which manager, of whose KV."""

    manager: str
    model: Model
    traces: list[tuple[Trace, list[Row]]] = field(default_factory=list)


@dataclass
class Bench:
    """What is to be counted, and what there is of it."""

    entry: Registration
    names: Sequence[str]
    sizes: Sequence[int]
    limit: int | None
    found: Found

    def run(self, progress: Progress) -> None:
        """All traces and capacities."""
        model = self.found.model
        for name in self.names:
            bar = progress.add_task(f"{name}: reading", total=None)
            trace = trace_of(name, self.limit)
            sizes = [gib for gib in self.sizes if trace.blocks(gib, model)]
            progress.update(bar, description=name, total=len(sizes))
            rows: list[Row] = []
            self.found.traces.append((trace, rows))
            for gib in sizes:
                rows.append(row_of(trace, gib, self.entry, model))
                progress.advance(bar)
                if rows[-1].lru == trace.ceiling and not rows[-1].refused:
                    break  # a larger cache hits the same


# ----------------------------------------------------------------------------------------- showing


def cells(trace: Trace, row: Row) -> list[str]:
    """A line of the table."""
    shares = [
        part
        for hits in (row.hits, row.lru, row.optimum)
        for part in (f"{hits:,}", f"{100 * hits / trace.references:.2f}")
    ]
    return [f"{row.gib:,}", f"{row.blocks:,}", *shares, f"{row.refused:,}"]


def headings(manager: str) -> tuple[str, ...]:
    """Of the table."""
    hits = (part for who in (manager, "LRU", "optimum") for part in (f"{who}, hits", f"{who}, %"))
    return ("GiB", "blocks", *hits, f"refused by {manager}")


def table(trace: Trace, rows: Iterable[Row], found: Found) -> Table:
    """A row for each capacity."""
    shown = Table(title=about(trace, found.model), show_edge=False, pad_edge=False)
    for heading in headings(found.manager):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        shown.add_row(*cells(trace, row))
    return shown


def about(trace: Trace, model: Model) -> str:
    """A trace in words."""
    ceiling = 100 * trace.ceiling / trace.references
    return (
        f"{trace.name}: {trace.requests:,} requests, {trace.references:,} references to "
        f"{trace.distinct:,} blocks of {trace.block_tokens} tokens "
        f"({trace.gib(trace.distinct, model):,.0f} GiB); the longest prompt takes "
        f"{trace.gib(trace.longest, model):,.1f} GiB; an infinite cache hits {trace.ceiling:,} "
        f"({ceiling:.2f} %)"
    )


TEXT = """# Hits by the size of the cache

Written by `python -m kvassay.suites.benchmarks.capacity`; nothing of it is timed, and the same
traces give the same page (`--check`).

GiB are of {model}: 2 (keys and values) x {layers} layers x {kv_heads} KV heads x {head_dim} x
{element} bytes = {token:,} bytes per token. Llama 3.1 8B has the same shape. Beside its weights an
H200 has room for {room:,.0f} GiB (the vertical line in the chart).

Rates are hits over references, which are the blocks of all prompts, the cold start and what the
manager refused included. `{manager}` replays the trace one request after another, so that only
the request itself pins anything; a prompt that is larger than the pool is refused. *LRU* drops the
least recently used block, tails first; *optimum* is the most that any replacement could hit
(Belady). Neither refuses anything, and a prompt that a manager refuses hits nothing and pushes
nothing out: so the two can be compared with it where it refuses nothing{same}.
Blocks are those of the trace (Mooncake's last one of a prompt may be partial, the agents' are full
ones), generated tokens are not cached, and conversations of the agents come one after another,
which is kinder to a small cache than many at once. Caches larger than the last of a table hit the
same.

{sections}

{chart}
"""


def page(found: Found) -> str:
    """All of `capacity.md`."""
    model = found.model
    return TEXT.format(
        model=model.name,
        layers=model.layers,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        element=model.element_bytes,
        token=model.token_bytes,
        room=machine_gib(model),
        manager=found.manager,
        same=_same(found),
        chart=image(CHART, CAPTION),
        sections="\n\n".join(_section(found, trace, rows) for trace, rows in found.traces),
    )


def _same(found: Found) -> str:
    """What is to be said of the manager and LRU, where they can be compared."""
    rows = [row for _, rows in found.traces for row in rows if not row.refused]
    alike = sum(row.hits == row.lru for row in rows)
    return f"\n(there its hits are those of LRU, to the last block, in {alike} of {len(rows)} rows)"


def _section(found: Found, trace: Trace, rows: Iterable[Row]) -> str:
    head = headings(found.manager)
    lines = [head, ["---:"] * len(head), *(cells(trace, row) for row in rows)]
    told = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    name, _, facts = about(trace, found.model).partition(": ")
    return f"## {name}\n\n{facts[0].upper()}{facts[1:]}.\n\n{told}"


def machine_gib(model: Model) -> float:
    """GiB for KV on the machine, beside the model's weights."""
    return MACHINE.pool_tokens(model) * model.token_bytes / GIB


def chart(found: Found) -> Any:
    """Hit rate by GiB, a panel for each trace."""
    figure, panels = style.panels(len(found.traces))
    for panel, (trace, rows) in zip(panels, found.traces, strict=True):
        where = [row.gib for row in rows]
        lines = {
            "LRU": (4, "--", 4, [row.lru for row in rows]),
            found.manager: (0, "-", 7, [row.hits for row in rows]),
            "optimum": (2, ":", 7, [row.optimum for row in rows]),
        }
        for name, (place, line, size, hits) in lines.items():
            rates = [100 * each / trace.references for each in hits]
            look = {"color": style.colour(place), "marker": style.marker(place)}
            look |= {"markersize": size, "markerfacecolor": "none"}
            panel.plot(where, rates, line, label=name, **look)
        ceiling = 100 * trace.ceiling / trace.references
        panel.axhline(ceiling, color=style.INK, linewidth=0.8, label="infinite cache")
        panel.axvline(machine_gib(found.model), color=style.GREY, linewidth=0.8)
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter(lambda gib, _: f"{gib:,.0f}")
        panel.set(title=trace.name, xlabel="GiB of KV", ylabel="% of block references hit")
        panel.set_ylim(bottom=0)
    style.legend(panels[-1], "lower right")
    figure.suptitle(f"{found.model.name}; gray line: room on an H200", fontsize=9)
    return figure


# ------------------------------------------------------------------------------------------ stored

OF_TRACE = ("block_tokens", "requests", "longest", "references", "distinct", "ceiling")
OF_ROW = ("blocks", "hits", "refused", "lru", "optimum")


def records_of(bench: Bench, complete: bool) -> list[Record]:
    """One for each trace; all of one run."""
    environment = capture(seed="none")
    options = {
        "model": next(name for name, one in MODELS.items() if one == bench.found.model),
        "limit": "none" if bench.limit is None else str(bench.limit),
        "complete": "yes" if complete else "no",
    }
    return [
        Record(
            suite=SUITE,
            subject=subject_of(bench.entry),
            environment=environment,
            options={**options, "trace": trace.name, "row": str(number)},
            counters={name: getattr(trace, name) for name in OF_TRACE}
            | {f"{row.gib} GiB, {name}": getattr(row, name) for row in rows for name in OF_ROW},
        )
        for number, (trace, rows) in enumerate(bench.found.traces)
    ]


def of_record(record: Record) -> tuple[Trace, list[Row]]:
    """What was recorded of a trace."""
    counted = record.counters
    trace = Trace(record.options["trace"], *(counted[name] for name in OF_TRACE))
    sizes = dict.fromkeys(int(name.split()[0]) for name in counted if " GiB, " in name)
    return trace, [Row(gib, *(counted[f"{gib} GiB, {name}"] for name in OF_ROW)) for gib in sizes]


def made(results: Path) -> Made:
    """Of the last complete run in the folder; `BadRecord` without one."""
    records = stored(results / RECORDS, SUITE)
    manager, model = records[0].subject.name, MODELS[records[0].options["model"]]
    return _made(Found(manager, model, [of_record(record) for record in records]))


def _made(found: Found) -> Made:
    return Made(NAME, page(found), {CHART: lambda: chart(found)})


# ------------------------------------------------------------------------------------ command line


def _parser() -> argparse.ArgumentParser:
    about = __doc__.splitlines()[0] if __doc__ else ""
    parser = argparse.ArgumentParser(prog="kvassay bench capacity", description=about)
    add = parser.add_argument
    add("--impl", default="radix", help="the manager (radix)")
    names = ", ".join(KNOWN)
    add("--trace", action="append", help=f"{names}, or FORMAT:PATH; repeat ({', '.join(TRACES)})")
    add("--gib", action="append", type=positive, help="a capacity; repeat (4, 8, 16, ...)")
    add("--model", choices=MODELS, default="llama-3-8b", help="whose KV it is (llama-3-8b)")
    add("--limit", type=positive, help="so many requests of a trace")
    add("--record", type=Path, help="folder for a record of each trace")
    add("--check", action="store_true", help="compare with the stored page; not if narrowed")
    return parser


def _bench(options: argparse.Namespace) -> Bench:
    (entry,) = (one for one in find(options.impl) if one.kind is CacheManager)
    # Counting a manager's blocks takes longer than the replay, and is not shown.
    offered = entry.declaration.capabilities - {Capability.COUNTERS}
    declared = replace(entry.declaration, capabilities=offered)
    return Bench(
        replace(entry, declaration=declared),
        options.trace or TRACES,
        sorted(options.gib or SIZES),
        options.limit,
        Found(entry.name, MODELS[options.model]),
    )


def main(arguments: list[str] | None = None) -> int:
    """From the command line; the exit status: 1 where the stored page is another."""
    parser = _parser()
    options = parser.parse_args(arguments)
    usual = vars(parser.parse_args([]))
    narrowed = any(
        getattr(options, name) != usual[name] for name in ("impl", "trace", "gib", "model", "limit")
    )
    if options.check and narrowed:
        parser.error("--check is of the whole page: expected no other trace, capacity or manager")
    status = 0
    with Progress(console=Console(stderr=True), transient=True) as progress:
        try:
            bench = _bench(options)
        except (UnknownImplementation, Unavailable, ValueError) as error:
            print(error, file=sys.stderr)
            return USAGE_ERROR
        try:
            bench.run(progress)
        except KeyboardInterrupt:
            status = INTERRUPTED
        except (NoTrace, NoBlocks, BadTrace) as error:
            print(error, file=sys.stderr)
            status = USAGE_ERROR
    if options.check and not status:
        return told(stale(_made(bench.found)))
    published = [] if status or narrowed else [RESULTS / RECORDS]
    for record in records_of(bench, not status):
        for folder in [options.record] * (options.record is not None) + published:
            write(record, folder)
    _show(bench.found)
    if published:
        publish(made(RESULTS))
    return status


def _show(found: Found) -> None:
    console = Console()
    for trace, rows in found.traces:
        shown = table(trace, rows, found)
        console.width = max(console.width, Console(width=1000).measure(shown).maximum)
        console.print(shown)


if __name__ == "__main__":
    sys.exit(main())
