"""Pages of `results/` that are made of stored records: written, or compared with what is there.

A page is a text and the charts that it shows. What is made is a function of what is stored and of
nothing else: the same records give the same page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvassay.harness.record import BadRecord, Record, read_all
from kvassay.harness.report import style

RESULTS = Path(__file__).parents[2] / "results"
CHARTS = "charts"
"""Folder of charts, beside the pages."""
USAGE_ERROR = 2


@dataclass(frozen=True)
class Made:
    """A page as its records make it."""

    name: str
    """Of its file, without the ending."""
    text: str
    charts: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    """By the name of its files: what draws it, as a matplotlib figure."""


Maker = Callable[[Path], Made]
"""Makes a page of what a folder of results holds; `BadRecord` where that is not enough."""


def image(chart: str, alt: str) -> str:
    """A chart in a page, in Markdown: the PNG, which leads to the SVG."""
    return f"[![{alt}]({CHARTS}/{chart}.png)]({CHARTS}/{chart}.svg)"


def write(made: Made, results: Path = RESULTS) -> None:
    """The page and its charts into a folder of results; charts that are as drawn now stay."""
    folder = results / CHARTS
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in made.charts.items():
        figure = draw()
        if style.stale(figure, name, folder):
            for file, content in style.files(figure, name).items():
                (folder / file).write_bytes(content)
    (results / f"{made.name}.md").write_text(made.text, encoding="utf-8")


def stale(made: Made, results: Path = RESULTS) -> list[str]:
    """What is stored and is not what is made now: the page, charts; empty if all is."""
    page = results / f"{made.name}.md"
    same = page.is_file() and page.read_text(encoding="utf-8") == made.text
    found = [] if same else [page.name]
    for name, draw in made.charts.items():
        files = style.stale(draw(), name, results / CHARTS)
        found += [f"{CHARTS}/{file}" for file in files]
    return found


def command(make: Maker, about: str | None, arguments: Sequence[str] | None) -> int:
    """Write a page, or compare; 1 where something is another, 2 without records."""
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with what is stored")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of records and page")
    options = parser.parse_args(arguments)
    try:
        made = make(options.results)
    except BadRecord as error:
        print(error, file=sys.stderr)
        return USAGE_ERROR
    if options.check:
        return told(stale(made, options.results))
    write(made, options.results)
    return 0


def told(found: Sequence[str]) -> int:
    """Says what is stale; 1 if anything is."""
    for name in found:
        print(f"{name} is another than what comes out now")
    if not found:
        print("what is stored is what comes out")
    return 1 if found else 0


# ----------------------------------------------------------------------------------------- records


def newest(records: Iterable[Record], suite: str) -> list[Record]:
    """The last complete run of a suite, in the order of its rows; empty without one.

    Records of one run have one environment, and say so: `complete`, and their `row`.
    """
    whole = [
        record
        for record in records
        if record.suite == suite and record.options.get("complete") == "yes"
    ]
    last = max((record.environment.time for record in whole), default=None)
    found = [record for record in whole if record.environment.time == last]
    return sorted(found, key=lambda record: int(record.options["row"]))


def stored(folder: Path, suite: str) -> list[Record]:
    """The last complete run in a folder; `BadRecord` without one."""
    found = newest(read_all([folder]), suite)
    if not found:
        raise BadRecord(f"{folder}: no complete run of {suite}")
    return found
