"""The verdict matrix: implementations by invariants, each cell with the evidence behind it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvassay.harness.attention.law import WHOLE_LAW
from kvassay.harness.record import Record
from kvassay.harness.verdict import Status, worst
from kvassay.harness.verdict_table import newest

SYMBOLS = {
    Status.PASS: "pass",
    Status.FAIL: "FAIL",
    Status.DEVIATION: "dev.",
    Status.NOT_CLAIMED: "-",
    Status.NOT_REACHED: "n.r.",
    Status.ERROR: "ERROR",
}
"""What a cell says; a colour never says it alone."""


@dataclass
class Said:
    """What one suite said of one invariant."""

    suite: str
    status: Status
    reason: str
    met: Mapping[str, int]
    finding: Mapping[str, Any] | None
    options: Mapping[str, str]


@dataclass
class Cell:
    """One implementation and one invariant."""

    said: list[Said] = field(default_factory=list)

    @property
    def status(self) -> Status:
        """What stands: what one shape did not reach and another did is reached."""
        found = {one.status for one in self.said}
        return worst(sorted(found - {Status.NOT_REACHED} or found))

    @property
    def symbol(self) -> str:
        """In a few letters."""
        return SYMBOLS[self.status]


@dataclass
class Column:
    """One implementation."""

    name: str
    kind: str
    version: str
    reference: str
    cells: dict[str, Cell] = field(default_factory=lambda: defaultdict(Cell))

    def count(self, status: Status) -> int:
        """Cells of that status."""
        return sum(cell.status is status for cell in self.cells.values())

    @property
    def broken(self) -> int:
        """Invariants that it does not keep."""
        return self.count(Status.FAIL) + self.count(Status.ERROR)


@dataclass
class Row:
    """One invariant."""

    id: str
    title: str


@dataclass
class Matrix:
    """All of it."""

    columns: list[Column]
    rows: list[Row]


def matrix(records: Iterable[Record]) -> Matrix:
    """Of the newest record of each implementation, suite and shape."""
    columns: dict[tuple[str, str], Column] = {}
    for record in newest(records):
        if not record.verdicts:
            continue
        subject = record.subject
        column = columns.setdefault(
            (subject.name, subject.kind),
            Column(subject.name, subject.kind, subject.version, subject.reference),
        )
        _add(column, record)
    judged = {id for column in columns.values() for id in column.cells}
    rows = [Row(id, WHOLE_LAW[id].title) for id in WHOLE_LAW if id in judged]
    rows += [Row(id, "") for id in sorted(judged - set(WHOLE_LAW))]
    return Matrix(sorted(columns.values(), key=lambda one: (one.kind, one.name)), rows)


def _add(column: Column, record: Record) -> None:
    findings = {str(one.get("invariant")): one for one in record.findings}
    for entry in record.verdicts:
        column.cells[entry.invariant].said.append(
            Said(
                record.suite,
                entry.status,
                entry.reason,
                entry.met,
                findings.get(entry.invariant),
                record.options,
            )
        )


def broken(found: Matrix) -> Sequence[tuple[Column, Row, Cell]]:
    """Every cell that fails, for a list."""
    return [
        (column, row, column.cells[row.id])
        for column in found.columns
        for row in found.rows
        if row.id in column.cells and column.cells[row.id].status in (Status.FAIL, Status.ERROR)
    ]
