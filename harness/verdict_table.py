"""Verdicts of many implementations as one table: invariants down, implementations across."""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from kvassay.harness.attention.law import WHOLE_LAW
from kvassay.harness.record import Record
from kvassay.harness.verdict import Status, worst

Verdicts = Mapping[str, Mapping[str, Sequence[Status]]]
"""Column -> invariant -> what each suite said."""
Judged = tuple[str, str, str, Status]
"""Implementation, its kind, invariant, and what one suite said."""
STYLES = {
    Status.PASS: "green",
    Status.FAIL: "bold red",
    Status.ERROR: "bold red",
    Status.DEVIATION: "yellow",
    Status.NOT_CLAIMED: "dim",
    Status.NOT_REACHED: "magenta",
}


def newest(records: Iterable[Record]) -> list[Record]:
    """Of each implementation, suite and shape the newest record (records by age)."""
    found: dict[tuple[str | None, ...], Record] = {}
    for record in records:
        subject, options = record.subject, record.options
        shape = options.get("num_blocks"), options.get("block_size")
        found[(subject.name, subject.kind, record.suite, *shape)] = record
    return list(found.values())


def merged(records: Iterable[Record]) -> Verdicts:
    """The verdicts of the newest records.

    What one shape did not reach and another did is reached.
    """
    judged: dict[tuple[str, str, str], set[Status]] = defaultdict(set)
    for record in newest(records):
        told: dict[str, list[Status]] = defaultdict(list)
        for entry in record.verdicts:
            told[entry.invariant].append(entry.status)
        for invariant, statuses in told.items():
            judged[record.subject.name, record.subject.kind, invariant].add(worst(statuses))
    return by_column(
        (*subject_and_invariant, status)
        for subject_and_invariant, statuses in judged.items()
        for status in sorted(statuses - {Status.NOT_REACHED} or statuses)
    )


def by_column(judged: Iterable[Judged]) -> Verdicts:
    """Verdicts by name; by name and kind where two kinds of a name share an invariant."""
    judged = list(judged)
    kinds: dict[tuple[str, str], set[str]] = defaultdict(set)
    for name, kind, invariant, _ in judged:
        kinds[name, invariant].add(kind)
    apart = {name for (name, _), judging in kinds.items() if len(judging) > 1}
    verdicts: dict[str, dict[str, list[Status]]] = defaultdict(lambda: defaultdict(list))
    for name, kind, invariant, status in judged:
        column = f"{name} ({kind})" if name in apart else name
        verdicts[column][invariant].append(status)
    return verdicts


def rows(verdicts: Verdicts, names: Sequence[str]) -> list[list[Status | None]]:
    """One row per invariant of the law that anybody was judged by."""
    return [
        cells
        for invariant in WHOLE_LAW
        if any(cells := [_cell(verdicts[name].get(invariant)) for name in names])
    ]


def _cell(statuses: Sequence[Status] | None) -> Status | None:
    return worst(list(statuses)) if statuses else None


def judged(verdicts: Verdicts) -> list[str]:
    """The invariants of the rows."""
    return [i for i in WHOLE_LAW if any(verdicts[name].get(i) for name in verdicts)]


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
        table.add_row(f"{invariant:<4}{WHOLE_LAW[invariant].title}", *shown)
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
        lines.append(f"| {invariant} {WHOLE_LAW[invariant].title} | {shown} |")
    lines.append("| **total** | " + " | ".join(total(verdicts, name) for name in names) + " |")
    lines += ["", "`-` is *not claimed*; an empty cell was not judged.", ""]
    return "\n".join(lines + _subjects(records)) + "\n"


def _subjects(records: Iterable[Record]) -> list[str]:
    """A line per implementation of the newest records; it says the kind if several share a name."""
    subjects = {(r.subject.name, r.subject.kind): r.subject for r in records}
    shared = Counter(name for name, _ in subjects)
    lines = []
    for (name, kind), subject in sorted(subjects.items()):
        declared = {k: v for k, v in subject.declaration.items() if k != "capabilities"}
        values = "; ".join(f"{key}={value}" for key, value in declared.items()) or "the defaults"
        of_kind = f" ({kind})" if shared[name] > 1 else ""
        lines.append(f"- **{name}**{of_kind} {subject.version}: declares {values}")
    return lines


def _word(cell: Status | None) -> str:
    if cell is None:
        return ""
    if cell is Status.NOT_CLAIMED:
        return "-"
    return f"**{cell}**" if cell in (Status.FAIL, Status.ERROR) else str(cell)
