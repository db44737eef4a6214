"""What was measured of a whole engine's first tokens, as a table and as a page, from records alone.

``python -m kvassay.suites.benchmarks.engine_page`` writes `results/engine.md` and its chart from
the last complete run in `results/engine` (`kvassay bench engine --record results/engine`);
``--check`` says whether what is stored is what it makes. Records hold the time of every request, by
round, with caching and without; ratios are formed here, and nothing else is known.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.table import Table

from kvassay.harness.record import BadRecord, Record
from kvassay.harness.report import style
from kvassay.suites.benchmarks.stored import Made, command, image, stored

SUITE = "engine-ttft"
NAME = RECORDS = "engine"
CHART = "engine"
ON, OFF = "ttft, caching on", "ttft, caching off"
FOUND, INTENDED = "hit rate", "hit rate, intended"
LOAD = "load average"
UNRELATED = "unrelated"
CONFIDENCE = 0.95
LEAST = 6
"""Rounds of which an interval can be told."""


def interval(samples: Sequence[float]) -> tuple[float, float]:
    """Where the median lies with 95 % confidence, whatever the distribution: order statistics.

    `ValueError` for fewer than six samples, which cannot say.
    """
    count, ordered = len(samples), sorted(samples)
    tail, below = 0.0, -1
    while tail + comb(count, below + 1) / 2**count <= (1 - CONFIDENCE) / 2:
        below += 1
        tail += comb(count, below) / 2**count
    if below < 0:
        raise ValueError(f"expected at least {LEAST} samples, got {count}")
    return ordered[below], ordered[count - 1 - below]


@dataclass(frozen=True)
class Row:
    """One workload, asked in one way, all rounds; times in seconds."""

    way: str
    workload: str
    rounds: int
    on: tuple[float, ...]
    """Of each request, round after round; of the first engine, if it is A/A."""
    off: tuple[float, ...]
    """Of the same requests on the other engine."""
    found: float | None
    """Share of the prompts' tokens that was found; None if the engine does not tell."""
    intended: float
    loads: tuple[float, ...]
    """Load average (one minute) before each round."""

    @property
    def ratios(self) -> list[float]:
        """`median(on / off)` over the requests of a round; one per round."""
        size = len(self.on) // self.rounds
        pairs = [one / other for one, other in zip(self.on, self.off, strict=True)]
        return [median(pairs[start : start + size]) for start in range(0, len(pairs), size)]


def row_of(record: Record) -> Row:
    """What a record says; `BadRecord` if its samples are not whole rounds."""
    metrics = {one.name: one for one in record.metrics}
    rounds = record.counters["rounds"]
    on, off = metrics[ON].samples, metrics[OFF].samples
    if len(on) != len(off) or not on or len(on) % rounds:
        got = f"{len(on)} and {len(off)}"
        raise BadRecord(f"{record.id}: expected times of {rounds} equal rounds, got {got} samples")
    return Row(
        record.options["way"],
        record.options["workload"],
        rounds,
        tuple(on),
        tuple(off),
        metrics[FOUND].value,
        metrics[INTENDED].value or 0.0,
        tuple(metrics[LOAD].samples),
    )


# ----------------------------------------------------------------------------------------- showing

HEADINGS = (
    *("", "rounds", "requests", "hits intended, %", "hits, %"),
    *("on p50", "on p90", "off p50", "off p90", "on / off", "95 %"),
)


def cells(row: Row) -> list[str]:
    """A line of the table; times in milliseconds."""
    return [
        f"{row.workload}, {row.way}",
        str(row.rounds),
        str(len(row.on)),
        _percent(row.intended),
        _percent(row.found),
        *(_milliseconds(row.on, percent) for percent in (50, 90)),
        *(_milliseconds(row.off, percent) for percent in (50, 90)),
        f"{median(row.ratios):.3f}",
        told_interval(row.ratios),
    ]


def table(rows: Sequence[Row]) -> Table:
    """A row for each workload and way to ask."""
    shown = Table(show_edge=False, pad_edge=False)
    for heading in HEADINGS:
        shown.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for row in rows:
        shown.add_row(*cells(row))
    return shown


def told_interval(ratios: Sequence[float]) -> str:
    """The interval of their median, or why there is none."""
    if len(ratios) < LEAST:
        return f"too few rounds: {len(ratios)}"
    low, high = interval(ratios)
    return f"{low:.3f} to {high:.3f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f}"


def _milliseconds(samples: Sequence[float], percent: float) -> str:
    return f"{1e3 * float(np.percentile(samples, percent)):.2f}"


def tax(row: Row) -> str:
    """What caching costs where nothing is shared, in words."""
    change = 1e3 * (median(row.on) - median(row.off))
    return (
        f"tax of prefix caching at 0 % hits, {row.way}: on / off {median(row.ratios):.3f} "
        f"({told_interval(row.ratios)}) of the time to the first token, medians {change:+.2f} ms"
    )


def taxes(rows: Iterable[Row]) -> list[str]:
    """One for each way in which unrelated prompts were asked."""
    return [tax(row) for row in rows if row.workload == UNRELATED]


def loads(rows: Iterable[Row]) -> str:
    """How busy the machine was, the measurement itself included."""
    found = [load for row in rows for load in row.loads]
    return f"load average before: {found[0]:.1f}, while measuring: up to {max(found):.1f}"


TEXT = """# Time to the first token of vLLM, prefix caching on and off

Made by `python -m kvassay.suites.benchmarks.engine_page` from the records in `results/engine`,
which hold the time of every request (`kvassay bench engine --record results/engine{asked}`).
{engine} {version}, torch {torch}, Python {python}; {processor}, {cores} cores, {threads} thread
a step; {time}. {load}; one process that computes is 1.

| {head} |
| {rule} |
{body}

{tax}

{chart}

- Milliseconds from the intended start of a request to the first chunk that carries a token (`ttft`
  in `results/metrics.md`), as the client sees it, all rounds together. *on / off*: for each request
  its time with caching over its time without, the median over a round's requests, and of these the
  median over rounds; *95 %* is where that median lies (order statistics, no distribution assumed;
  {least} rounds at least). Each request goes to both engines, in turns.
- One run on the same prompts: in process and over HTTP differ by vLLM's server, its processes and
  the client's, and in nothing that is computed.
- **A/A is the yardstick**: two engines of the same kind, both without caching. Equal engines
  differ for as long as they live, so each round builds a pair of its own, in turned order. A tax
  within the interval of A/A is no tax that was seen. The C library keeps freed memory, in the
  servers too: where it gives it back, two equal engines differ by up to 20 %.
- One request at a time: nobody queues and no batch is shared. What caching does to throughput under
  load is another question (`load_curves.md`).
- The model is the adapter's own: a Llama with random weights, 2 million parameters, float32, on a
  CPU. A token of it costs little to compute beside what caching does for it, so that the tax is a
  larger share of the time here, and what hits save a smaller one, than with a model in use.
- Hits are what the engine tells; *intended* is what the prompts allow in whole blocks of {block}
  tokens, which are the unit of vLLM's cache. Prompts are token ids, answers are sampled
  with fixed seeds, and later prompts contain the answers that there were.
"""


def page(records: Sequence[Record]) -> str:
    """All of `engine.md`, of the records of one run."""
    rows = [row_of(record) for record in records]
    first = records[0]
    machine, options = first.environment, first.options
    body = "\n".join(f"| {' | '.join(cells(row))} |" for row in rows)
    return TEXT.format(
        asked="".join(f" --{name} {options[name]}" for name in ("rounds", "http")),
        engine=first.subject.name,
        version=first.subject.version,
        torch=machine.packages.get("torch", "unknown"),
        python=machine.python,
        processor=machine.processor,
        cores=machine.cores,
        threads=options["threads"],
        time=machine.time[:10],
        load=loads(rows).capitalize(),
        head=" | ".join(HEADINGS),
        rule=" | ".join(["---", *["---:"] * (len(HEADINGS) - 1)]),
        body=body,
        tax="\n".join(f"{line[0].upper()}{line[1:]}.\n" for line in taxes(rows)).rstrip(),
        chart=image(CHART, CAPTION),
        least=LEAST,
        block=options["block_size"],
    )


CAPTION = "Time to the first token of vLLM with prefix caching, as a share of the time without it"
APART = 0.2
"""Between two ways to ask, on an axis of workloads."""


def chart(rows: Sequence[Row]) -> Any:
    """What caching leaves of the time to the first token: a place for each workload, by hits."""
    figure, (axes,) = style.panels(1, 6.4)
    intended = {row.workload: row.intended for row in rows}
    ordered = sorted(intended, key=lambda workload: intended[workload])
    places = {workload: number for number, workload in enumerate(ordered)}
    for number, way in enumerate(dict.fromkeys(row.way for row in rows)):
        own = [row for row in rows if row.way == way]
        middles = [median(row.ratios) for row in own]
        ends = [_ends(row.ratios) for row in own]
        around = [
            [middle - low for middle, (low, _) in zip(middles, ends, strict=True)],
            [high - middle for middle, (_, high) in zip(middles, ends, strict=True)],
        ]
        where = [places[row.workload] + APART * (number - 1) for row in own]
        look = {"color": style.colour(number), "marker": style.marker(number), "linestyle": "none"}
        axes.errorbar(where, middles, yerr=around, label=way, capsize=3, **look)
    left = [1 - intended[workload] for workload in places]
    axes.plot(
        list(places.values()),
        left,
        "_",
        color=style.INK,
        markersize=24,
        label="1 - hits: prefill alone, linear",
    )
    names = [f"{workload}\n{100 * intended[workload]:.0f} % shared" for workload in places]
    axes.set_xticks(list(places.values()), names)
    axes.set(ylabel="TTFT, caching on / off", ylim=(0, None))
    style.legend(axes, "upper right")
    return figure


def _ends(ratios: Sequence[float]) -> tuple[float, float]:
    """Of the interval of their median, or of all of them where there is none."""
    return interval(ratios) if len(ratios) >= LEAST else (min(ratios), max(ratios))


def made(results: Path) -> Made:
    """Of the last complete run in the folder; `BadRecord` without one."""
    records = stored(results / RECORDS, SUITE)
    rows = [row_of(record) for record in records]
    return Made(NAME, page(records), {CHART: lambda: chart(rows)})


def main(arguments: list[str] | None = None) -> int:
    """From the command line; 1 where the page is another, 2 without a run."""
    return command(made, __doc__, arguments)


if __name__ == "__main__":
    sys.exit(main())
