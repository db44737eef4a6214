"""Load curves as a table, a page and a chart, from records alone.

``python -m kvassay.suites.benchmarks.load_curves_page`` writes `results/load_curves.md` and
its chart from the last complete run in `results/load_curves` (`kvassay bench curve
--record results/load_curves`); ``--check`` says whether the stored page is the one that it makes.
Percentiles are of all requests: one that is not complete counts as one that takes for ever, and a
percentile that falls on such a request has no number.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from kvassay.harness.load.saturation import GROWS, KEPT_UP, LEAST, METRICS, verdict
from kvassay.harness.metrics.metric import Measured, Per
from kvassay.harness.record import Record
from kvassay.harness.report import style
from kvassay.suites.benchmarks.stored import Made, command, image, stored

SUITE = "load-curve"
LOAD = "load average"
NAME = RECORDS = CHART = "load_curves"
CAPTION = "Latency, throughput and goodput of two vLLM servers by arrival rate"
ENDINGS = ("requests_complete", "requests_cancelled", "requests_failed", "requests_truncated")


@dataclass(frozen=True)
class Point:
    """One server at one rate, as its record says."""

    server: str
    rate: float
    """Requests per second, of the process."""
    counts: tuple[int, ...]
    """Requests by `ENDINGS`."""
    values: dict[str, float | None]
    """By the tag of a metric."""
    samples: dict[str, tuple[float, ...]]
    errors: tuple[tuple[str, int], ...]
    """What ended requests, and how many."""

    @property
    def requests(self) -> int:
        """All of them."""
        return sum(self.counts)

    @property
    def saturated(self) -> str:
        """Why the server is; empty if it kept up."""
        return verdict(*(self.values[metric.tag] for metric in METRICS))

    def percentile(self, tag: str, percent: float) -> float | None:
        """Of all requests, in seconds; None where it falls on one that is not complete."""
        lost = self.requests - self.counts[0]
        known = Measured(tag, "s", METRICS[0].direction, Per.REQUEST, None, self.samples[tag], lost)
        return known.percentile_of_all(percent)


def point_of(record: Record) -> Point:
    """What a record says."""
    return Point(
        record.options["server"],
        float(record.options["rate"]),
        tuple(record.counters[tag] for tag in ENDINGS),
        {one.name: one.value for one in record.metrics},
        {one.name: tuple(one.samples) for one in record.metrics},
        tuple((one["error"], one["requests"]) for one in record.findings if "error" in one),
    )


# ----------------------------------------------------------------------------------------- showing

HEADINGS = (
    *("server", "rate, 1/s", "arrivals, 1/s", "complete", "given up", "failed"),
    *("departures, 1/s", "tokens, 1/s", "hits, %", "ttft p50, ms", "ttft p99, ms"),
    *("tpot p50, ms", "tpot p99, ms", "goodput, 1/s"),
    *("client late p99, ms", "saturated"),
)


def cells(point: Point) -> list[str]:
    """A line of the table."""
    complete, cancelled, failed, truncated = point.counts
    values = point.values
    hits = values["hit_rate"]
    return [
        point.server,
        f"{point.rate:g}",
        _number(values["arrival_rate"]),
        str(complete),
        str(cancelled),
        str(failed + truncated),
        _number(values["departure_rate"]),
        _number(values["output_throughput"]),
        "-" if hits is None else f"{100 * hits:.1f}",
        *(_milliseconds(point, tag, percent) for tag in ("ttft", "tpot") for percent in (50, 99)),
        _number(values["goodput"]),
        f"{1e3 * float(np.percentile(point.samples['send_delay'], 99)):.1f}",
        point.saturated or "no",
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _milliseconds(point: Point, tag: str, percent: float) -> str:
    value = point.percentile(tag, percent)
    return "never" if value is None else f"{1e3 * value:.1f}"


def in_order(points: Sequence[Point]) -> list[Point]:
    """By server, in the order in which they were first measured, and rate."""
    servers = list(dict.fromkeys(point.server for point in points))
    return sorted(points, key=lambda point: (servers.index(point.server), point.rate))


def table(points: Sequence[Point]) -> Table:
    """A row for each point."""
    shown = Table(show_edge=False, pad_edge=False)
    for heading in HEADINGS:
        left = heading in ("server", "saturated")
        shown.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for point in in_order(points):
        shown.add_row(*cells(point))
    return shown


def found(points: Sequence[Point]) -> Iterator[str]:
    """Where each server saturates, in words."""
    for server in dict.fromkeys(point.server for point in points):
        own = [point for point in points if point.server == server]
        kept_up = [point.rate for point in own if not point.saturated]
        not_kept_up = [point.rate for point in own if point.saturated]
        departures = [point.values["departure_rate"] or 0.0 for point in own]
        most = f"{max(departures):.3g} departures per second at most"
        if not not_kept_up:
            yield f"{server}: not saturated at {max(kept_up):g} requests per second; {most}"
        elif not kept_up:
            yield f"{server}: saturated at {min(not_kept_up):g} requests per second already; {most}"
        else:
            between = f"between {max(kept_up):g} and {min(not_kept_up):g} requests per second"
            yield f"{server}: saturates {between}; {most}"


TEXT = """# Load curves of vLLM, prefix caching on and off

Made by `python -m kvassay.suites.benchmarks.load_curves_page` from the records in
`results/load_curves`, which hold the time of every request (`kvassay bench curve --record
results/load_curves`). {subject} {version}, torch {torch}, Python {python}; {processor}, {cores}
cores, {threads} thread a step; {time}. Load average behind the points: {least:.1f} to {most:.1f},
the measurement included.

{found}

| {head} |
| {rule} |
{body}

{chart}
{errors}
- An open loop: Poisson arrivals that wait for no server, the same prompts at the same times for
  both servers, which take turns. Prompts are of the workload `{workload}`
  ({settings}), token ids renamed for each rate, so
  that no cache has seen them; the first prompts of a rate find nothing.
- *Saturated*: departures below {kept_up:g} of the arrivals, or end-to-end latency that grows by
  more than {grows:g} s per second of arrivals. Both rates leave out the edges of the run
  (`harness/load/saturation.py` has the formulae, and how often the verdict errs: with {requests}
  requests, a load of 0.9 of the capacity is called saturated in 9 % of runs, one of 1.2 in 90 %).
  A saturated server gets no higher rate, then the rate is narrowed down.
- Behind saturation latencies are those of this run's length: with a longer run they are longer.
- Latencies count from the intended start, over **all** requests: *never* is a percentile that falls
  on one that was not answered. Given up is what was not finished {patience:g} s after its sending.
- *Client late*: from the intended start to the sending, p99. It is in every latency: where it is
  not small beside TTFT, the point tells of client and server together.
- *Goodput*: complete requests that meet {slo}, per second, from the first intended start to the
  last end.
- Client and servers share the cores of one machine, and the model is the adapter's own (2 million
  random parameters): what a request costs here is vLLM's own work more than a model's, and these
  are no capacities of a model in use. Compare the curves with one another.
"""


def page(records: Sequence[Record]) -> str:
    """All of `load_curves.md`, of the records of one run."""
    points = in_order([point_of(record) for record in records])
    first = records[0]
    machine, options = first.environment, first.options
    loads = [point.values[LOAD] or 0.0 for point in points]
    left = ("server", "saturated")
    return TEXT.format(
        subject=first.subject.name,
        version=first.subject.version,
        torch=machine.packages.get("torch", "unknown"),
        python=machine.python,
        processor=machine.processor,
        cores=machine.cores,
        threads=options["threads"],
        time=machine.time[:10],
        least=min(loads),
        most=max(loads),
        found="\n".join(f"- {line}." for line in found(points)),
        head=" | ".join(HEADINGS),
        rule=" | ".join("---" if heading in left else "---:" for heading in HEADINGS),
        body="\n".join(f"| {' | '.join(cells(point))} |" for point in points),
        chart=image(CHART, CAPTION),
        errors="".join(f"\n- {line}." for line in _errors(points)) + "\n",
        workload=options["workload"],
        settings=options["settings"] or "its defaults",
        kept_up=KEPT_UP,
        grows=GROWS,
        requests=LEAST,
        patience=float(options["patience"]),
        slo=options["slo"] or "no objective: there is none",
    )


def _errors(points: Sequence[Point]) -> Iterator[str]:
    for point in points:
        for error, count in point.errors:
            told = re.sub(r"https?://\S+", "the server", error)
            yield f"{point.server}, {point.rate:g} per second: {count} x {told}"


# ------------------------------------------------------------------------------------------- chart


def chart(points: Sequence[Point]) -> Any:
    """Latencies, and what was achieved, by arrival rate; saturated points are hollow."""
    figure, (first, gaps, achieved) = style.panels(3)
    points = in_order(points)
    for place, server in enumerate(dict.fromkeys(point.server for point in points)):
        own = [point for point in points if point.server == server]
        for panel, tag in ((first, "ttft"), (gaps, "tpot")):
            for percent, line in ((50, "-"), (99, "--")):
                values = [point.percentile(tag, percent) for point in own]
                found = [None if value is None else 1e3 * value for value in values]
                _line(panel, own, found, line, f"{server}, p{percent}", place)
        for tag, line in (("departure_rate", "-"), ("goodput", "--")):
            name = f"{server}, {tag.replace('_rate', 's')}"
            _line(achieved, own, [point.values[tag] for point in own], line, name, place)
    most = max(point.values["arrival_rate"] or 0.0 for point in points)
    achieved.plot([0, most], [0, most], ":", color=style.GREY, label="all that arrives")
    for panel in (first, gaps, achieved):
        panel.set_xlabel("arrivals, 1/s")
        panel.set_xlim(left=0)
    for panel, label in ((first, "time to first token, ms"), (gaps, "time per output token, ms")):
        panel.set_ylabel(label)
        # Whose tokens all come at once has gaps of 0, for which a logarithm has no place.
        if any((line.get_ydata(orig=False) > 0).any() for line in panel.lines):
            panel.set_yscale("log")
    achieved.set_ylabel("1/s")
    style.legend(first)
    style.legend(achieved)
    figure.suptitle("open loop, Poisson arrivals; hollow: saturated", fontsize=9)
    return figure


def _line(
    panel: Any,
    points: Sequence[Point],
    values: Sequence[float | None],
    line: str,
    label: str,
    place: int,
) -> None:
    kept = [(p, v) for p, v in zip(points, values, strict=True) if v is not None]
    rates = [point.values["arrival_rate"] for point, _ in kept]
    colour, marker = style.colour(place), style.marker(place)
    panel.plot(rates, [value for _, value in kept], line, color=colour, label=label)
    for (point, value), rate in zip(kept, rates, strict=True):
        face = "white" if point.saturated else colour
        panel.plot([rate], [value], marker, color=colour, markerfacecolor=face)


def made(results: Path) -> Made:
    """Of the last complete run in the folder; `BadRecord` without one."""
    records = stored(results / RECORDS, SUITE)
    points = [point_of(record) for record in records]
    return Made(NAME, page(records), {CHART: lambda: chart(points)})


def main(arguments: list[str] | None = None) -> int:
    """From the command line; 1 where the page is another, 2 without a run."""
    return command(made, __doc__, arguments)


if __name__ == "__main__":
    sys.exit(main())
