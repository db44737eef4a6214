"""The control plane: what cache managers cost their scheduler, side by side.

    python -m kvassay.suites.benchmarks.control --impl radix --impl vllm

Contenders are timed in turns, on the same token lists, input validation on. An engine is driven by
its own calls, batched where it has batched calls (`harness.control.stages` says what a stage
covers). ``steps``: scheduler steps of several sizes; ``pool``, ``depth``, ``prompt`` and ``share``:
how a request's life grows with the pool, the depth of its path, the length of its prompt and the
part of it that is resident; ``match``: a bare look-up in trees by themselves. ``--record DIR``
keeps every sample; Ctrl-C keeps what was measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kvassay.harness.contract import CacheManager, PrefixIndex
from kvassay.harness.control.contract_stages import contender
from kvassay.harness.control.growth import depth_growth, pool_growth
from kvassay.harness.control.matching import match_times
from kvassay.harness.control.pairing import ratio
from kvassay.harness.control.stages import SCHEDULER, STAGES, Contender
from kvassay.harness.control.steps import Interrupted, Step, Timed, measure
from kvassay.harness.environment import capture
from kvassay.harness.record import Direction, Metric, Record, write
from kvassay.harness.recording import subject_of
from kvassay.harness.registry import Registration, Unavailable, UnknownImplementation, find
from kvassay.suites.benchmarks.arguments import positive

SUITE = "control"
USAGE_ERROR = 2
INTERRUPTED = 130
EXPERIMENTS = ("steps", "pool", "depth", "prompt", "share", "match")
REQUESTS = (1, 64, 256, 1024)
POOLS = (1_000, 10_000, 100_000, 1_000_000)
DEPTHS = (1, 8, 64)
PROMPTS = (100, 1_000, 10_000, 100_000)
SHARES = (0, 25, 50, 75, 100)
"""Percent of a 1,024-token prompt; behind it stand 16 tokens that are nobody else's."""
LIFE = "life"
"""Everything from the key to the release, decode steps left out."""


@dataclass
class Series:
    """One quantity of one contender: seconds, round by round."""

    experiment: str
    at: str
    """Where on the axis of the experiment, in words."""
    stage: str
    name: str
    seconds: list[float]

    @property
    def metric(self) -> str:
        """Its name in a record."""
        return f"{self.experiment}, {self.at}: {self.stage}"


@dataclass
class Run:
    """What is measured, and what was."""

    contenders: Sequence[Contender]
    """Cache managers."""
    indexes: Sequence[Registration]
    """Trees by themselves."""
    block_size: int
    rounds: int
    watch: Callable[[str], None]
    largest_pool: int = POOLS[-1]
    series: list[Series] = field(default_factory=list)

    def steps(self) -> None:
        """Scheduler steps, with free blocks and with a pool in which reserving evicts."""
        for requests in REQUESTS:
            for full in (False, True):
                step = Step(requests, block_size=self.block_size, full=full)
                at = f"{requests} requests{', pool full' if full else ''}"
                self._step("steps", at, step)

    def pool(self) -> None:
        """Pools of growing size."""
        for blocks in self._pools():
            at = f"{blocks} blocks"
            hot, random = pool_growth(
                self.contenders,
                blocks,
                self.rounds,
                block_size=self.block_size,
                watch=lambda at=at: self.watch(f"pool, {at}"),
            )
            for picked, samples in (("hot", hot), ("random", random)):
                for name, seconds in samples.items():
                    self.series.append(Series("pool", f"{at}, {picked}", LIFE, name, seconds))

    def _pools(self) -> list[int]:
        return [blocks for blocks in POOLS if blocks <= self.largest_pool]

    def depth(self) -> None:
        """Paths of growing depth."""
        for depth in DEPTHS:
            at = f"{depth} nodes"
            samples = depth_growth(
                self.contenders,
                depth,
                self.rounds,
                block_size=self.block_size,
                watch=lambda at=at: self.watch(f"depth, {at}"),
            )
            for name, seconds in samples.items():
                self.series.append(Series("depth", at, LIFE, name, seconds))

    def prompt(self) -> None:
        """Prompts of growing length, all of them resident but for 16 tokens."""
        for length in PROMPTS:
            step = Step(1, length + 16, length, self.block_size)
            self._step("prompt", f"{length} tokens", step, few=length >= 10_000)

    def share(self) -> None:
        """A growing part of the prompt resident."""
        for percent in SHARES:
            step = Step(1, 1040, 1024 * percent // 100, self.block_size)
            self._step("share", f"{percent} %", step)

    def match(self) -> None:
        """A bare look-up of growing length."""
        for length in PROMPTS:
            at = f"{length} tokens"
            samples = match_times(
                self.indexes,
                length,
                self.rounds,
                page_size=self.block_size,
                watch=lambda at=at: self.watch(f"match, {at}"),
            )
            for name, seconds in samples.items():
                self.series.append(Series("match", at, "match", name, seconds))

    def _step(self, experiment: str, at: str, step: Step, *, few: bool = False) -> None:
        rounds = min(self.rounds, 3) if few else self.rounds
        try:
            timed = measure(
                step, self.contenders, rounds, watch=lambda: self.watch(f"{experiment}, {at}")
            )
        except Interrupted as stopped:
            self._keep(experiment, at, stopped.timed)
            raise
        self._keep(experiment, at, timed)

    def _keep(self, experiment: str, at: str, timed: Mapping[str, Timed]) -> None:
        for name, each in timed.items():
            totals = {
                LIFE: each.total([stage for stage in STAGES if stage != "append"]),
                "scheduler": each.total([stage for stage in SCHEDULER if stage != "append"]),
            }
            for stage, seconds in {**each.seconds, **totals}.items():
                self.series.append(Series(experiment, at, stage, name, seconds))

    def rounds_of(self, experiment: str) -> int:
        """How often `watch` will be called, warm-up included."""
        points = {
            "steps": 2 * len(REQUESTS) * (self.rounds + 1),
            "pool": len(self._pools()) * (self.rounds + 1),
            "depth": len(DEPTHS) * (self.rounds + 1),
            "prompt": 2 * (self.rounds + 1) + 2 * (min(self.rounds, 3) + 1),
            "share": len(SHARES) * (self.rounds + 1),
            "match": len(PROMPTS) * (self.rounds + 1),
        }
        return points[experiment]

    def possible(self, experiment: str) -> bool:
        """Whether there is anybody to be timed."""
        return bool(self.indexes if experiment == "match" else self.contenders)


# ----------------------------------------------------------------------------------------- showing


def tables(series: Sequence[Series]) -> Iterator[Table]:
    """One table per experiment: microseconds, and how many times longer the others take."""
    for experiment in EXPERIMENTS:
        found = [each for each in series if each.experiment == experiment]
        if found:
            yield _table(experiment, found, list(dict.fromkeys(each.name for each in found)))


def _table(experiment: str, series: Sequence[Series], names: Sequence[str]) -> Table:
    table = Table(title=f"{experiment}: us, median", show_edge=False, pad_edge=False)
    table.add_column("at")
    table.add_column("stage")
    first = names[0]
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for name in names[1:]:
        table.add_column(f"{name} / {first}", justify="right", no_wrap=True)
    rows: dict[tuple[str, str], dict[str, list[float]]] = {}
    for each in series:
        rows.setdefault((each.at, each.stage), {})[each.name] = each.seconds
    for (at, stage), by_name in rows.items():
        times = [f"{1e6 * median(by_name[name]):,.1f}" for name in names]
        ratios = [str(ratio(by_name[name], by_name[first])) for name in names[1:]]
        table.add_row(at, stage, *times, *ratios)
    return table


def records_of(run: Run, found: Sequence[Registration], *, complete: bool) -> Iterator[Record]:
    """A record for each contender, with every sample; the first one's name is in the options."""
    for entry in found:
        beside = [each.name for each in found if each.kind is entry.kind]
        options = {
            "block_size": str(run.block_size),
            "rounds": str(run.rounds),
            "beside": ",".join(beside),
            "complete": "yes" if complete else "no",
        }
        yield Record(
            suite=SUITE,
            subject=subject_of(entry),
            environment=capture(seed="0"),
            options=options,
            metrics=[
                Metric(
                    name=each.metric,
                    unit="s",
                    direction=Direction.LOWER,
                    value=median(each.seconds),
                    samples=each.seconds,
                )
                for each in run.series
                if each.name == entry.name
            ],
        )


# ------------------------------------------------------------------------------------ command line


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kvassay bench control", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument(
        "--impl", action="append", help="a manager or a tree; repeat; the first is compared (radix)"
    )
    parser.add_argument("--only", action="append", choices=EXPERIMENTS, help="may be repeated")
    parser.add_argument("--block-size", type=positive, default=16)
    parser.add_argument("--rounds", type=positive, default=9, help="samples of each (9)")
    parser.add_argument(
        "--largest-pool", type=positive, default=POOLS[-1], help="blocks; filling one takes long"
    )
    parser.add_argument("--record", type=Path, help="folder for a record of each contender")
    return parser


def _found(references: Sequence[str]) -> list[Registration]:
    found: dict[str, Registration] = {}
    for reference in references:
        known = [entry for entry in find(reference) if entry.kind in (CacheManager, PrefixIndex)]
        if not known:
            raise UnknownImplementation(f"{reference}: expected a CacheManager or a PrefixIndex")
        found.update((entry.name, entry) for entry in known)
    return list(found.values())


def main(arguments: list[str] | None = None) -> int:
    """From the command line; the exit status."""
    options = _parser().parse_args(arguments)
    console, status = Console(), 0
    try:
        found = _found(options.impl or ["radix", "radix-index"])
        contenders = [contender(entry) for entry in found if entry.kind is CacheManager]
    except (UnknownImplementation, Unavailable, ValueError) as error:
        print(error, file=sys.stderr)
        return USAGE_ERROR
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("control plane")
        run = Run(
            contenders,
            [entry for entry in found if entry.kind is PrefixIndex],
            options.block_size,
            options.rounds,
            lambda at: progress.update(bar, advance=1, description=at),
            options.largest_pool,
        )
        asked = [name for name in EXPERIMENTS if name in (options.only or EXPERIMENTS)]
        wanted = [name for name in asked if run.possible(name)]
        progress.update(bar, total=sum(map(run.rounds_of, wanted)))
        try:
            for name in wanted:
                getattr(run, name)()
        except KeyboardInterrupt:
            status = INTERRUPTED
        except (Unavailable, ValueError) as error:
            print(error, file=sys.stderr)
            return USAGE_ERROR
    for table in tables(run.series):
        console.width = max(console.width, Console(width=1000).measure(table).maximum)
        console.print(table)
        console.print()
    if options.record is not None and run.series:
        for record in records_of(run, found, complete=status == 0):
            print(write(record, options.record))
    return status


if __name__ == "__main__":
    sys.exit(main())
