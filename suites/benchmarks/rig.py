"""What prefix reuse saves before the first token, in a running engine, and what hits promise of it.

    python -m kvassay.suites.benchmarks.rig --page results/ttft.md

A small Llama with random weights; four ways to share a prefix of 4,096 tokens (see
`harness.workloads`); the same rig, kernel and requests for every manager, interleaved request by
request. The time to the first token is compared where the workload intends a hit. Beside each
ratio stands what the hits promise: the time of a prompt by the cost of a step (see `rig_cost`),
which is fitted to the steps of the manager without reuse alone, with the hits that the workload
declares. Throughput and waste come from a closed loop behind it. Ctrl-C keeps what was measured.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kvassay.harness.contract import CacheManager, Capability, PagedAttention
from kvassay.harness.environment import capture
from kvassay.harness.metrics.timeline import Timeline
from kvassay.harness.record import Direction, Metric, Record, write
from kvassay.harness.recording import subject_of
from kvassay.harness.registry import Registration, find
from kvassay.harness.rig.language import random_llama
from kvassay.harness.rig.scheduler import Limits
from kvassay.harness.workloads.plan import Planned, Workload
from kvassay.suites.benchmarks.rig_cost import Cost, Load, fit
from kvassay.suites.benchmarks.rig_memory import keep_memory
from kvassay.suites.benchmarks.rig_playing import (
    OUTPUT,
    THOUGHT,
    Bench,
    closed_loop,
    patterns,
    serial,
    warm_up,
)

SUITE = "rig"
INTERRUPTED, USAGE_ERROR = 130, 2
BASELINE = "paged"
"""What ratios are to; it must not reuse anything."""
MANAGERS = ("radix", "paged", "contiguous")
CLOCKS = {"wall": time.perf_counter, "cpu": time.thread_time}
SHAPE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 1024,
    "head_dim": 64,
    "vocab_size": 512,
}
"""Of the model, beside two layers of four heads and two KV heads."""
WIDEST = 1000
"""Columns; a table is never folded, whatever the terminal."""
UNTOLD = ("record", "page", "impl", "pattern")
"""Options that a record does not keep."""


Seconds = dict[str, list[float]]
"""By request, one number for each round."""


@dataclass
class Row:
    """One manager on one pattern, all rounds."""

    pattern: str
    manager: Registration
    cold: Seconds = field(default_factory=lambda: defaultdict(list))
    """To the first token, where no hit is intended."""
    warm: Seconds = field(default_factory=lambda: defaultdict(list))
    """The same where one is."""
    managing: Seconds = field(default_factory=lambda: defaultdict(list))
    """Of it in the manager: look-up and reservation."""
    hit: int = 0
    """Tokens found resident, of all prompts in all rounds."""
    tokens: int = 0
    intended: int = 0
    """Tokens of them that the workload says can be found."""
    promised: float | None = None
    """Seconds that the hits promise for `warm`, mean over its requests."""
    throughput: list[float] = field(default_factory=list)
    """Output tokens per second in the closed loop."""
    waste: list[float] = field(default_factory=list)
    """Share of held slots that hold nothing, in the closed loop."""

    def take(self, planned: Planned, timeline: Timeline) -> None:
        """One request of one round."""
        assert timeline.sent is not None
        there = self.warm if planned.hit() else self.cold
        there[planned.name].append(timeline.events[0].time - timeline.sent)
        stages = timeline.stages
        spent = stages.get("lookup", 0.0) + stages.get("reservation", 0.0)
        self.managing[planned.name].append(spent)
        self.hit += timeline.events[0].cached_tokens or 0
        self.tokens += timeline.prompt_tokens
        self.intended += planned.hit()


def typical(seconds: Mapping[str, Sequence[float]]) -> float | None:
    """Mean over requests of the least disturbed round of each."""
    least = [min(samples) for samples in seconds.values()]
    return statistics.mean(least) if least else None


def ratio(above: float | None, below: float | None) -> float | None:
    """Where both are known."""
    return above / below if above is not None and below else None


class Run:
    """What was measured so far."""

    def __init__(self, bench: Bench, managers: list[Registration], clients: int) -> None:
        self.bench = bench
        self.managers = managers
        self.clients = clients
        self.rows: dict[tuple[str, str], Row] = {}
        self.cost: Cost | None = None
        self._steps: dict[tuple[str, int], tuple[Load, list[float]]] = {}
        """Of the baseline, by pattern and number: the same ones in every round."""
        self._workloads: dict[str, Workload] = {}

    def play(self, workload: Workload, tick: Callable[[], None]) -> None:
        """One round of one pattern, with a closed loop in the first; `tick` after each part."""
        self._workloads[workload.name] = workload
        rows = [self._row(workload.name, manager) for manager in self.managers]
        rigs = None
        for planned, rigs in serial(self.bench, self.managers, workload):
            for row, rig in zip(rows, rigs, strict=True):
                row.take(planned, rig.timelines[planned.name])
            tick()
        for row, rig in zip(rows, rigs or (), strict=True):
            if row.manager.name == BASELINE:
                for number, (load, took) in enumerate(zip(rig.loads, rig.seconds, strict=True)):
                    self._steps.setdefault((workload.name, number), (load, []))[1].append(took)
        for row in rows if self.clients and not rows[0].throughput else ():
            loop = closed_loop(self.bench, row.manager, workload, self.clients)
            row.throughput.append(loop.throughput)
            row.waste += [] if loop.waste is None else [loop.waste]
            tick()

    def _row(self, pattern: str, manager: Registration) -> Row:
        return self.rows.setdefault((pattern, manager.name), Row(pattern, manager))

    def promise(self) -> None:
        """Fit the cost of a step, and say what the declared hits come to."""
        loads = [load for load, _ in self._steps.values()]
        try:
            self.cost = fit(loads, [min(samples) for _, samples in self._steps.values()])
        except ValueError:
            return
        budget = self.bench.limits.step_tokens
        for row in self.rows.values():
            shares = row.manager.declaration.has(Capability.PREFIX_CACHE)
            planned = [one for one in self._workloads[row.pattern].requests if one.name in row.warm]
            if planned:
                row.promised = statistics.mean(
                    self.cost.prompt(len(one.prompt), one.hit() if shares else 0, budget)
                    for one in planned
                )


# ----------------------------------------------------------------------------------------- showing


def quantities(run: Run, row: Row) -> dict[str, object]:
    """A row of the table."""
    base = run.rows.get((row.pattern, BASELINE))
    warm, cold = typical(row.warm), typical(row.cold)
    measured = ratio(typical(base.warm), warm) if base else None
    promised = ratio(base.promised, row.promised) if base else None
    spent = typical(row.managing)
    return {
        "requests": len(row.warm) + len(row.cold),
        "found / intended, % of prompt tokens": f"{_of(row.hit, row)} / {_of(row.intended, row)}",
        "TTFT, no hit intended, ms": _number(cold, 0, 1000),
        "TTFT, hit intended, ms": _number(warm, 0, 1000),
        "of it in the manager, ms": _number(spent, 2, 1000),
        f"times faster than {BASELINE}": _number(measured, 2),
        "promised by hits": _number(promised, 2),
        "off, %": _number(
            None if not promised or not measured else measured / promised - 1, 0, 100
        ),
        "output tokens per s": _number(_median(row.throughput), 1),
        "KV waste, %": _number(_median(row.waste), 2, 100),
    }


def _of(tokens: int, row: Row) -> str:
    return _number(100 * tokens / row.tokens, 1)


def _median(samples: Sequence[float]) -> float | None:
    return statistics.median(samples) if samples else None


def _number(value: float | None, digits: int, times: float = 1.0) -> str:
    return "-" if value is None else f"{value * times:,.{digits}f}"


def lines(run: Run) -> tuple[list[str], list[list[str]]]:
    """Head and body of the table."""
    rows = [(row, quantities(run, row)) for row in run.rows.values()]
    head = ["pattern", "manager", *(rows[0][1] if rows else ())]
    return head, [[row.pattern, row.manager.name, *map(str, q.values())] for row, q in rows]


def table(run: Run) -> Table:
    """For a terminal."""
    head, body = lines(run)
    shown = Table(show_edge=False, pad_edge=False)
    for name in head:
        shown.add_column(name, justify="left" if name in ("pattern", "manager") else "right")
    for line in body:
        shown.add_row(*line)
    return shown


def records(run: Run, options: Mapping[str, str]) -> Iterable[Record]:
    """One for each row."""
    for row in run.rows.values():
        base = run.rows.get((row.pattern, BASELINE))
        warm = typical(row.warm)
        measured = ratio(typical(base.warm), warm) if base else None
        promised = ratio(base.promised, row.promised) if base else None
        entry = row.manager
        yield Record(
            suite=SUITE,
            subject=subject_of(entry),
            environment=capture(seed=options["seed"]),
            options={**options, "pattern": row.pattern},
            counters={
                "prompt_tokens": row.tokens,
                "intended_tokens": row.intended,
                "hit_tokens": row.hit,
            },
            metrics=[
                _metric("TTFT, hit intended", "s", Direction.LOWER, warm, row.warm),
                _metric("TTFT, no hit", "s", Direction.LOWER, typical(row.cold), row.cold),
                _metric(
                    "in the manager before the first token",
                    "s",
                    Direction.LOWER,
                    typical(row.managing),
                    row.managing,
                ),
                _metric(f"TTFT ratio to {BASELINE}", "1", Direction.HIGHER, measured),
                _metric("TTFT ratio promised by hits", "1", Direction.NEITHER, promised),
                Metric(
                    name="throughput",
                    unit="tokens/s",
                    direction=Direction.HIGHER,
                    value=_median(row.throughput),
                    samples=row.throughput,
                ),
                Metric(
                    name="KV waste",
                    unit="1",
                    direction=Direction.LOWER,
                    value=_median(row.waste),
                    samples=row.waste,
                ),
            ],
        )


def _metric(
    name: str,
    unit: str,
    direction: Direction,
    value: float | None,
    samples: Mapping[str, Sequence[float]] | None = None,
) -> Metric:
    kept = [sample for each in (samples or {}).values() for sample in each]
    return Metric(name=name, unit=unit, direction=direction, value=value, samples=kept)


TEXT = """# Time to the first token, and what hits promise of it

Written by `python -m kvassay.suites.benchmarks.rig --page results/ttft.md{asked}`: {environment}.
One thread, {clock} time, rounds: {rounds}; memory stays in the process (see `rig_memory`).

The rig is continuous batching over a Llama of random weights (two layers, hidden size 256, four
heads of 64, two KV heads, float32), kernel `{kernel}`, blocks of {block_size}, at most
{step_tokens} tokens a step. Every prompt begins with the same {shared:,} tokens; in few-shot these
are 95 % of it. Requests come one at a time and go through all managers before the next one does, in
turning order; so nobody queues, and drift hits all alike. Times are means over requests of the
least of all rounds, as are the steps below: on a shared machine disturbances only add. *Hit
intended*: the workload says that earlier requests have computed some of the prompt.

| {head} |
|{rule}|
{body}

*Promised by hits*: seconds of a step = {per_step} + {per_token} per token computed + {per_pair} per
pair of a query and a key it sees + {per_key} per key gathered. The coefficients are fitted to the
{steps:,} steps of `{baseline}`, which never hits (relative error of a step {error:.0f} %). A prompt
costs the steps that its tokens behind the hit need, the hit being what the workload declares; the
ratio promised is that of the sums without hits and with them. Nothing measured on the manager with
hits is part of it. Pairs make it less than the ratio of the tokens: a token behind 4,096 others is
dearer than the average one in front of it.

Throughput and waste: the same requests once again, in a closed loop of {clients} clients, {output}
output tokens each (a thought: {thought}). *KV waste*: slots that live requests hold and no token
has, computed or about to be, over all steps; of the run that `contiguous` reserves, {max_tokens:,}
slots for everybody, whatever is not filled.
"""


def page(run: Run, options: Mapping[str, str], asked: str) -> str:
    """All of `ttft.md`; `ValueError` where too little was measured."""
    if run.cost is None:
        raise ValueError("too few steps were measured for a page")
    head, body = lines(run)
    here = capture(seed=options["seed"])
    per_step, per_token, per_pair, per_key = run.cost.coefficients
    return TEXT.format(
        asked=asked,
        environment=f"{here.processor}, torch {here.packages.get('torch')}, "
        f"transformers {here.packages.get('transformers')}",
        clock="processor" if options["clock"] == "cpu" else "elapsed",
        rounds=options["rounds"],
        kernel=options["kernel"],
        block_size=run.bench.block_size,
        step_tokens=run.bench.limits.step_tokens,
        shared=int(options["shared"]),
        head=" | ".join(head),
        rule="|".join(["---", "---", *["---:"] * (len(head) - 2)]),
        body="\n".join(f"| {' | '.join(line)} |" for line in body),
        per_step=f"{per_step * 1e3:.2f} ms",
        per_token=f"{per_token * 1e6:.1f} us",
        per_pair=f"{per_pair * 1e9:.1f} ns",
        per_key=f"{per_key * 1e6:.2f} us",
        steps=run.cost.steps,
        error=100 * run.cost.error,
        baseline=BASELINE,
        clients=run.clients,
        output=OUTPUT,
        thought=THOUGHT,
        max_tokens=run.bench.max_tokens,
    )


# ------------------------------------------------------------------------------------ command line


def _only(reference: str, kind: type) -> Registration:
    (entry,) = (found for found in find(reference) if found.kind is kind)
    return entry


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kvassay bench rig", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    managers = ", ".join(MANAGERS)
    parser.add_argument("--impl", action="append", help=f"a manager; may be repeated ({managers})")
    parser.add_argument("--kernel", default="torch", help="a kernel (torch)")
    parser.add_argument("--pattern", action="append", help="only this one; may be repeated")
    parser.add_argument("--shared", type=int, default=4096, help="tokens of the prefix (4096)")
    parser.add_argument("--rounds", type=int, default=3, help="times that all is played (3)")
    parser.add_argument("--clients", type=int, default=4, help="in the closed loop; 0: none (4)")
    parser.add_argument("--step-tokens", type=int, default=128, help="at most, a step (128)")
    parser.add_argument("--block-size", type=int, default=16, help="tokens (16)")
    parser.add_argument("--num-blocks", type=int, default=1280, help="of the pool (1280)")
    parser.add_argument("--max-tokens", type=int, default=8192, help="of a request (8192)")
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall", help="(wall)")
    parser.add_argument("--seed", type=int, default=0, help="of prompts and weights (0)")
    parser.add_argument("--record", type=Path, help="folder for a record of each row")
    parser.add_argument("--page", type=Path, help="where to write it as a page")
    return parser


def _asked(options: argparse.Namespace) -> str:
    """What was asked for beside the page, and is no default."""
    usual = vars(_parser().parse_args([]))
    given = {name: value for name, value in vars(options).items() if value != usual[name]}
    shown = []
    for name in sorted(given.keys() - {"page", "record"}):
        values = given[name] if isinstance(given[name], list) else [given[name]]
        shown += [f" --{name.replace('_', '-')} {shlex.quote(str(value))}" for value in values]
    return "".join(shown)


def _bench(options: argparse.Namespace) -> Bench:
    import torch

    torch.set_num_threads(1)
    keep_memory()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries that are imported
        model = random_llama(options.seed, **SHAPE)
    return Bench(
        model,
        _only(options.kernel, PagedAttention),
        options.num_blocks,
        options.block_size,
        Limits(step_tokens=options.step_tokens),
        options.max_tokens,
        CLOCKS[options.clock],
    )


def measure(options: argparse.Namespace, run: Run) -> int:
    """All rounds; the exit status."""
    found = patterns(options.seed, options.shared, SHAPE["vocab_size"])
    chosen = [found[name] for name in options.pattern or found]
    requests = sum(len(workload.requests) for workload in chosen)
    loops = len(run.managers) * len(chosen) * bool(options.clients)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("requests", total=requests * options.rounds + loops)
        try:
            warm_up(run.bench, run.managers, chosen[0])
            for _ in range(options.rounds):
                for workload in chosen:
                    run.play(workload, lambda: progress.advance(task))
        except KeyboardInterrupt:
            return INTERRUPTED
    return 0


def main(arguments: list[str] | None = None) -> int:
    """From the command line; the exit status."""
    options = _parser().parse_args(arguments)
    if find_spec("transformers") is None:
        print("transformers is not here: pip install 'kvassay[rig]'", file=sys.stderr)
        return USAGE_ERROR
    managers = [_only(name, CacheManager) for name in options.impl or MANAGERS]
    run = Run(_bench(options), managers, options.clients)
    status = measure(options, run)
    run.promise()
    console, shown = Console(), table(run)
    console.width = max(console.width, Console(width=WIDEST).measure(shown).maximum)
    console.print(shown)
    told = {name: str(value) for name, value in vars(options).items() if name not in UNTOLD}
    for record in records(run, told) if options.record is not None else ():
        write(record, options.record)
    if options.page is not None and not status:
        options.page.write_text(page(run, told, _asked(options)), encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
