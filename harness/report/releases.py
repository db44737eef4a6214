"""Releases of engines side by side: the records of `results/releases`, by version.

Of each implementation, version, suite and shape the newest record stands; a cell counts the
verdicts of a version, worst first, and what is broken is named.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from kvassay.harness.record import Record, read_all
from kvassay.harness.report.matrix import Column, matrix
from kvassay.harness.report.section import Section, Table
from kvassay.harness.verdict import Status

FOLDER = "releases"
WORST = (Status.FAIL, Status.ERROR, Status.DEVIATION, Status.NOT_REACHED, Status.PASS)


def section(results: Path) -> Iterator[Section]:
    """Of all releases, if any is recorded; `harness.record.BadRecord` for a file that is none."""
    folder = results / FOLDER
    if not folder.is_dir() or not any(folder.glob("*.json")):
        return
    by_version: dict[str, list[Record]] = defaultdict(list)
    for record in read_all([folder]):
        by_version[record.subject.version].append(record)
    # Versions apart: within one of them the newest record stands.
    columns = [column for records in by_version.values() for column in matrix(records).columns]
    if columns:
        yield Section(
            "releases",
            "Releases of engines",
            "The same suites on one release after another.",
            [Table("Releases", HEADINGS, [_row(column) for column in _in_order(columns)])],
        )


HEADINGS = ("implementation", "kind", "version", "verdicts", "broken")


def _in_order(columns: list[Column]) -> list[Column]:
    return sorted(columns, key=lambda one: (one.name, one.kind, _parts(one.version)))


def _parts(version: str) -> list[tuple[int, str]]:
    """So that 0.9 stands before 0.10."""
    parts = version.replace("+", ".").replace("-", ".").split(".")
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _row(column: Column) -> tuple[str, ...]:
    counts = Counter(cell.status for cell in column.cells.values())
    told = ", ".join(f"{counts[status]} {status}" for status in WORST if counts[status])
    bad = (Status.FAIL, Status.ERROR)
    broken = [id for id, cell in column.cells.items() if cell.status in bad]
    return column.name, column.kind, column.version, told or "none", " ".join(broken) or "nothing"
