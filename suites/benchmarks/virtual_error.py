"""Virtual time beside a real engine, on the same traffic: how far it is off.

    python -m kvassay.suites.benchmarks.virtual_error

Steps of the engine are measured and the cost model's constants fitted to them. Then a part of a
trace, with lengths a sixteenth as long and arrivals as recorded but faster, is served several times
by the engine and once in virtual time, by a cache manager of the same rules and size. The result
goes to ``results/virtual_error.json``, which everything that virtual time shows quotes. The engine
must be able to run here (``--engine vllm-engine``), and so must the manager.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kvassay.harness.environment import capture
from kvassay.harness.load.generator import Generator
from kvassay.harness.load.watching import Watcher
from kvassay.harness.metrics.timeline import Timeline
from kvassay.harness.registry import Registration, find
from kvassay.harness.rig.scheduler import Limits
from kvassay.harness.traces.finding import requests
from kvassay.harness.virtual import agreement
from kvassay.harness.virtual.agreement import Agreement
from kvassay.harness.virtual.cost import Cost, Machine
from kvassay.harness.virtual.fitting import Observed, fit, largest_miss
from kvassay.harness.virtual.model import RANDOM_LLAMA
from kvassay.harness.virtual.probing import Prober
from kvassay.harness.virtual.simulate import Incoming, simulate
from kvassay.harness.virtual.traffic import Vocabulary, scaled, traffic
from kvassay.harness.workloads.plan import Planned

SCALE = 16
LONGEST = 4000
"""Tokens of a prompt and its output; longer requests of the trace are left out."""
BLOCK_SIZE = 32
STEP_TOKENS = 2048


def part(trace: str, count: int, speed: float) -> list[Incoming]:
    """The first `count` requests of a trace that are short enough, scaled."""
    few = (scaled(one, SCALE) for one in requests(trace))
    fitting = (one for one in few if one.input_tokens + one.output_tokens <= LONGEST)
    encoding = Vocabulary(RANDOM_LLAMA.vocabulary)
    return list(traffic(islice(fitting, count), speed=speed, encoding=encoding))


async def served(engine: Any, load: Sequence[Incoming]) -> tuple[Timeline, ...]:
    """The traffic as a client of the engine sees it."""
    watcher = Watcher(engine, asyncio.get_running_loop().time)
    planned = [Planned(one.name, one.prompt, (0,) * one.output_tokens) for one in load]
    sent = await Generator(watcher).open(planned, [one.at for one in load])
    return sent.timelines


async def measured(
    engine: Any, load: Sequence[Incoming], runs: int
) -> tuple[list[Observed], list[tuple[Timeline, ...]], list[float]]:
    """Steps, runs of the traffic, each from an empty cache, and the machine's load before each."""
    observed = await Prober(engine, RANDOM_LLAMA.vocabulary).observe()
    timelines, busy = [], []
    for _ in range(runs):
        engine.reset()
        busy.append(os.getloadavg()[0])
        timelines.append(await served(engine, load))
    return observed, timelines, busy


def compared(engine: Registration, manager: Registration, options: argparse.Namespace) -> Agreement:
    """The whole measurement."""
    load = part(options.trace, options.requests, options.speed)
    live = engine.build(
        num_blocks=options.blocks,
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=STEP_TOKENS,
        threads=options.threads,
    )
    try:
        observed, runs, busy = asyncio.run(measured(live, load, options.runs))
    finally:
        live.close()
    machine = fit(observed, RANDOM_LLAMA, "this CPU", f"fitted to steps of {engine.name}")
    cost = Cost(RANDOM_LLAMA, machine)
    built = manager.build(num_blocks=options.blocks, block_size=BLOCK_SIZE)
    simulated = simulate(built, manager.declaration, load, cost, Limits(STEP_TOKENS, 256))
    virtual = list(simulated.timelines())
    return Agreement(
        engine=f"{engine.name} {engine.version}",
        model=RANDOM_LLAMA.name,
        trace=f"{options.trace} / {SCALE}",
        requests=len(load),
        rate=(len(load) - 1) / load[-1].at,
        hit_virtual=agreement.hits(virtual),
        hit_real=[agreement.hits(run) for run in runs],
        compared=agreement.compare(virtual, runs),
        machine=constants(machine),
        largest_miss=largest_miss(observed, cost),
        load=busy,
        environment=capture(seed="0").model_dump(),
    )


def constants(machine: Machine) -> dict[str, Any]:
    """What was fitted."""
    kept = ("step_seconds", "chunk_seconds", "entry_seconds", "source")
    found = asdict(machine)
    return {**found["peak"], **{name: found[name] for name in kept}}


def table(found: Agreement) -> Table:
    """Percentiles side by side."""
    shown = Table(show_edge=False, pad_edge=False)
    for heading in ("", "real, ms", "virtual, ms", "error, %", "single runs off by, %"):
        shown.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for row in found.compared:
        shown.add_row(
            f"{row.metric} p{row.percentile}",
            f"{1e3 * row.real:.2f}",
            f"{1e3 * row.virtual:.2f}",
            f"{100 * row.error:+.1f}",
            f"{100 * row.noise:.1f}",
        )
    hit = ", ".join(f"{tokens:,}" for tokens in found.hit_real)
    shown.add_row("hit tokens", hit, f"{found.hit_virtual:,}", "", "")
    return shown


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--engine", default="vllm-engine", help="(vllm-engine)")
    parser.add_argument("--impl", default="vllm-deferred", help="cache manager (vllm-deferred)")
    parser.add_argument("--trace", default="mooncake-conversation", help="with block ids")
    parser.add_argument("--requests", type=int, default=200, help="of the trace (200)")
    parser.add_argument("--speed", type=float, default=2.0, help="of the arrivals (2)")
    parser.add_argument("--blocks", type=int, default=1000, help="of the pool (1000)")
    parser.add_argument("--threads", type=int, default=1, help="of the engine's steps (1)")
    parser.add_argument("--runs", type=int, default=5, help="of the engine (5)")
    parser.add_argument("--output", type=Path, default=agreement.FILE, help="JSON file")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """From the command line; the exit status."""
    options = _parser().parse_args(arguments)
    (engine,), (manager,) = (
        [entry for entry in find(name) if entry.name == name]
        for name in (options.engine, options.impl)
    )
    found = compared(engine, manager, options)
    agreement.write(found, options.output)
    console = Console(width=140)
    console.print(table(found))
    busy = ", ".join(f"{load:.1f}" for load in found.load)
    console.print(f"{found.requests} requests, {found.rate:.1f} per s; load average {busy}")
    console.print(f"largest miss of a fitted step: {100 * found.largest_miss:.0f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
