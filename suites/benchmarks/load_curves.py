"""Load curves of live servers, to saturation: latency, throughput and goodput by arrival rate.

    python -m kvassay.suites.benchmarks.load_curves --rates 2,4,8,16 --slo ttft=0.2

Two servers of an engine, with prefix caching and without (or those given as ``--server
NAME=URL``), get the same Poisson arrivals and the same prompts, one server after the other, at
rising rates until each of them saturates: departures below 0.9 of arrivals, or latency that grows.
Nothing waits for a server; a request is given up ``--patience`` seconds after its sending, and is
counted as such. Ctrl-C keeps the points that are whole. What is shown is made of the records
(`load_curves_page`).

Exit status: 0, 1 if no server can be measured any more, 2 for a wrong call, 130 if interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from kvassay.harness.contract import Engine
from kvassay.harness.control.pairing import undisturbed
from kvassay.harness.environment import capture
from kvassay.harness.load import telling
from kvassay.harness.load.command import objectives
from kvassay.harness.load.curve import COUNTED, Plan, Point, sweep
from kvassay.harness.load.progress import Progress
from kvassay.harness.load.saturation import LEAST
from kvassay.harness.load.session import Load, NoServer, Report, look_for, measured
from kvassay.harness.metrics.metric import PERCENTILES, Per
from kvassay.harness.record import Direction, Metric, Record, write
from kvassay.harness.recording import subject_of
from kvassay.harness.registry import Registration, Unavailable, UnknownImplementation, find
from kvassay.harness.serving.http import HTTP, NoAiohttp, allow_many_sockets
from kvassay.harness.serving.openai import OpenAIEngine
from kvassay.suites.benchmarks.arguments import positive, served_by
from kvassay.suites.benchmarks.load_curves_page import LOAD, SUITE, page, point_of, table
from kvassay.suites.benchmarks.rig_memory import children_keep_memory

FAILED, USAGE_ERROR, INTERRUPTED = 1, 2, 130
RATES = "2,4,8,16,32,64"
SIZES = ("example_tokens=512", "question_tokens=64", "output_tokens=16")
"""Of the few-shot workload."""
BLOCK_SIZE, VOCABULARY = 32, 1024
"""Of the engine's small model."""


@dataclass(frozen=True)
class Server:
    """Where to ask, and whom."""

    url: str
    model: str


@dataclass
class Bench:
    """The servers, and the points that there are so far."""

    plan: Plan
    rates: Sequence[float]
    refine: int
    console: Console
    entry: Registration | None = None
    """Whose servers are started, where none are given."""
    threads: int = 1
    servers: dict[str, Server] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    """Load average (one minute) of the machine behind each point."""

    def run(self) -> None:
        """All points; they are kept as they come."""
        with children_keep_memory(), ExitStack() as started:
            if self.entry is not None:
                serving = served_by(self.entry)
                for caching in (True, False):
                    options = {"block_size": self.plan.block_size, "threads": self.threads}
                    one = started.enter_context(serving(prefix_caching=caching, **options))
                    name = f"prefix caching {'on' if caching else 'off'}"
                    self.servers[name] = Server(one.url, one.model)
            allow_many_sockets()
            names = list(self.servers)
            for point in sweep(names, self.rates, self.plan, self.ask, refine=self.refine):
                self.points.append(point)
                self.loads.append(os.getloadavg()[0])
                said = point.saturated or "kept up"
                self.console.print(f"{point.server}, {point.rate:g}/s: {said}", highlight=False)

    def ask(self, name: str, load: Load) -> Report:
        """A point of one server, over HTTP."""
        return asyncio.run(self._measured(self.servers[name], load))

    async def _measured(self, server: Server, load: Load) -> Report:
        async with HTTP(server.url) as transport:
            engine = OpenAIEngine(transport, server.model)
            await look_for(engine)
            bar = Progress(len(load.workload.requests), self.console)
            with undisturbed(), bar as progress:
                return await measured(engine, load, time.monotonic, progress.told)


# ----------------------------------------------------------------------------------------- records


def records(bench: Bench, options: dict[str, str]) -> Iterator[Record]:
    """One for each point; what is shown is made of them."""
    environment = capture(seed=str(bench.plan.seed))
    for row, (point, load) in enumerate(zip(bench.points, bench.loads, strict=True)):
        server = bench.servers[point.server]
        told = telling.record_of(point.report, server.model, server.url, {})
        more = {"server": point.server, "rate": f"{point.rate:g}", "row": str(row)}
        yield Record(
            suite=SUITE,
            subject=told.subject if bench.entry is None else subject_of(bench.entry),
            environment=environment,
            options=options | more,
            counters=told.counters,
            metrics=[*_metrics(point), _load(load)],
            findings=told.findings,
        )


def _metrics(point: Point) -> Iterator[Metric]:
    """All that was measured; of gaps, of which there are many, percentiles alone."""
    for tag, one in point.measured.items():
        samples = list(one.samples) if one.per is Per.REQUEST else []
        yield Metric(
            name=tag, unit=one.unit, direction=one.direction, value=one.value, samples=samples
        )
        if one.per in (Per.TOKEN, Per.CHUNK):
            for percent in PERCENTILES:
                yield Metric(
                    name=f"{tag}_p{percent}",
                    unit=one.unit,
                    direction=one.direction,
                    value=one.percentile(percent),
                )


def _load(value: float) -> Metric:
    return Metric(name=LOAD, unit="1", direction=Direction.NEITHER, value=value)


# ------------------------------------------------------------------------------------ command line


def _rates(text: str) -> list[float]:
    return [float(one) for one in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kvassay bench curve", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    add = parser.add_argument
    add(
        "--rates", type=_rates, default=_rates(RATES), help=f"requests per second, rising ({RATES})"
    )
    add("--refine", type=int, default=2, help="points between the last two rates of a server (2)")
    add("--engine", default="vllm-engine", help="its servers are started (vllm-engine)")
    add("--server", action="append", metavar="NAME=URL", help="one that runs instead; repeat")
    add("--model", default="", help="as the servers that run call it")
    add("--threads", type=positive, default=1, help="of a step of a started server (1)")
    add("--workload", choices=COUNTED, default="few-shot", help="(few-shot)")
    add("--set", action="append", metavar="PARAMETER=NUMBER", help="of the workload; repeat")
    add("--requests", type=positive, default=LEAST, help=f"of a point, at least ({LEAST})")
    add("--seconds", type=float, default=10.0, help="of arrivals at a point, at least (10)")
    add("--patience", type=float, default=30.0, help="seconds until a request is given up (30)")
    add("--slo", action="append", help="objective, ttft=0.2 (s); also tpot, e2e; repeat")
    add("--block-size", type=positive, default=BLOCK_SIZE, help=f"tokens ({BLOCK_SIZE})")
    add("--vocabulary", type=positive, default=VOCABULARY, help=f"ids to use ({VOCABULARY})")
    add("--seed", type=int, default=0, help="of prompts and arrivals (0)")
    add("--salt", type=int, help="renames token ids (a new one for each run)")
    add("--record", type=Path, help="folder for a record of each point")
    add("--page", type=Path, help="file for the records as a page; not if interrupted")
    return parser


def _bench(options: argparse.Namespace) -> Bench:
    usual = SIZES if options.workload == "few-shot" else ()
    plan = Plan(
        workload=options.workload,
        settings=options.set or usual,
        requests=options.requests,
        seconds=options.seconds,
        most=options.vocabulary // 2 - 1,  # prompts and outputs begin with tokens of their own
        patience=options.patience,
        objectives=objectives(options.slo or []),
        seed=options.seed,
        salt=secrets.randbits(48) if options.salt is None else options.salt,
        vocabulary=options.vocabulary,
        block_size=options.block_size,
    )
    bench = Bench(plan, options.rates, options.refine, Console(stderr=True))
    if options.server:
        for one in options.server:
            name, found, url = one.partition("=")
            if not found or not options.model:
                raise ValueError(f"server: expected NAME=URL and --model, got {one!r}")
            bench.servers[name] = Server(url, options.model)
        return bench
    (bench.entry,) = (one for one in find(options.engine) if one.kind is Engine)
    bench.threads = options.threads
    served_by(bench.entry)
    return bench


def _run(bench: Bench) -> int:
    """All points; the exit status."""
    try:
        bench.run()
    except KeyboardInterrupt:
        return INTERRUPTED
    except (NoAiohttp, NoServer, RuntimeError) as error:
        print(error, file=sys.stderr)
        return FAILED
    return 0


def main(arguments: list[str] | None = None) -> int:
    """From the command line; the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.page is not None and options.record is None:
        parser.error("--page is made of records: expected --record, too")
    try:
        bench = _bench(options)
        bench.plan.load(options.rates[0], 0)
    except (UnknownImplementation, Unavailable, ValueError) as error:
        print(error, file=sys.stderr)
        return USAGE_ERROR
    status = _run(bench)
    told = {**_told(bench.plan), "threads": str(options.threads)}
    made = list(records(bench, told | {"complete": "no" if status else "yes"}))
    if made:
        console, shown = Console(), table([point_of(record) for record in made])
        console.width = max(console.width, Console(width=1000).measure(shown).maximum)
        console.print(shown)
    for record in made if options.record is not None else ():
        write(record, options.record)
    if options.page is not None and not status:
        options.page.write_text(page(made), "utf-8")
    return status


def _told(plan: Plan) -> dict[str, str]:
    """The plan, for a record."""
    names = ("workload", "patience", "seed", "salt", "vocabulary", "block_size", "warm_up")
    told = {name: str(getattr(plan, name)) for name in names}
    told["settings"] = " ".join(plan.settings)
    told["slo"] = " ".join(f"{tag}={limit:g}" for tag, limit in plan.objectives.items())
    return told


if __name__ == "__main__":
    sys.exit(main())
