"""The page: one file, without a network, from records and the published results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvassay.harness.record import Record
from kvassay.harness.report import findings, growth, laws, releases, rooflines
from kvassay.harness.report.charts import Chart, svg
from kvassay.harness.report.matrix import Matrix, broken, matrix
from kvassay.harness.report.measured import quantities
from kvassay.harness.report.published import sections
from kvassay.harness.report.section import Section
from kvassay.harness.verdict import Status

PARTS = Path(__file__).parent
TITLE = "kvassay report"
GIB = 2**30
MOST_NAMES = 5
AGAIN = "pytest --pyargs kvassay.suites -p kvassay.harness.plugin"
CONFORMANCE = ("campaign", "checked operations")
"""Metrics of suites, which say how much was tried and not how fast anything is."""


class NothingToShow(ValueError):
    """No record and no published page; says where it looked."""


def page(records: Sequence[Record], results: Path) -> str:
    """The whole file; `NothingToShow` if there is nothing."""
    found = matrix(records)
    drawn = list(_charts(records))
    first = [*findings.section(results), *releases.section(results), *laws.section(records)]
    published = [*rooflines.section(records), *sections(results)]
    if not (found.columns or drawn or first or published):
        raise NothingToShow(f"no records, and no published pages in {results}")
    shown = [one for one in quantities(records) if one.name not in CONFORMANCE]
    text: str = _template().render(
        title=TITLE,
        style=(PARTS / "style.css").read_text("utf-8"),
        script=(PARTS / "script.js").read_text("utf-8"),
        summary=_summary(found, records),
        contents=list(_contents(found, first, drawn, published, bool(shown))),
        matrix=found,
        broken=list(_broken(found)),
        first=first,
        statuses=[status.value for status in Status],
        charts=drawn,
        pages=published,
        quantities=shown,
        environments=list(_environments(records)),
    )
    return text


def _template() -> Any:
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["safe"] = Markup
    source = (PARTS / "page.html").read_text("utf-8")
    # Style and script are files of ours, and not text to be escaped.
    for part in ("style", "script"):
        source = source.replace("{{ " + part + " }}", "{{ " + part + "|safe }}")
    return environment.from_string(source)


def _summary(found: Matrix, records: Sequence[Record]) -> str:
    failing = broken(found)
    kinds = len(found.columns)
    judged = sum(len(column.cells) for column in found.columns)
    names = sorted({column.name for column, _, _ in failing})
    by = ", ".join(names[:MOST_NAMES]) + (" and others" if len(names) > MOST_NAMES else "")
    told = f"; broken: {len(failing)}, by {by}" if failing else "; nothing is broken"
    return (
        f"{len(records)} records. {kinds} implementations, {judged} verdicts{told}."
        if kinds
        else f"{len(records)} records, none of them a verdict."
    )


def _charts(records: Sequence[Record]) -> Iterator[Mapping[str, Any]]:
    made: list[Chart] = list(growth.charts(records))
    if made:
        yield {
            "id": "control-plane",
            "heading": "What a cache manager costs its scheduler",
            "about": "From admission to release, implementations in turns in one process.",
            "charts": [(chart, svg(chart)) for chart in made],
        }


def _broken(found: Matrix) -> Iterator[tuple[str, str, str, str, list[str], str]]:
    """What does not keep what: for a list, with the cell that tells more, and how to see it."""
    places = {id(column): place for place, column in enumerate(found.columns, 1)}
    for column, row, cell in broken(found):
        told = [said for said in cell.said if said.status in (Status.FAIL, Status.ERROR)]
        replays = [said.finding["replay"] for said in told if said.finding]
        why = next((said.reason for said in told if said.reason), "")
        again = [*replays[:1], f"{AGAIN} --impl {column.reference}"]
        dialog = f"cell-{row.id}-{places[id(column)]}"
        yield column.name, column.version, f"{row.id} {row.title}", why, again, dialog


def _contents(
    found: Matrix,
    first: Iterable[Section],
    drawn: Iterable[Mapping[str, Any]],
    published: Iterable[Section],
    numbers: bool,
) -> Iterator[tuple[str, str]]:
    if found.columns:
        yield "verdicts", "What breaks what"
    yield from ((one.id, one.heading) for one in first)
    yield from ((str(one["id"]), str(one["heading"])) for one in drawn)
    yield from ((one.id, one.heading) for one in published)
    if numbers:
        yield "numbers", "All that was measured"
    yield "environment", "Where this was measured"


def _environments(records: Iterable[Record]) -> Iterator[tuple[str, ...]]:
    by_place: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for record in records:
        one = record.environment
        memory = "unknown" if one.memory_bytes is None else f"{one.memory_bytes / GIB:.0f} GiB"
        packages = ", ".join(f"{name} {version}" for name, version in one.packages.items())
        commit = (one.commit or "unknown")[:10] + (" and changes" if one.dirty else "")
        machine = (one.processor or "unknown", str(one.cores or "unknown"), memory, one.system)
        by_place[(*machine, one.python, packages, commit)].append(one.time[:16])
    for place, times in by_place.items():
        yield (str(len(times)), min(times), max(times), *place)
