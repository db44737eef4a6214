"""Time to the first token of a whole engine, by how its prompts share: prefix caching on and off.

    python -m kvassay.suites.benchmarks.engine_ttft --engine vllm-engine

The four ways to share and prompts that share nothing, one request after another, so that nobody
queues; each request goes to both engines, with and without prefix caching, in turns. Hits are what
the engine tells, beside what the workload intends in whole blocks. The *tax* is what caching costs
where it cannot help: the ratio of both times of a request, over the unrelated prompts.

Two equal engines in one process differ, by 17 % as measured, for as long as they live. So a round
builds a pair of its own, in turned order; a round's ratio is the median of its requests', and the
interval is one over rounds. *A/A* are rounds of two engines without caching: what ratio there is
where there is nothing to find. Over HTTP (``--http ROUNDS``) the same engine is asked through its
own server, for which its factory has ``serving``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from math import comb
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from kvassay.harness.contract import Engine
from kvassay.harness.environment import capture
from kvassay.harness.load.generator import wanted
from kvassay.harness.load.watching import Watcher
from kvassay.harness.metrics.latency import TimeToFirstToken
from kvassay.harness.metrics.metric import Measured
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
from kvassay.suites.benchmarks.engine_answers import Answering

SUITE = "engine-ttft"
USAGE_ERROR = 2
VOCABULARY = 1024
BLOCK_SIZE = 32
TTFT = TimeToFirstToken()
CONFIDENCE = 0.95
LEAST = 6
"""Rounds of which an interval can be told."""
WARM_UP = 10**6
"""A seed that no round has."""

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
    "unrelated": _unrelated,
}


@dataclass(frozen=True)
class Pair:
    """One workload on two engines, in one round."""

    first: tuple[Timeline, ...]
    """With caching, unless it is A/A."""
    second: tuple[Timeline, ...]

    @property
    def ratio(self) -> float:
        """First over second, request by request: the median."""
        pairs = zip(self.first, self.second, strict=True)
        times = [(TTFT.of(one), TTFT.of(other)) for one, other in pairs]
        return median(one / other for one, other in times if one is not None and other)


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

    @property
    def ratios(self) -> list[float]:
        """Time with caching over time without, by round."""
        return [pair.ratio for pair in self.rounds]


def _share(timelines: Sequence[Timeline], tokens: Sequence[int]) -> float:
    return sum(tokens) / sum(one.prompt_tokens for one in timelines)


def interval(samples: Sequence[float]) -> tuple[float, float]:
    """Where the median lies with 95 % confidence, whatever the distribution: order statistics.

    `ValueError` for fewer than six samples, which cannot say.
    """
    count, ordered = len(samples), sorted(samples)
    tail, below = 0.0, -1
    while tail + comb(count, below + 1) / 2**count <= (1 - CONFIDENCE) / 2:
        below += 1
        tail += comb(count, below) / 2**count
    if below < 0:
        raise ValueError(f"expected at least {LEAST} samples, got {count}")
    return ordered[below], ordered[count - 1 - below]


# ----------------------------------------------------------------------------------------- playing


async def play(name: str, workload: Workload, engines: tuple[Engine, Engine]) -> Pair:
    """Each request to both, one after the other, the first one by turns."""
    clock = asyncio.get_running_loop().time
    watchers = [Watcher(Answering(engine, workload), clock) for engine in engines]
    seen: tuple[list[Timeline], list[Timeline]] = ([], [])
    for number, one in enumerate(workload.requests):
        for place in (0, 1) if number % 2 else (1, 0):
            hit = one.hit(BLOCK_SIZE) if place == 0 else 0
            timeline = await watchers[place].watch(wanted(one, clock(), hit))
            if timeline.ending is not Ending.COMPLETE:
                raise RuntimeError(f"{name}: {one.name}: {timeline.ending}: {timeline.error}")
            seen[place].append(timeline)
    return Pair(tuple(seen[0]), tuple(seen[1]))


async def play_all(
    names: Sequence[str], engines: tuple[Engine, Engine], round: int
) -> dict[str, Pair]:
    """The workloads, with tokens of this round; what comes first only warms up."""
    await play("warm-up", _unrelated(WARM_UP), engines)
    return {
        name: await play(name, SHARING[name](len(SHARING) * round + number), engines)
        for number, name in enumerate(names)
    }


def in_process(
    entry: Registration, names: Sequence[str], rounds: int, threads: int | None, caching: bool
) -> list[Played]:
    """A pair of engines for each round in this process; without `caching` it is A/A."""
    found: list[dict[str, Pair]] = []
    for round in range(rounds):
        built: dict[int, Any] = {}
        try:
            for place in (0, 1) if round % 2 else (1, 0):
                on = caching and place == 0
                options = {"prefix_caching": on, "block_size": BLOCK_SIZE, "threads": threads}
                built[place] = entry.build(**options)
            found.append(asyncio.run(play_all(names, (built[0], built[1]), round)))
        finally:
            for engine in built.values():
                engine.close()
    return _by_workload("in process" if caching else "in process, A/A", found)


def over_http(entry: Registration, rounds: int, threads: int | None) -> list[Played]:
    """Two servers for each round, each in processes of its own."""
    serving = getattr(entry.factory, "serving", None)
    if serving is None:
        raise Unavailable(f"{entry.name} cannot be asked over HTTP: its factory has no `serving`")
    found = []
    for round in range(rounds):
        with ExitStack() as servers:
            options = {"block_size": BLOCK_SIZE, "threads": threads}
            served = {
                place: servers.enter_context(serving(prefix_caching=place == 0, **options))
                for place in ((0, 1) if round % 2 else (1, 0))
            }
            found.append(asyncio.run(_ask([served[0], served[1]], round)))
    return _by_workload("HTTP", found)


async def _ask(served: Sequence[Any], round: int) -> dict[str, Pair]:
    async with AsyncExitStack() as clients:
        transports = [await clients.enter_async_context(HTTP(one.url)) for one in served]
        first, second = (
            OpenAIEngine(transport, one.model)
            for transport, one in zip(transports, served, strict=True)
        )
        return await play_all(tuple(SHARING), (first, second), round)


def _by_workload(way: str, rounds: Sequence[dict[str, Pair]]) -> list[Played]:
    names = rounds[0] if rounds else ()
    return [Played(way, name, tuple(found[name] for found in rounds)) for name in names]


# ----------------------------------------------------------------------------------------- showing


def _ttft(timelines: Sequence[Timeline]) -> Measured:
    return TTFT.measure(Run(tuple(timelines)))


def table(played: Sequence[Played]) -> Table:
    """A row for each workload and way to ask."""
    shown = Table(show_edge=False, pad_edge=False)
    headings = ("", "requests", "hits intended, %", "hits, %", "on p50", "on p90", "off p50")
    for heading in (*headings, "off p90", "on / off", "95 %"):
        shown.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for one in played:
        shown.add_row(
            f"{one.workload}, {one.way}",
            str(len(one.caching)),
            f"{100 * one.intended:.2f}",
            _percent(one.found),
            *(_milliseconds(one.caching, percent) for percent in (50, 90)),
            *(_milliseconds(one.plain, percent) for percent in (50, 90)),
            f"{median(one.ratios):.3f}",
            _interval(one.ratios),
        )
    return shown


def _interval(ratios: Sequence[float]) -> str:
    if len(ratios) < LEAST:
        return f"too few rounds: {len(ratios)}"
    low, high = interval(ratios)
    return f"{low:.3f} to {high:.3f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f}"


def _milliseconds(timelines: Sequence[Timeline], percent: float) -> str:
    value = _ttft(timelines).percentile(percent)
    return "-" if value is None else f"{1e3 * value:.2f}"


def tax(one: Played) -> str:
    """In words."""
    return (
        f"tax of prefix caching at 0 % hits, {one.way}: on / off {median(one.ratios):.3f} "
        f"({_interval(one.ratios)}) of the time to the first token"
    )


def record_of(entry: Registration, one: Played, options: dict[str, str]) -> Record:
    """One row's record."""
    metrics = [
        Metric(
            name=name,
            unit=found.unit,
            direction=found.direction,
            value=found.value,
            samples=list(found.samples),
        )
        for name, found in (
            ("ttft, caching on", _ttft(one.caching)),
            ("ttft, caching off", _ttft(one.plain)),
        )
    ]
    shares = {"hit rate": one.found, "hit rate, intended": one.intended}
    metrics += [
        Metric(name=name, unit="1", direction=Direction.NEITHER, value=value)
        for name, value in shares.items()
    ]
    ratio = Metric(
        name="ttft, on / off",
        unit="1",
        direction=Direction.LOWER,
        value=median(one.ratios),
        samples=one.ratios,
    )
    return Record(
        suite=SUITE,
        subject=subject_of(entry),
        environment=capture(seed="0"),
        options=options | {"way": one.way, "workload": one.workload},
        counters={"requests": len(one.caching)},
        metrics=[*metrics, ratio],
    )


# ------------------------------------------------------------------------------------ command line


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kvassay bench engine", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--engine", default="vllm-engine", help="(vllm-engine)")
    parser.add_argument("--rounds", type=int, default=8, help="in process (8)")
    parser.add_argument("--http", type=int, default=0, metavar="ROUNDS", help="over HTTP (0)")
    parser.add_argument("--threads", type=int, default=1, help="of a step (1)")
    parser.add_argument("--record", type=Path, help="folder for a record of each row")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """From the command line; the exit status."""
    options = _parser().parse_args(arguments)
    load = os.getloadavg()[0]
    try:
        (entry,) = (one for one in find(options.engine) if one.kind is Engine)
        shared, threads = tuple(SHARING), options.threads
        played = in_process(entry, shared, options.rounds, threads, caching=True)
        played += in_process(entry, shared[-1:], options.rounds, threads, caching=False)
        if options.http:
            played += over_http(entry, options.http, threads)
    except (UnknownImplementation, Unavailable, ValueError) as error:
        print(error, file=sys.stderr)
        return USAGE_ERROR
    console = Console()
    shown = table(played)
    console.width = max(console.width, Console(width=1000).measure(shown).maximum)
    console.print(shown)
    for one in played:
        if one.workload == "unrelated":
            console.print(tax(one))
    console.print(f"milliseconds; load average before: {load:.1f}")
    for one in played:
        if options.record is not None:
            asked = {name: str(getattr(options, name)) for name in ("rounds", "http", "threads")}
            write(record_of(entry, one, asked | {"load": f"{load:.2f}"}), options.record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
