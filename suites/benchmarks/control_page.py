"""The page of the control plane, from stored records.

``python -m kvassay.suites.benchmarks.control_page`` writes `results/control_plane.md` and
`results/control_plane.png` from the records in `results/control` (`kvassay bench control --record
results/control`, once in the environment of each engine); ``--check`` says whether the stored page
is the one that they make.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from kvassay.harness.control.pairing import Ratio, ratio
from kvassay.harness.record import BadRecord, Record, read_all
from kvassay.suites.benchmarks.control import LIFE, SUITE

RESULTS = Path(__file__).parents[2] / "results"
RECORDS, PAGE, CHART = (
    RESULTS / "control",
    RESULTS / "control_plane.md",
    RESULTS / "control_plane.png",
)
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


def page(runs: Sequence[Together]) -> str:
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
    parts.append("![How a request's life grows with the pool](control_plane.png)\n")
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


def chart(runs: Sequence[Together], path: Path) -> None:
    """The life of a request over the size of the pool."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for run in runs:
        for name in run.names:
            for picked, style in (("hot", "o-"), ("random", "s--")):
                _curve(axes, run, name, picked, style)
    axes.set(xscale="log", yscale="log", xlabel="blocks in the pool", ylabel="us per request")
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def _curve(axes: Any, run: Together, name: str, picked: str, style: str) -> None:
    points = [
        (int(metric.split()[1]), 1e6 * median(run.seconds(name, metric)))
        for metric in run.metrics("pool")
        if f", {picked}:" in metric
    ]
    if points:
        beside = f" (beside {run.names[1]})" if name == run.names[0] and len(run.names) > 1 else ""
        label = f"{name}{beside}, block {run.block_size}, {picked}"
        axes.plot(*zip(*points, strict=True), style, label=label)


def main(arguments: list[str] | None = None) -> int:
    """Write page and chart, or compare; 1 where the page is another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="compare with what is stored")
    options = parser.parse_args(arguments)
    try:
        runs = together(read_all([RECORDS]))
    except BadRecord as error:
        print(error, file=sys.stderr)
        return 2
    if not runs:
        print(f"{RECORDS}: no complete set of records", file=sys.stderr)
        return 2
    text = page(runs)
    if options.check:
        same = PAGE.read_text(encoding="utf-8") == text
        print("the stored page is what the records say" if same else f"{PAGE.name} is another")
        return 0 if same else 1
    PAGE.write_text(text, encoding="utf-8")
    chart(runs, CHART)
    return 0


if __name__ == "__main__":
    sys.exit(main())
