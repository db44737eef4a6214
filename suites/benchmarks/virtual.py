"""Hours of a trace in virtual time: latency and goodput against arrival rate, pool and block size.

    python -m kvassay.suites.benchmarks.virtual --speed 0.5 --speed 1 --cache on --cache off

The rig's scheduler serves the trace through a cache manager on a roofline of a machine; nothing is
computed, and the same command gives the same numbers to the last bit. ``--speed`` multiplies the
recorded rate. With ``--cache off`` no prompt shares anything with another. The pool is what the
machine has beside the weights, unless given. Below every table and chart stands the model's error
against a real engine (`virtual_error`). Ctrl-C ends the run; what was complete is shown.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice, product
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kvassay.harness.assay import write_whole
from kvassay.harness.contract import CacheManager, ContractError
from kvassay.harness.environment import capture
from kvassay.harness.record import Direction, Metric, Record, write
from kvassay.harness.recording import subject_of
from kvassay.harness.registry import Registration, Unavailable, UnknownImplementation, find
from kvassay.harness.rig.scheduler import Limits
from kvassay.harness.traces.finding import KNOWN, NoTrace, requests
from kvassay.harness.traces.request import TraceRequest
from kvassay.harness.virtual.agreement import sentence
from kvassay.harness.virtual.cost import MACHINES, Cost
from kvassay.harness.virtual.model import MODELS
from kvassay.harness.virtual.outcome import OBJECTIVES, Outcome, outcome
from kvassay.harness.virtual.simulate import Incoming, simulate
from kvassay.harness.virtual.traffic import ticks, traffic
from kvassay.harness.workloads.arrivals import recorded
from kvassay.suites.benchmarks.stored import write as publish
from kvassay.suites.benchmarks.virtual_page import (
    HEADINGS,
    ITL,
    NAME,
    SUITE,
    TTFT,
    Line,
    cells,
    made,
)

USAGE_ERROR = 2
INTERRUPTED = 130
PERCENTILES = (50, 90, 99)
BRANCHES = 256


@dataclass(frozen=True)
class Case:
    """What is simulated."""

    entry: Registration
    trace: str
    speed: float
    pool_tokens: int
    block_size: int
    cache: bool
    machine: str
    model: str
    step_tokens: int
    limit: int | None
    spread_ticks: bool

    def options(self) -> dict[str, str]:
        """For a record."""
        names = ("trace", "speed", "pool_tokens", "block_size", "machine", "model", "step_tokens")
        more = {"limit": self.limit, "ticks": "spread" if self.spread_ticks else "as recorded"}
        asked = {name: getattr(self, name) for name in names} | more
        return {name: str(value) for name, value in asked.items()} | {"cache": _on(self.cache)}


@dataclass(frozen=True, eq=False)
class Row:
    """A case and what came of it."""

    case: Case
    rate: float
    """Arrivals per second."""
    got: Outcome
    took: float
    """Seconds of the simulation, by the clock."""


def _on(cache: bool) -> str:
    return "on" if cache else "off"


def run(case: Case, trace: list[TraceRequest], progress: Progress | None = None) -> Row:
    """Simulate one case."""
    start = time.perf_counter()
    manager = case.entry.build(
        num_blocks=case.pool_tokens // case.block_size, block_size=case.block_size
    )
    cost = Cost(MODELS[case.model], MACHINES[case.machine])
    load = traffic(trace, speed=case.speed, spread_ticks=case.spread_ticks, shared=case.cache)
    watched = load if progress is None else _watched(load, case, len(trace), progress)
    limits = Limits(case.step_tokens, BRANCHES)
    simulated = simulate(manager, case.entry.declaration, watched, cost, limits)
    got = outcome(simulated)
    arrivals = [one.intended for one in simulated.requests]
    rate = (len(arrivals) - 1) / (arrivals[-1] - arrivals[0]) if len(arrivals) > 1 else 0.0
    return Row(case, rate, got, time.perf_counter() - start)


def _watched(
    load: Iterator[Incoming], case: Case, total: int, progress: Progress
) -> Iterator[Incoming]:
    label = f"{case.entry.name}, speed {case.speed:g}, cache {_on(case.cache)}"
    yield from progress.track(load, total=total, description=label)


# ----------------------------------------------------------------------------------------- showing


def line_of(row: Row) -> Line:
    """A case in the numbers that are told."""
    case, got = row.case, row.got
    return Line(
        case.entry.name,
        _on(case.cache),
        case.pool_tokens,
        case.block_size,
        row.rate,
        got.hit_rate,
        _percentiles(got.ttft, TTFT),
        _percentiles(got.itl, ITL),
        got.goodput,
        got.preemptions,
        got.requests - got.complete,
    )


def _percentiles(samples: np.ndarray, percents: Sequence[int]) -> dict[str, float]:
    if not len(samples):
        return {}
    return {str(percent): float(np.percentile(samples, percent)) for percent in percents}


def table(rows: list[Row]) -> Table:
    """A row for each case."""
    shown = Table(show_edge=False, pad_edge=False)
    for heading in (*HEADINGS, "took, s"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        shown.add_row(*cells(line_of(row)), f"{row.took:.1f}")
    return shown


def record_of(row: Row) -> Record:
    """A row's record; the same for the same case, but for where and when it was made."""
    entry, got = row.case.entry, row.got
    samples = {"ttft": got.ttft, "tpot": got.tpot, "ttft_queue": got.queue}
    metrics = [
        Metric(
            name=name,
            unit="s",
            direction=Direction.LOWER,
            value=float(np.median(found)) if len(found) else None,
            samples=found.tolist(),
        )
        for name, found in samples.items()
    ]
    metrics += [
        Metric(
            name=f"itl p{percent}",
            unit="s",
            direction=Direction.LOWER,
            value=float(np.percentile(got.itl, percent)) if len(got.itl) else None,
        )
        for percent in PERCENTILES
    ]
    rates = {"goodput": got.goodput, "request_throughput": got.rate}
    metrics += [
        Metric(name=name, unit="1/s", direction=Direction.HIGHER, value=value)
        for name, value in rates.items()
    ]
    counted = ("requests", "complete", "preemptions", "prompt_tokens", "hit_tokens", "steps")
    return Record(
        suite=SUITE,
        subject=subject_of(entry),
        environment=capture(seed="none"),
        options=row.case.options() | {"digest": got.digest, "error": sentence()},
        counters={name: int(getattr(got, name)) for name in counted},
        metrics=metrics,
    )


def summary_of(rows: Sequence[Row], told: dict[str, str]) -> Record:
    """All rows as the page tells them: without samples, which are in a record of each."""
    return Record(
        suite=SUITE,
        subject=subject_of(rows[0].case.entry),
        environment=capture(seed="none"),
        options=told,
        findings=[asdict(line_of(row)) for row in rows],
    )


# ------------------------------------------------------------------------------------ command line


def _cases(options: argparse.Namespace) -> Iterator[Case]:
    found = [entry for name in options.impl or ["radix"] for entry in find(name)]
    own = MACHINES[options.machine].pool_tokens(MODELS[options.model])
    wanted = product(
        [entry for entry in found if entry.kind is CacheManager],
        options.pool_tokens or [own],
        options.block_size or [512],
        options.cache or ["on"],
        options.speed or [1.0],
    )
    for entry, pool, block_size, cache, speed in wanted:
        yield Case(
            entry,
            options.trace,
            speed,
            pool,
            block_size,
            cache == "on",
            options.machine,
            options.model,
            options.step_tokens,
            options.limit,
            not options.as_recorded,
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kvassay bench virtual", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    add = parser.add_argument
    add("--impl", action="append", help="a manager; may be repeated (radix), as may what follows")
    add("--speed", action="append", type=float, help="times the recorded rate (1)")
    add("--cache", action="append", choices=("on", "off"), help="whether prompts share (on)")
    add("--pool-tokens", action="append", type=int, help="of the pool (what the machine has)")
    add("--block-size", action="append", type=int, help="tokens (512)")
    add("--trace", default="mooncake-conversation", help=f"{', '.join(KNOWN)}, or FORMAT:PATH")
    add("--limit", type=int, help="so many requests of the trace")
    add("--machine", choices=sorted(MACHINES), default="h200", help="(h200)")
    add("--model", choices=sorted(MODELS), default="llama-3-8b", help="(llama-3-8b)")
    add("--step-tokens", type=int, default=8192, help="computed in a step, at most (8192)")
    add("--as-recorded", action="store_true", help="do not spread arrivals out of coarse ticks")
    add("--record", type=Path, help="folder for a record of each row")
    add(
        "--output",
        type=Path,
        help="folder for virtual.json, and a page and chart of it",
    )
    return parser


def _about_ticks(trace: list[TraceRequest], as_recorded: bool) -> str:
    found = ticks(list(recorded(trace)))
    if not found.coarse:
        return "arrivals as recorded"
    done = "kept, so requests come in bursts" if as_recorded else "spread evenly over the tick"
    return (
        f"arrivals were recorded in ticks of {found.usual:.3g} s ({found.requests:,} requests at "
        f"{found.moments:,} moments): {done}"
    )


def main(arguments: list[str] | None = None) -> int:
    """From the command line; the exit status."""
    options = _parser().parse_args(arguments)
    rows: list[Row] = []
    status, about = 0, ""
    trace: list[TraceRequest] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        try:
            cases = list(_cases(options))
            trace = list(islice(requests(options.trace), options.limit))
            about = _about_ticks(trace, options.as_recorded)
            rows.extend(run(case, trace, progress) for case in cases)
        except KeyboardInterrupt:
            status = INTERRUPTED
        except (UnknownImplementation, Unavailable, ContractError, NoTrace, ValueError) as error:
            print(error, file=sys.stderr)
            status = USAGE_ERROR
    if not rows:
        return status
    shown, console = table(rows), Console()
    console.width = max(console.width, Console(width=1000).measure(shown).maximum)
    console.print(shown)
    machine, model = MACHINES[options.machine], MODELS[options.model]
    said = [
        f"{model.name} on {machine.name} ({machine.source}).",
        f"{options.trace}, {len(trace):,} requests; {about}.",
        f"Goodput: {_objectives()}.",
        sentence(),
    ]
    for line in said:
        console.print(line)
    for row in rows:
        if options.record is not None:
            write(record_of(row), options.record)
    if options.output is not None:
        keys = ("machine", "trace", "goodput", "chart")
        told = dict(zip(keys, (*said[:3], f"{machine.name}, {options.trace}"), strict=True))
        options.output.mkdir(parents=True, exist_ok=True)
        record = summary_of(rows, told)
        write_whole(options.output / f"{NAME}.json", record.model_dump_json(indent=1) + "\n")
        publish(made(options.output), options.output)
    return status


def _objectives() -> str:
    limits = (f"{tag} at most {limit:g} s" for tag, limit in OBJECTIVES.items())
    return f"complete requests with {' and '.join(limits)}, per second"


def _series(row: Row) -> str:
    case = row.case
    return f"{case.entry.name}, {case.pool_tokens:,} tokens, cache {_on(case.cache)}"


if __name__ == "__main__":
    sys.exit(main())
