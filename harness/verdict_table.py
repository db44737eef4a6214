"""Verdicts of many implementations as one table: invariants down, implementations across."""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from kvassay.harness.invariants import LAW
from kvassay.harness.record import Record
from kvassay.harness.verdict import Status, worst

Verdicts = Mapping[str, Mapping[str, Sequence[Status]]]
"""Implementation -> invariant -> what each suite said."""
STYLES = {
    Status.PASS: "green",
    Status.FAIL: "bold red",
    Status.ERROR: "bold red",
    Status.DEVIATION: "yellow",
    Status.NOT_CLAIMED: "dim",
    Status.NOT_REACHED: "magenta",
}


def merged(records: Iterable[Record]) -> Verdicts:
    """The verdicts of the newest record of each implementation and suite (records by age)."""
    newest: dict[tuple[str, str], Record] = {}
    for record in records:
        newest[record.subject.name, record.suite] = record
    verdicts: dict[str, dict[str, list[Status]]] = defaultdict(lambda: defaultdict(list))
    for record in newest.values():
        for entry in record.verdicts:
            verdicts[record.subject.name][entry.invariant].append(entry.status)
    return verdicts


def rows(verdicts: Verdicts, names: Sequence[str]) -> list[list[Status | None]]:
    """One row per invariant of the law that anybody was judged by."""
    return [
        cells
        for invariant in LAW
        if any(cells := [_cell(verdicts[name].get(invariant)) for name in names])
    ]


def _cell(statuses: Sequence[Status] | None) -> Status | None:
    return worst(list(statuses)) if statuses else None


def judged(verdicts: Verdicts) -> list[str]:
    """The invariants of the rows."""
    return [i for i in LAW if any(verdicts[name].get(i) for name in verdicts)]


def total(verdicts: Verdicts, name: str) -> str:
    """How often each status stands in a column."""
    counts = Counter(worst(list(statuses)) for statuses in verdicts[name].values())
    return ", ".join(f"{counts[status]} {status}" for status in Status if counts[status])


def as_text(verdicts: Verdicts, colour: bool = False) -> str:
    """For a terminal."""
    names = sorted(verdicts)
    table = Table(show_edge=False, pad_edge=False, header_style="bold")
    table.add_column("invariant", no_wrap=True)
    for name in names:
        table.add_column(name, no_wrap=True)
    for invariant, cells in zip(judged(verdicts), rows(verdicts, names), strict=True):
        shown = [f"[{STYLES[cell]}]{cell}[/]" if cell else "" for cell in cells]
        table.add_row(f"{invariant:<4}{LAW[invariant].title}", *shown)
    table.add_section()
    table.add_row("total", *(total(verdicts, name) for name in names))
    out = io.StringIO()
    width = max(100, 30 + 45 * len(names))
    Console(file=out, force_terminal=colour, width=width, no_color=not colour).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def as_markdown(verdicts: Verdicts, records: Iterable[Record]) -> str:
    """For a page: the table, and below it what each column is."""
    names = sorted(verdicts)
    lines = [
        "| invariant | " + " | ".join(names) + " |",
        "|---|" + "---|" * len(names),
    ]
    for invariant, cells in zip(judged(verdicts), rows(verdicts, names), strict=True):
        shown = " | ".join(_word(cell) for cell in cells)
        lines.append(f"| {invariant} {LAW[invariant].title} | {shown} |")
    lines.append("| **total** | " + " | ".join(total(verdicts, name) for name in names) + " |")
    lines += ["", "`-` is *not claimed*; an empty cell was not judged.", ""]
    about = {record.subject.name: record for record in records}
    for name in names:
        subject = about[name].subject
        declared = {k: v for k, v in subject.declaration.items() if k != "capabilities"}
        values = "; ".join(f"{key}={value}" for key, value in declared.items()) or "the defaults"
        lines.append(f"- **{name}** {subject.version}: declares {values}")
    return "\n".join(lines) + "\n"


def _word(cell: Status | None) -> str:
    if cell is None:
        return ""
    if cell is Status.NOT_CLAIMED:
        return "-"
    return f"**{cell}**" if cell in (Status.FAIL, Status.ERROR) else str(cell)
