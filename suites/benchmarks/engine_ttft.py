"""Time to the first token of a whole engine, by how its prompts share: prefix caching on and off.

    python -m kvassay.suites.benchmarks.engine_ttft --engine vllm-engine

The four ways to share and prompts that share nothing, one request after another, so that nobody
queues; each request goes to both engines, with and without prefix caching, in turns. Hits are what
the engine tells, beside what the workload intends in whole blocks. The *tax* is what caching costs
where it cannot help: the ratio of both times of a request, over the unrelated prompts.

Two equal engines in one process differ for as long as they live: by up to 20 % where the C library
hands freed memory back to the system, by a few percent where it keeps it, which it is told here
(`rig_memory`). So a round builds a pair of its own, in turned order; a round's ratio is the median
of its requests', and the interval is one over rounds. *A/A* are rounds of two engines without
caching: what ratio there is where there is nothing to find. Over HTTP (``--http ROUNDS``) the same
engine is asked through its own server, for which its factory has ``serving``. Ctrl-C keeps what was
measured, as does a request that fails. What is shown is made of the records (`engine_page`).

Exit status: 0, 1 if a request or a server failed, 2 for a wrong call, 130 if it was interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn

from kvassay.harness.contract import Engine
from kvassay.harness.environment import Environment, capture
from kvassay.harness.load.generator import wanted
from kvassay.harness.load.watching import INTERRUPTED as GAVE_UP
from kvassay.harness.load.watching import Watcher
from kvassay.harness.metrics.latency import TimeToFirstToken
from kvassay.harness.metrics.reading import cached_tokens
from kvassay.harness.metrics.run import Run
from kvassay.harness.metrics.timeline import Ending, Timeline
from kvassay.harness.record import Direction, Metric, Record, write
from kvassay.harness.recording import subject_of
from kvassay.harness.registry import Registration, Unavailable, UnknownImplementation, find
from kvassay.harness.serving.http import HTTP
from kvassay.harness.serving.openai import OpenAIEngine
from kvassay.harness.workloads.branching import tree_of_thought
from kvassay.harness.workloads.plan import Workload
from kvassay.harness.workloads.sessions import multi_turn
from kvassay.harness.workloads.sharing import few_shot, self_consistency, unrelated
from kvassay.suites.benchmarks.arguments import positive, served_by
from kvassay.suites.benchmarks.engine_answers import Answering
from kvassay.suites.benchmarks.engine_page import (
    FOUND,
    INTENDED,
    LOAD,
    OFF,
    ON,
    SUITE,
    UNRELATED,
    page,
    row_of,
    table,
    taxes,
)
from kvassay.suites.benchmarks.engine_page import loads as told_loads
from kvassay.suites.benchmarks.rig_memory import children_keep_memory, keep_memory

FAILED, USAGE_ERROR, INTERRUPTED = 1, 2, 130
VOCABULARY = 1024
BLOCK_SIZE = 32
TTFT = TimeToFirstToken()
WARM_UP = 10**6
"""A seed that no round has."""
IN_PROCESS, A_A, OVER_HTTP = "in process", "in process, A/A", "HTTP"

Workloads = Callable[[int], Workload]


def _few_shot(seed: int) -> Workload:
    sizes = {"example_tokens": 512, "question_tokens": 64, "output_tokens": 8}
    return few_shot(seed, questions=16, vocabulary=VOCABULARY, **sizes)


def _multi_turn(seed: int) -> Workload:
    sizes = {"system_tokens": 256, "user_tokens": 64, "output_tokens": 32}
    return multi_turn(seed, chats=4, turns=4, mean_think_time=0, vocabulary=VOCABULARY, **sizes)


def _self_consistency(seed: int) -> Workload:
    sizes = {"example_tokens": 384, "question_tokens": 96, "output_tokens": 8}
    return self_consistency(seed, questions=4, samples=4, vocabulary=VOCABULARY, **sizes)


def _tree_of_thought(seed: int) -> Workload:
    sizes = {"instruction_tokens": 384, "problem_tokens": 128, "thought_tokens": 16}
    return tree_of_thought(seed, problems=2, depth=2, branches=3, vocabulary=VOCABULARY, **sizes)


def _unrelated(seed: int) -> Workload:
    return unrelated(seed, prompts=24, prompt_tokens=576, output_tokens=8, vocabulary=VOCABULARY)


SHARING: dict[str, Workloads] = {
    "few-shot": _few_shot,
    "multi-turn chat": _multi_turn,
    "self-consistency": _self_consistency,
    "tree of thought": _tree_of_thought,
    UNRELATED: _unrelated,
}


@dataclass(frozen=True)
class Pair:
    """One workload on two engines, in one round."""

    first: tuple[Timeline, ...]
    """With caching, unless it is A/A."""
    second: tuple[Timeline, ...]
    load: float = 0.0
    """Load average of the machine just before."""


@dataclass(frozen=True)
class Played:
    """One workload, all rounds."""

    way: str
    """How the engine was asked: ``in process`` or ``HTTP``."""
    workload: str
    rounds: tuple[Pair, ...]

    @property
    def caching(self) -> tuple[Timeline, ...]:
        """Of all rounds."""
        return tuple(one for pair in self.rounds for one in pair.first)

    @property
    def plain(self) -> tuple[Timeline, ...]:
        """Of all rounds."""
        return tuple(one for pair in self.rounds for one in pair.second)

    @property
    def intended(self) -> float:
        """Share of the prompts' tokens that is to be found."""
        return _share(self.caching, [one.declared_cached or 0 for one in self.caching])

    @property
    def found(self) -> float | None:
        """Share that was; None if the engine does not tell of some request."""
        told = [cached_tokens(one) for one in self.caching]
        known = [count for count in told if count is not None]
        return _share(self.caching, known) if len(known) == len(told) else None


def _share(timelines: Sequence[Timeline], tokens: Sequence[int]) -> float:
    return sum(tokens) / sum(one.prompt_tokens for one in timelines)


def _nothing(doing: str) -> None:
    """Nobody looks."""


@dataclass
class Kept:
    """The pairs that there are so far, by way and workload."""

    tell: Callable[[str], None] = _nothing
    """Told of each workload, right before it is played; nothing is shown while it is."""
    pairs: dict[tuple[str, str], list[Pair]] = field(default_factory=dict)

    def played(self) -> Iterator[Played]:
        """In the order in which they were first played."""
        for (way, workload), rounds in self.pairs.items():
            yield Played(way, workload, tuple(rounds))


# ----------------------------------------------------------------------------------------- playing


async def play(name: str, workload: Workload, engines: tuple[Engine, Engine]) -> Pair:
    """Each request to both, one after the other, the first one by turns.

    `RuntimeError` for a request that is not complete, or has no token.
    """
    load = os.getloadavg()[0]
    clock = asyncio.get_running_loop().time
    watchers = [Watcher(Answering(engine, workload), clock) for engine in engines]
    seen: tuple[list[Timeline], list[Timeline]] = ([], [])
    for number, one in enumerate(workload.requests):
        for place in (0, 1) if number % 2 else (1, 0):
            hit = one.hit(BLOCK_SIZE) if place == 0 else 0
            timeline = await watchers[place].watch(wanted(one, clock(), hit))
            if timeline.error == GAVE_UP:  # the watcher does not pass that on
                raise asyncio.CancelledError
            if timeline.ending is not Ending.COMPLETE or TTFT.of(timeline) is None:
                problem = timeline.error or "no token"
                raise RuntimeError(f"{name}: {one.name}: {timeline.ending}: {problem}")
            seen[place].append(timeline)
    return Pair(tuple(seen[0]), tuple(seen[1]), load)


async def play_all(
    way: str, names: Sequence[str], engines: tuple[Engine, Engine], round: int, kept: Kept
) -> None:
    """The workloads, with tokens of this round; what comes first only warms up."""
    await play("warm-up", _unrelated(WARM_UP), engines)
    for name in names:
        kept.tell(f"{way}, round {round + 1}: {name}")
        workload = SHARING[name](len(SHARING) * round + tuple(SHARING).index(name))
        pair = await play(name, workload, engines)
        kept.pairs.setdefault((way, name), []).append(pair)


def in_process(
    entry: Registration, names: Sequence[str], rounds: int, threads: int, kept: Kept, way: str
) -> None:
    """A pair of engines for each round in this process; neither has caching if it is A/A."""
    for round in range(rounds):
        built: dict[int, Any] = {}
        try:
            for place in (0, 1) if round % 2 else (1, 0):
                on = way != A_A and place == 0
                options = {"prefix_caching": on, "block_size": BLOCK_SIZE, "threads": threads}
                built[place] = entry.build(**options)
            asyncio.run(play_all(way, names, (built[0], built[1]), round, kept))
        finally:
            for engine in built.values():
                engine.close()


def over_http(serving: Any, names: Sequence[str], rounds: int, threads: int, kept: Kept) -> None:
    """Two servers for each round, each in processes of its own."""
    for round in range(rounds):
        with ExitStack() as servers:
            options = {"block_size": BLOCK_SIZE, "threads": threads}
            served = {
                place: servers.enter_context(serving(prefix_caching=place == 0, **options))
                for place in ((0, 1) if round % 2 else (1, 0))
            }
            asyncio.run(_ask([served[0], served[1]], names, round, kept))


async def _ask(served: Sequence[Any], names: Sequence[str], round: int, kept: Kept) -> None:
    async with AsyncExitStack() as clients:
        transports = [await clients.enter_async_context(HTTP(one.url)) for one in served]
        first, second = (
            OpenAIEngine(transport, one.model)
            for transport, one in zip(transports, served, strict=True)
        )
        await play_all(OVER_HTTP, names, (first, second), round, kept)


# ----------------------------------------------------------------------------------------- records


def record_of(
    entry: Registration, one: Played, environment: Environment, options: dict[str, str]
) -> Record:
    """One row's record; what is shown is made of it."""
    times = {ON: one.caching, OFF: one.plain}
    measured = {name: TTFT.measure(Run(timelines)) for name, timelines in times.items()}
    shares = {FOUND: one.found, INTENDED: one.intended}
    loads = [pair.load for pair in one.rounds]
    return Record(
        suite=SUITE,
        subject=subject_of(entry),
        environment=environment,
        options=options | {"way": one.way, "workload": one.workload},
        counters={"requests": len(one.caching), "rounds": len(one.rounds)},
        metrics=[
            *(
                _metric(name, found.unit, found.direction, found.value, found.samples)
                for name, found in measured.items()
            ),
            *(_metric(name, "1", Direction.NEITHER, value) for name, value in shares.items()),
            _metric(LOAD, "1", Direction.NEITHER, median(loads), loads),
        ],
    )


def _metric(
    name: str, unit: str, direction: Direction, value: float | None, samples: Sequence[float] = ()
) -> Metric:
    return Metric(name=name, unit=unit, direction=direction, value=value, samples=list(samples))


# ------------------------------------------------------------------------------------ command line


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kvassay bench engine", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--engine", default="vllm-engine", help="(vllm-engine)")
    parser.add_argument("--workload", action="append", choices=SHARING, help="only this; repeat")
    parser.add_argument("--rounds", type=positive, default=8, help="in process (8)")
    parser.add_argument("--http", type=int, default=0, metavar="ROUNDS", help="over HTTP (0)")
    parser.add_argument("--threads", type=positive, default=1, help="of a step (1)")
    parser.add_argument("--record", type=Path, help="folder for a record of each row")
    parser.add_argument("--page", type=Path, help="file for the records as a page; not if partial")
    return parser


@dataclass
class Bench:
    """What is measured, and what there is of it so far."""

    entry: Registration
    names: tuple[str, ...]
    rounds: int
    http: int
    threads: int
    serving: Any = None
    """What starts a server, if it is asked over HTTP."""
    kept: Kept = field(default_factory=Kept)

    @property
    def parts(self) -> int:
        """Workloads to play, over all rounds and ways."""
        same = UNRELATED in self.names
        return self.rounds * (len(self.names) + same) + self.http * len(self.names)

    def run(self) -> None:
        """All of it."""
        keep_memory()
        in_process(self.entry, self.names, self.rounds, self.threads, self.kept, IN_PROCESS)
        if UNRELATED in self.names:
            same = (UNRELATED,)
            in_process(self.entry, same, self.rounds, self.threads, self.kept, A_A)
        if self.serving is not None:
            with children_keep_memory():
                over_http(self.serving, self.names, self.http, self.threads, self.kept)

    def shown(self, progress: Progress) -> None:
        """Tell the bar of each part; it draws then, and at no other time."""
        bar = progress.add_task("building engines", total=self.parts)

        def tell(doing: str) -> None:
            done = sum(map(len, self.kept.pairs.values()))
            progress.update(bar, description=doing, completed=done, refresh=True)

        self.kept.tell = tell


def _bench(options: argparse.Namespace) -> Bench:
    (entry,) = (one for one in find(options.engine) if one.kind is Engine)
    serving = served_by(entry) if options.http else None
    names = tuple(options.workload or SHARING)
    return Bench(entry, names, options.rounds, options.http, options.threads, serving)


def _run(bench: Bench) -> int:
    """All rounds; the exit status."""
    columns = (*Progress.get_default_columns(), TimeElapsedColumn())
    # A thread that draws would take its time from what is measured.
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as progress:
        bench.shown(progress)
        try:
            bench.run()
        except KeyboardInterrupt:
            return INTERRUPTED
        except RuntimeError as error:
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
    except (UnknownImplementation, Unavailable, ValueError) as error:
        print(error, file=sys.stderr)
        return USAGE_ERROR
    environment = capture(seed="0")
    status = _run(bench)
    asked = {name: str(getattr(options, name)) for name in ("rounds", "http", "threads")}
    asked |= {"block_size": str(BLOCK_SIZE), "complete": "no" if status else "yes"}
    records = [
        record_of(bench.entry, one, environment, asked | {"row": str(number)})
        for number, one in enumerate(bench.kept.played())
    ]
    if records:
        _show(records)
    for record in records if options.record is not None else ():
        write(record, options.record)
    if options.page is not None and not status:
        options.page.write_text(page(records), encoding="utf-8")
    return status


def _show(records: Sequence[Record]) -> None:
    rows = [row_of(record) for record in records]
    console, shown = Console(), table(rows)
    console.width = max(console.width, Console(width=1000).measure(shown).maximum)
    console.print(shown)
    for line in taxes(rows):
        console.print(line)
    console.print(f"milliseconds; {told_loads(rows)}")


if __name__ == "__main__":
    sys.exit(main())
