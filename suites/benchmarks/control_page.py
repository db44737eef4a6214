"""The page of the control plane, from stored records.

``python -m kvassay.suites.benchmarks.control_page`` writes `results/control_plane.md` and its
charts from the records in `results/control` (`kvassay bench control --record results/control`, once
in the environment of each engine); ``--check`` says whether what is stored is what they make.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from kvassay.harness.control.pairing import Ratio, ratio
from kvassay.harness.record import BadRecord, Record, read_all
from kvassay.harness.report import growth
from kvassay.harness.report.charts import Chart, figure
from kvassay.suites.benchmarks.control import LIFE, SUITE
from kvassay.suites.benchmarks.stored import Made, command, image

NAME, RECORDS = "control_plane", "control"
STEPS = {"one at a time": "steps, 1 requests", "64 at a time": "steps, 64 requests"}
"""Batches whose ratios are told."""
REQUEST = (*(("prepare", 1), ("look_up", 1), ("reserve", 1), ("publish", 1)), ("append", 4))
"""Stages of a whole request, and how many of each, beside its release."""


@dataclass(frozen=True)
class Together:
    """Records that were made side by side, in the order of their contenders."""

    names: tuple[str, ...]
    block_size: int
    records: Mapping[str, Record]

    def seconds(self, name: str, metric: str) -> list[float]:
        """Samples, round by round; empty if there are none."""
        metrics = self.records[name].metrics
        return next((each.samples for each in metrics if each.name == metric), [])

    def metrics(self, experiment: str) -> list[str]:
        """Names of the metrics of an experiment."""
        found = self.records[self.names[0]].metrics
        return [each.name for each in found if each.name.startswith(f"{experiment}, ")]


def together(records: Iterable[Record]) -> list[Together]:
    """The newest records of each set of contenders and block size."""
    runs: dict[tuple[str, str], dict[str, Record]] = {}
    for record in sorted(records, key=lambda each: each.environment.time):
        if record.suite == SUITE:
            where = record.options["beside"], record.options["block_size"]
            runs.setdefault(where, {})[record.subject.name] = record
    return [
        Together(tuple(beside.split(",")), int(size), found)
        for (beside, size), found in sorted(runs.items())
        if set(beside.split(",")) == set(found)
    ]


# ------------------------------------------------------------------------------------------ ratios


def life(run: Together, name: str, step: str) -> list[float]:
    """A whole request: key, look-up, reservation, publication, four decode steps, release."""
    parts = [
        [count * value for value in run.seconds(name, f"{step}: {stage}")]
        for stage, count in (*REQUEST, ("release", 1))
    ]
    return [sum(each) for each in zip(*parts, strict=True)]


def claims(run: Together) -> Iterator[tuple[str, str, Ratio]]:
    """What a user of the first contender gains over each of the others."""
    for other in run.names[1:]:
        for words, mine, theirs in _sides(run, run.names[0], other):
            if mine and theirs:
                yield words, other, ratio(theirs, mine)


def _sides(run: Together, first: str, other: str) -> Iterator[tuple[str, list[float], list[float]]]:
    for many, step in STEPS.items():
        quantities = {
            f"admission and release, keys included, {many}": f"{step}: {LIFE}",
            f"the same, keys ready, {many}": f"{step}: scheduler",
            f"look-up, {many}": f"{step}: look_up",
            f"one decode step, {many}": f"{step}: append",
        }
        for words, metric in quantities.items():
            yield words, run.seconds(first, metric), run.seconds(other, metric)
        words = f"a whole request with 4 decode steps, {many}"
        yield words, life(run, first, step), life(run, other, step)
    metric = "match, 1000 tokens: match"
    yield "a bare look-up of 1,000 tokens", run.seconds(first, metric), run.seconds(other, metric)


# ------------------------------------------------------------------------------------------- words


TEXT = """# The control plane

Written by `python -m kvassay.suites.benchmarks.control_page` from the records in `results/control`,
which hold every sample. Contenders of a run took turns on the same Python token lists, in one
process on one core; times are medians over rounds, ratios are formed within a round and given as
median (quartiles). What a stage covers is said in `harness/control/stages.py`.

What is not the same on both sides: `radix` finds a prefix at any token, compares tokens and hashes
nothing, validates its input, and makes each generated token findable at once. vLLM hashes whole
blocks (its default, SHA-256; in a server, in the thread that takes requests in) and makes a block
findable when it is full. SGLang keeps a slot per token in a tensor, allocates a batch in one call,
and publishes generated tokens at the release only. Events are off everywhere.
"""


def page(runs: Sequence[Together], charts: Sequence[Chart] = ()) -> str:
    """All of it as Markdown."""
    parts = [TEXT]
    for run in runs:
        first = run.records[run.names[0]]
        machine = first.environment
        versions = ", ".join(f"{name} {run.records[name].subject.version}" for name in run.names)
        parts.append(f"## {' and '.join(run.names)}, block size {run.block_size}\n")
        parts.append(
            f"{versions}; Python {machine.python}, {machine.processor}; "
            f"{first.options['rounds']} rounds, {machine.time[:10]}.\n"
        )
        rows = [(words, other, str(found)) for words, other, found in claims(run)]
        if rows:
            if run.metrics("steps"):
                parts.append("Prompts of 1,152 tokens of which 1,024 are shared:\n")
            parts.append(table(("", "beside", f"times as long as {run.names[0]}"), rows))
        for experiment, words in EXPERIMENTS.items():
            if run.metrics(experiment):
                parts.append(f"### {words}\n")
                parts.append(times(run, experiment))
    if charts:
        parts.append("## How a request's life grows\n")
        parts.append(f"{charts[0].note}\n")
        parts += [f"{image(chart.name, chart.title)}\n" for chart in charts]
    return "\n".join(parts)


EXPERIMENTS = {
    "steps": "Scheduler steps, us per step",
    "pool": "Life of a 64-token request over a growing pool, us",
    "depth": "Life of a 1,024-token request over a path of so many nodes, us",
    "prompt": "By length of the prompt, all but 16 tokens resident, us",
    "match": "A bare look-up, us",
    "share": "By the resident part of a 1,024-token prompt, us",
}
"""The experiments, and what their tables show."""


def times(run: Together, experiment: str) -> str:
    """Medians in microseconds."""
    rows = [
        (
            metric.removeprefix(f"{experiment}, ").replace(f": {LIFE}", ": all"),
            *(f"{1e6 * median(run.seconds(name, metric)):,.1f}" for name in run.names),
        )
        for metric in run.metrics(experiment)
    ]
    return table(("", *run.names), rows)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def made(results: Path) -> Made:
    """Of the records in the folder; `BadRecord` without a complete set."""
    records = read_all([results / RECORDS])
    runs = together(records)
    if not runs:
        raise BadRecord(f"{results / RECORDS}: no complete set of records")
    charts = list(growth.charts(records))
    drawn = {chart.name: partial(figure, chart) for chart in charts}
    return Made(NAME, page(runs, charts), drawn)


def main(arguments: list[str] | None = None) -> int:
    """From the command line."""
    return command(made, __doc__, arguments)


if __name__ == "__main__":
    sys.exit(main())
