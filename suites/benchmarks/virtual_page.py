"""What virtual time gave, as a table, a page and a chart, from a record alone.

``python -m kvassay.suites.benchmarks.virtual_page`` writes `results/virtual.md` and its chart from
`results/virtual.json` (`virtual` with ``--output results``); ``--check`` says whether what is
stored is what it makes. Under all of it stands the present error of virtual time
(`virtual_error.json`): where that was measured again, the page is made again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from kvassay.harness.record import BadRecord, Record, read
from kvassay.harness.report import style
from kvassay.harness.virtual.agreement import sentence
from kvassay.suites.benchmarks.stored import Made, command, image

NAME = SUITE = CHART = "virtual"
CAPTION = "Latency and goodput in virtual time, by arrival rate"
TTFT, ITL = (50, 90, 99), (50, 99)
"""Percentiles that are told."""
HEADINGS = (
    *("manager", "cache", "pool, tokens", "block", "arrivals, 1/s", "hits, %"),
    *(f"ttft p{percent}, s" for percent in TTFT),
    *(f"itl p{percent}, ms" for percent in ITL),
    *("goodput, 1/s", "preempted", "failed"),
)


@dataclass(frozen=True)
class Line:
    """One case, in numbers."""

    manager: str
    cache: str
    pool_tokens: int
    block_size: int
    rate: float
    """Arrivals per second."""
    hit_rate: float
    ttft: Mapping[str, float]
    """Seconds by percentile; empty where nothing came."""
    itl: Mapping[str, float]
    goodput: float
    preempted: int
    failed: int

    @property
    def series(self) -> str:
        """What a line of the chart joins."""
        return f"{self.manager}, {self.pool_tokens:,} tokens, cache {self.cache}"


def cells(line: Line) -> Iterator[str]:
    """A row of the table."""
    yield from (line.manager, line.cache, f"{line.pool_tokens:,}", str(line.block_size))
    yield from (f"{line.rate:.3g}", f"{100 * line.hit_rate:.1f}")
    yield from (_percentile(line.ttft, percent, 1.0) for percent in TTFT)
    yield from (_percentile(line.itl, percent, 1e3) for percent in ITL)
    yield from (f"{line.goodput:.3f}", f"{line.preempted:,}", f"{line.failed:,}")


def _percentile(found: Mapping[str, float], percent: int, unit: float) -> str:
    return f"{unit * found[str(percent)]:.3g}" if found else "-"


def page(lines: Sequence[Line], said: Sequence[str]) -> str:
    """As Markdown; equal for equal cases."""
    rows = [HEADINGS, ("---:",) * len(HEADINGS), *(tuple(cells(line)) for line in lines)]
    told = ["# Virtual time", "", *(f"{one}\n" for one in said)]
    told += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*told, "", image(CHART, CAPTION)]) + "\n"


def chart(lines: Sequence[Line], caption: str) -> Any:
    """Three charts side by side, the caption above."""
    figure, (latency, gaps, goodput) = style.panels(3, height=4.4)
    for place, series in enumerate(dict.fromkeys(line.series for line in lines)):
        look = {"color": style.colour(place), "marker": style.marker(place), "markersize": 4}
        own = sorted((one for one in lines if one.series == series), key=lambda one: one.rate)
        answered = [one for one in own if one.ttft and one.itl]
        rates = [one.rate for one in answered]
        for percent, stroke in ((50, "-"), (99, "--")):
            label = f"{series}, p{percent}"
            latency.plot(
                rates, [one.ttft[str(percent)] for one in answered], stroke, label=label, **look
            )
            gaps.plot(rates, [1e3 * one.itl[str(percent)] for one in answered], stroke, **look)
        goodput.plot([one.rate for one in own], [one.goodput for one in own], "-", **look)
    latency.set(yscale="log", xlabel="arrivals, 1/s", ylabel="time to first token, s")
    gaps.set(yscale="log", xlabel="arrivals, 1/s", ylabel="inter-token latency, ms")
    goodput.set(xlabel="arrivals, 1/s", ylabel="goodput, 1/s")
    style.legend_below(figure, latency, 4)
    figure.suptitle(fill(caption, 170), fontsize=8)
    return figure


def of_record(record: Record) -> tuple[list[Line], list[str]]:
    """The lines, and what is said above them."""
    lines = [Line(**one) for one in record.findings]
    if record.suite != SUITE or not lines:
        raise BadRecord(f"{record.id}: expected cases in virtual time")
    options = record.options
    return lines, [options["machine"], options["trace"], options["goodput"], sentence()]


def made(results: Path) -> Made:
    """Of the record in the folder; `BadRecord` without one."""
    record = read(results / f"{NAME}.json")
    lines, said = of_record(record)
    caption = f"{record.options['chart']}. {said[-1]}"
    return Made(NAME, page(lines, said), {CHART: lambda: chart(lines, caption)})


def main(arguments: list[str] | None = None) -> int:
    """From the command line."""
    return command(made, __doc__, arguments)


if __name__ == "__main__":
    sys.exit(main())
