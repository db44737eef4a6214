"""The device inside a real engine: thousands of requests under pressure, and planted faults.

    kvassay bench inside --record results/inside

vLLM runs in this process on tiny models with random weights, its pool so small that requests are
preempted and cached blocks recycled all the time; its attention backend tells a `harness.inside`
watch what it writes and reads. Each of the engines has to answer `--requests` requests without a
conviction, and everything that a verdict needs has to happen meanwhile. Overhead is processor time
on the watched engine over that on the stock one with nobody keeping account, both on the same
shorter load, in turns (`--rounds`). Then each fault of `impls.faulty.vllm_inside` has to be
convicted as what it says, on a load on which the same engine without it is not.

``--engine sglang`` is SGLang, in an environment of its own (`tox run -e sglang-inside`): only under
its load, since SGLang is built but once in a process.

Exit status: 0, 1 if anything of that was otherwise, 2 for a wrong call, 130 if it was interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn

from kvassay.harness.environment import Environment, capture
from kvassay.harness.inside.playing import Stuck
from kvassay.harness.inside.scene import Played, Scene
from kvassay.harness.record import Direction, Metric, Record, write
from kvassay.harness.recording import subject_of
from kvassay.harness.registry import Registration, Unavailable, UnknownImplementation, find
from kvassay.impls.engines import sglang_inside
from kvassay.impls.engines.vllm_inside import (
    ENGINES,
    WINDOWED_BLOCKS,
    WatchedVllm,
    scene_of,
)
from kvassay.impls.faulty.vllm_inside import FAULTS, InsideVllm
from kvassay.suites.benchmarks.arguments import positive
from kvassay.suites.benchmarks.inside_page import (
    CONVICTED,
    OF_FAULTS,
    OF_SGLANG,
    OVERHEAD,
    PLAYING,
    SUITE,
    page,
    tables,
)

FAILED, USAGE_ERROR, INTERRUPTED = 1, 2, 130
SGLANG = "sglang"
MODULES = ("kvassay.impls.engines.vllm_engine", "kvassay.impls.engines.sglang")
SUBJECTS = ("vllm-engine", "sglang-unified-rust")
"""What records name: vLLM as a whole, and of SGLang the cache that its scheduler has by default."""
SHORT = 300
"""Requests of the loads on which overhead is measured and faults are planted."""


@dataclass
class Kept:
    """What there is so far: a record for each engine and fault, and what went wrong."""

    entry: Registration
    environment: Environment
    options: dict[str, str]
    records: list[Record] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def keep(self, suite: str, subject: dict[str, str], more: dict[str, Any]) -> None:
        """One row."""
        row = {"row": str(len(self.records))}
        self.records.append(
            Record(
                suite=suite,
                subject=subject_of(self.entry),
                environment=self.environment,
                options=self.options | subject | row,
                **more,
            )
        )


def watched(name: str, requests: int, rounds: int, kept: Kept, tell: Callable[[int], None]) -> None:
    """One engine under its load, and what watching costs."""
    if name == SGLANG:
        played, rounds = sglang_inside.scene(requests).play(tell=tell), 0
    else:
        played = scene_of(partial(WatchedVllm, **ENGINES[name]), requests).play(tell=tell)
    watch = played.watch
    kept.problems += [f"{name}: {one}" for one in watch.convictions.values()]
    kept.problems += [f"{name}: never met: {one}" for one in watch.never_met]
    ratios = [_ratio(name, number) for number in range(rounds)]
    counters = {str(one): count for one, count in watch.met.items() if count}
    counters |= {"requests": requests, CONVICTED: len(watch.convictions)}
    counters["requests judged"] = len(watch.verdicts())
    value = median(ratios) if ratios else None
    metrics = [
        Metric(name=PLAYING, unit="s", direction=Direction.LOWER, value=played.seconds),
        Metric(name=OVERHEAD, unit="1", direction=Direction.LOWER, value=value, samples=ratios),
    ]
    suite = OF_SGLANG if name == SGLANG else SUITE
    kept.keep(suite, {"engine": name}, {"counters": counters, "metrics": metrics})


def _ratio(name: str, number: int) -> float:
    """Watched over stock, each going first by turns."""
    times = {}
    for on in (True, False) if number % 2 else (False, True):
        scene = scene_of(partial(WatchedVllm, watched=on, **ENGINES[name]), SHORT)
        times[on] = scene.play().cpu_seconds if on else scene.play_unwatched()
    return times[True] / times[False]


def planted(name: str, one: InsideVllm, kept: Kept, stock: dict[str, Played]) -> None:
    """One fault, and the same engine without it, which is played once for each model."""
    if one.model not in stock:
        stock[one.model] = one.host.play()
    innocent = not stock[one.model].watch.convictions
    invariants, told, passes = _convicted(one.scene)
    if not innocent or not invariants or not set(invariants) <= one.fault.accepted:
        host = "" if innocent else ", and so is the stock engine"
        kept.problems.append(f"{name}: convicted as {invariants}{host}")
    finding = {
        "fault": name,
        "model": one.model,
        "hides": one.fault.description,
        "accepted": sorted(one.fault.accepted),
        "invariants": invariants,
        "told": told,
        "stock": "not convicted" if innocent else "convicted",
    }
    counters = {"passes": passes}
    kept.keep(OF_FAULTS, {"fault": name}, {"counters": counters, "findings": [finding]})


def _convicted(scene: Scene) -> tuple[list[str], str, int]:
    """Invariants, the first conviction in words, and forward passes until then."""
    try:
        watch = scene.play(to_the_first=True).watch
    except Stuck as stuck:
        return ["S2"], str(stuck), 0
    convictions = list(watch.convictions.values())
    told = str(convictions[0]) if convictions else ""
    return sorted({one.invariant for one in convictions}), told, watch.step


# ------------------------------------------------------------------------------------ command line


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kvassay bench inside", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    names = (*ENGINES, SGLANG)
    parser.add_argument("--engine", action="append", choices=names, help="only this; repeat")
    parser.add_argument("--requests", type=positive, default=5000, help="of each engine (5000)")
    parser.add_argument("--rounds", type=int, default=3, help="of measuring overhead (3)")
    parser.add_argument("--no-faults", action="store_true", help="plant none")
    parser.add_argument("--record", type=Path, help="folder for a record of each row")
    parser.add_argument("--page", type=Path, help="file for the records as a page; not if partial")
    return parser


def _run(options: argparse.Namespace, kept: Kept) -> int:
    names = options.engine or list(ENGINES)
    faults = {} if options.no_faults or options.engine == [SGLANG] else FAULTS
    columns = (*Progress.get_default_columns(), TimeElapsedColumn())
    # A thread that draws would take its time from what is measured.
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as progress:
        bar = progress.add_task("building", total=len(names) * options.requests + len(faults))
        done = 0
        stock: dict[str, Played] = {}
        try:
            for name in names:
                tell = partial(_tell, progress, bar, name, done)
                watched(name, options.requests, options.rounds, kept, tell)
                done += options.requests
            for name, one in faults.items():
                progress.update(bar, description=name, completed=done, refresh=True)
                planted(name, one, kept, stock)
                done += 1
            progress.update(bar, description="done", completed=done, refresh=True)
        except KeyboardInterrupt:
            return INTERRUPTED
        except Stuck as stuck:
            kept.problems.append(str(stuck))
    return FAILED if kept.problems else 0


def _tell(progress: Progress, bar: Any, name: str, before: int, left: int) -> None:
    if left % 25 == 0:
        progress.update(bar, description=name, completed=before + left, refresh=True)


def main(arguments: list[str] | None = None) -> int:
    """From the command line; the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.engine and SGLANG in options.engine and len(options.engine) > 1:
        parser.error(f"{SGLANG} is in an environment of its own: expected no other --engine")
    alone = options.engine == [SGLANG]
    try:
        (entry,) = (one for one in find(MODULES[alone]) if one.name == SUBJECTS[alone])
        if entry.version == "unknown":
            raise Unavailable(f"{entry.name} is not installed here: {entry.install}")
    except (UnknownImplementation, Unavailable, ValueError) as error:
        print(error, file=sys.stderr)
        return USAGE_ERROR
    asked = {"requests": str(options.requests), "rounds": str(options.rounds)}
    asked |= {"short": str(SHORT), "windowed blocks": str(WINDOWED_BLOCKS - 1)}
    kept = Kept(entry, capture(seed="0"), asked)
    status = _run(options, kept)
    whole = status == 0 and (alone or not (options.engine or options.no_faults))
    for record in kept.records:
        record.options["complete"] = "yes" if whole else "no"
    _show(kept.records, kept.problems)
    for record in kept.records if options.record is not None else ():
        write(record, options.record)
    if options.page is not None and whole and not alone:
        options.page.write_text(page(kept.records), encoding="utf-8")
    return status


def _show(records: Sequence[Record], problems: Sequence[str]) -> None:
    console = Console()
    for shown in tables(records):
        console.width = max(console.width, Console(width=1000).measure(shown).maximum)
        console.print(shown)
    for problem in problems:
        console.print(problem, markup=False)


if __name__ == "__main__":
    sys.exit(main())
