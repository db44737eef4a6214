"""``kvassay bench``: the benchmarks by name.

A benchmark is a module of the suites, found by its name when it is asked for, with a ``main`` that
takes the arguments and returns the exit status. Each of them shows its progress, writes records
where ``--record`` says so, and keeps what was measured when it is interrupted (status 130).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

import typer


class Benchmark(NamedTuple):
    """Where a benchmark is, and what it measures."""

    module: str
    about: str


BENCHMARKS = {
    "control": Benchmark("control", "what cache managers cost their scheduler, side by side"),
    "replay": Benchmark("replay", "hits on a recorded trace, beside policy, optimum and ceiling"),
    "occupancy": Benchmark("occupancy", "where a pool's memory is while a trace runs through it"),
    "capacity": Benchmark("capacity", "hits on recorded traces by the size of the cache in GiB"),
    "memory": Benchmark("memory", "memory by the way it is reserved, on the lengths of traces"),
    "rig": Benchmark("rig", "time to the first token inside a small engine, by how prompts share"),
    "engine": Benchmark("engine_ttft", "time to the first token of vLLM, by how prompts share"),
    "inside": Benchmark("inside", "KV inside a running vLLM: every slot that is read, verified"),
    "virtual": Benchmark("virtual", "a trace in virtual time: latency against arrival rate"),
    "curve": Benchmark(
        "load_curves", "latency and goodput by arrival rate, until servers saturate"
    ),
    "agreement": Benchmark("agreement", "latencies beside those of vllm bench serve"),
    "kernels": Benchmark("kernels.__main__", "attention kernels beside their roofline"),
}

bench = typer.Typer(
    no_args_is_help=True, help="Measure: kvassay bench NAME --help says what and how."
)


def _command(name: str, benchmark: Benchmark) -> Callable[[typer.Context], None]:
    def run(context: typer.Context) -> None:
        module = import_module(f"kvassay.suites.benchmarks.{benchmark.module}")
        raise typer.Exit(module.main(context.args))

    run.__doc__ = f"Measure {benchmark.about}."
    run.__name__ = name
    return run


for _name, _benchmark in BENCHMARKS.items():
    bench.command(
        _name,
        add_help_option=False,  # the benchmark has its own
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(_command(_name, _benchmark))
