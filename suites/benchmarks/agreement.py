"""kvassay's latencies beside those of `vllm bench serve`, on one server and at the same time.

    python -m kvassay.suites.benchmarks.agreement --page results/agreement.md

A real vLLM server with a small random model; both tools replay the same trace, whose requests come
in turns, and kvassay's turns lie halfway between vLLM's: what slows the machine for a while slows
both. What is judged is the ratio of the medians over all turns of all rounds. vLLM counts the time
to the first token from the sending, kvassay from the intended start; both are shown, and a client
that allows itself only so many requests at a time is where they differ. With ``--server scripted``
the server only waits, for times that are known. Ctrl-C keeps what was measured.

Exit status: 0 if all that is the same by definition agrees, 1 if it does not or that is not known,
2 for a wrong call or no measurement, 130 if it was interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.progress import Progress

from kvassay.harness.control.pairing import undisturbed
from kvassay.harness.environment import Environment, capture
from kvassay.harness.load.generator import LEAD
from kvassay.harness.load.session import Load, Report, first_of, measured
from kvassay.harness.load.workloads import recorded
from kvassay.harness.metrics.latency import SendDelay, TimePerOutputToken, TimeToFirstToken
from kvassay.harness.metrics.timeline import Timeline
from kvassay.harness.record import Direction, Metric, Record, Subject, write
from kvassay.harness.serving.http import HTTP
from kvassay.harness.serving.openai import EXTENSIONS, OpenAIEngine
from kvassay.harness.workloads import arrivals
from kvassay.suites.benchmarks.agreement_comparing import QUANTITIES, Compared, Round, compare
from kvassay.suites.benchmarks.agreement_page import SERVERS, page, table, vllm_of
from kvassay.suites.benchmarks.agreement_scripted import EMPTY_FIRST, PLAIN, scripted
from kvassay.suites.benchmarks.agreement_vllm import (
    BadResult,
    Sample,
    Shape,
    Tool,
    stop,
    write_tokenizer,
    write_trace,
)
from kvassay.suites.benchmarks.arguments import positive

SUITE = "agreement"
NOT_MEASURED, INTERRUPTED = 2, 130
VOCABULARY = 1024
SIZES = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 16}
"""Of the model, beside four layers: steps of 10 ms, beside which a client's own are small."""
NEEDED = ("vllm", "pandas", "datasets", "aiohttp")
WANTED = "comparing with vllm bench serve needs vLLM: pip install vllm pandas datasets aiohttp"


@dataclass(frozen=True)
class Scene:
    """How the requests of a turn come."""

    name: str
    burst: int
    at_once: int | None = None
    """The clients' own limit."""
    model: str | None = None
    """Which is asked for; None for the server's only one."""
    alike: bool = True
    """Whether its chunks mean the same to both tools."""


SCENES = (
    Scene("one at a time", 1),
    Scene("2 at once", 2),
    Scene("2 at once, clients send 1 at a time", 2, 1),
)
KNOWN = (
    Scene("a token in each chunk", 1, model=PLAIN),
    Scene("2 at once, clients send 1 at a time", 2, 1, model=PLAIN),
    Scene("an empty chunk first", 1, model=EMPTY_FIRST, alike=False),
)


# --------------------------------------------------------------------------------------- measuring


def seen(report: Report) -> list[Sample]:
    """kvassay's own metrics, request by request; `BadResult` for one that is not complete."""
    for one in report.run.timelines:
        if one not in report.run.complete:
            raise BadResult(f"kvassay: {one.request} is {one.ending}: {one.error}")
    return [_sample(one) for one in report.run.timelines]


def _sample(one: Timeline) -> Sample:
    waited, ttft = SendDelay().of(one), TimeToFirstToken().of(one)
    tpot, count = TimePerOutputToken().of(one), one.output_tokens
    if one.sent is None or waited is None or ttft is None or tpot is None or count is None:
        raise BadResult(f"kvassay: {one.request} has no such metrics")
    return Sample(one.sent, waited, ttft - waited, tpot, one.prompt_tokens, count)


async def play(tool: Tool, seed: int) -> Round:
    """One round: vLLM's tool begins, and half a gap later kvassay does."""
    made, rows = recorded(tool.trace, "mooncake", seed, VOCABULARY)
    load = Load(made, list(arrivals.recorded(rows)), at_once=tool.at_once, block_size=None)
    async with HTTP(tool.url) as transport:
        engine = OpenAIEngine(transport, tool.model)
        await measured(engine, Load(first_of(made, 1), block_size=None), time.monotonic)
        process = await tool.start()
        try:
            begun = time.monotonic()
            with undisturbed():
                await asyncio.sleep(tool.shape.gap / 2 - LEAD + begun - time.monotonic())
                report = await measured(engine, load, time.monotonic)
            theirs = await tool.finish(process)
        finally:
            await stop(process)
    if report.interrupted:
        raise KeyboardInterrupt
    return checked(tool.shape, theirs, seen(report))


def checked(shape: Shape, theirs: Sequence[Sample], ours: Sequence[Sample]) -> Round:
    """A round of requests that the server counted alike; `BadResult` for others."""
    wanted = [(shape.prompt_tokens, shape.output_tokens)] * shape.requests
    for who, samples in (("vllm bench serve", theirs), ("kvassay", ours)):
        counts = [(one.prompt_tokens, one.output_tokens) for one in samples]
        if counts != wanted:
            raise BadResult(f"{who}: expected {wanted[:1]} tokens of each request, got {counts}")
    return Round(shape.burst, theirs, ours, os.getloadavg()[0])


@dataclass
class Bench:
    """The rounds that there are so far, by scene."""

    options: argparse.Namespace
    progress: Progress
    rounds: dict[Scene, list[Round]] = field(default_factory=dict)

    @property
    def scenes(self) -> tuple[Scene, ...]:
        """What is played on the server that was chosen."""
        return SCENES if self.options.server == "vllm" else KNOWN

    def run(self) -> None:
        """All rounds of all scenes, on one server."""
        from kvassay.harness.engines.random_llama import Sizes, write_model

        total = self.options.rounds * len(self.scenes)
        bar = self.progress.add_task("starting the server", total=total)
        with TemporaryDirectory() as name:
            sizes = Sizes(vocab_size=VOCABULARY, num_hidden_layers=4, **SIZES)
            folder = write_model(Path(name), sizes)
            write_tokenizer(folder, VOCABULARY)
            with self.server(folder) as served:
                for number in range(self.options.rounds):
                    for scene in self.scenes:
                        self.progress.update(bar, description=scene.name)
                        tool = self.tool(scene, served, folder)
                        one = asyncio.run(play(tool, number))
                        self.rounds.setdefault(scene, []).append(one)
                        self.progress.advance(bar)

    def server(self, model: Path) -> AbstractContextManager[Any]:
        """The server that was chosen, with a URL and the name of its model."""
        if self.options.server == "scripted":
            return scripted()
        from kvassay.impls.engines.vllm_serving import serving

        return serving(model=model, prefix_caching=False, threads=1)

    def tool(self, scene: Scene, served: Any, folder: Path) -> Tool:
        """vLLM's tool for a round of the scene, and the trace for both."""
        shape = self.shape(scene)
        trace = write_trace(folder / "trace.jsonl", shape)
        extra = dict(EXTENSIONS)
        model = scene.model or served.model
        return Tool(served.url, model, folder, trace, shape, scene.at_once, extra)

    def shape(self, scene: Scene) -> Shape:
        """Of a round of the scene."""
        told = self.options
        gap = told.gap * scene.burst
        return Shape(told.turns, scene.burst, gap, told.prompt_tokens, told.output_tokens)

    def compared(self) -> Iterator[tuple[str, Compared]]:
        """Every quantity of every scene that was played."""
        for scene, rounds in self.rounds.items():
            for quantity in QUANTITIES:
                yield scene.name, compare(quantity, rounds, alike=scene.alike)


def record_of(scene: Scene, bench: Bench, environment: Environment) -> Record:
    """A scene's record, with the samples of both tools."""
    rounds, told = bench.rounds[scene], bench.options
    metrics = [metric for q in QUANTITIES for metric in _metrics(compare(q, rounds), rounds)]
    return Record(
        suite=SUITE,
        subject=Subject(
            name="vllm-bench-serve",
            kind="load generator",
            version=vllm_of(environment),
            reference="vllm bench serve",
            declaration={},
        ),
        environment=environment,
        options={
            **{name: str(getattr(told, name)) for name in SIZED},
            "scene": scene.name,
            "burst": str(scene.burst),
            "at_once": str(scene.at_once),
            "load": ", ".join(f"{one.load:.2f}" for one in rounds),
        },
        counters={
            "requests": sum(len(one.ours) for one in rounds),
            "overlaps": sum(one.overlaps() for one in rounds),
        },
        metrics=metrics,
    )


SIZED = ("server", "rounds", "turns", "gap", "prompt_tokens", "output_tokens")


def _metrics(one: Compared, rounds: Sequence[Round]) -> Iterator[Metric]:
    name = one.quantity.name
    theirs = [one.quantity.theirs(sample) for each in rounds for sample in each.theirs]
    ours = [one.quantity.ours(sample) for each in rounds for sample in each.ours]
    yield _metric(f"{name}: vllm bench serve", "s", one.median.theirs, theirs)
    yield _metric(f"{name}: kvassay", "s", one.median.ours, ours)
    yield _metric(f"{name}: ratio of medians", "1", one.median.ratio, list(one.rounds))
    for what, found in (("medians", one.median), ("lower quartiles", one.quartile)):
        ends = [found.low, found.high]
        yield _metric(f"{name}: interval of the ratio of {what}", "1", found.ratio, ends)


def _metric(name: str, unit: str, value: float, samples: list[float]) -> Metric:
    return Metric(name=name, unit=unit, direction=Direction.NEITHER, value=value, samples=samples)


# ------------------------------------------------------------------------------------ command line


def _parser() -> argparse.ArgumentParser:
    about = __doc__.splitlines()[0] if __doc__ else ""
    parser = argparse.ArgumentParser(prog="kvassay bench agreement", description=about)
    parser.add_argument("--server", choices=SERVERS, default=SERVERS[0], help="(vllm)")
    parser.add_argument("--rounds", type=positive, default=4, help="of all loads (4)")
    parser.add_argument("--turns", type=positive, default=48, help="of a round (48)")
    parser.add_argument(
        "--gap", type=float, default=0.8, help="seconds between turns, for each request (0.8)"
    )
    parser.add_argument("--prompt-tokens", type=positive, default=512, help="(512)")
    parser.add_argument("--output-tokens", type=_several, default=24, help="at least 2 (24)")
    parser.add_argument("--page", type=Path, help="file for the comparison as Markdown")
    parser.add_argument("--record", type=Path, help="folder for a record of each load")
    return parser


def _several(text: str) -> int:
    value = positive(text)
    if value < 2:
        raise argparse.ArgumentTypeError(f"expected at least 2, or there is no TPOT, got {value}")
    return value


def main(arguments: list[str] | None = None) -> int:
    """From the command line; the exit status."""
    options = _parser().parse_args(arguments)
    if any(find_spec(name) is None for name in NEEDED):
        print(WANTED, file=sys.stderr)
        return NOT_MEASURED
    console, status = Console(), 0
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bench = Bench(options, progress)
        try:
            bench.run()
        except KeyboardInterrupt:
            status = INTERRUPTED
        except (BadResult, RuntimeError) as error:
            print(error, file=sys.stderr)
            status = NOT_MEASURED
    _tell(bench, console, whole=status == 0)
    agreed = all(one.median.verdict == "agree" for _, one in bench.compared() if one.judged)
    return status or int(not agreed)


def _tell(bench: Bench, console: Console, *, whole: bool) -> None:
    """The table and records of what there is; the page of a whole run only."""
    if not bench.rounds:
        return
    environment = capture(seed="the number of the round")
    found = list(bench.compared())
    shown = table(found)
    console.width = max(console.width, Console(width=1000).measure(shown).maximum)
    console.print(shown)
    if bench.options.record is not None:
        for scene in bench.rounds:
            write(record_of(scene, bench, environment), bench.options.record)
    if whole and bench.options.page is not None:
        rounds = [one for some in bench.rounds.values() for one in some]
        text = page(found, rounds, bench.shape(SCENES[0]), environment, bench.options.server)
        bench.options.page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
