"""What a gate leaves: tables for people, a summary in Markdown, records with every sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median_high

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvassay.harness.gate.deciding import Change, Decision
from kvassay.harness.gate.gate import Result, Timed
from kvassay.harness.record import Direction, Metric, Record

SUITE = "gate"
STYLES = {Decision.PASS: "green", Decision.FAIL: "bold red", Decision.INCONCLUSIVE: "magenta"}
VERDICTS = ("invariant", "base", "head", "", "why")
COUNTERS = ("counter", "base", "head", "", "why")
TIMES = ("time, us", "base", "head", "head / base", "at least", "at most", "limit", "")

Rows = list[tuple[str, ...]]


def tables(result: Result) -> Iterator[tuple[Sequence[str], Rows]]:
    """Headings and rows, a table for each part that was looked at."""
    if result.verdicts:
        yield (
            VERDICTS,
            [
                (one.invariant, one.base or "-", one.head or "-", one.decision.value, one.why)
                for one in result.verdicts
            ],
        )
    if result.counters:
        yield (
            COUNTERS,
            [
                (one.name, _count(one.base), _count(one.head), one.decision.value, one.why)
                for one in result.counters
            ],
        )
    if result.times:
        yield TIMES, [_time(one) for one in result.times]


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _time(one: Timed) -> tuple[str, ...]:
    base, head = (median_high([pair[side] for pair in one.pairs]) for side in (0, 1))
    found: Change = one.change
    return (
        one.name,
        f"{1e6 * base:,.1f}",
        f"{1e6 * head:,.1f}",
        f"{found.ratio:.3f}",
        f"{found.low:.3f}",
        f"{found.high:.3f}",
        f"{1 + one.slower:g}",
        one.decision.value,
    )


def summary(result: Result) -> Iterator[str]:
    """In words, line by line; the last one is the verdict."""
    for side, one in (("base", result.base), ("head", result.head)):
        yield f"{side}: {one.subject.name} {one.subject.version}, {one.origin}"
    for remark in result.remarks:
        yield f"note: {remark}"
    if result.judged:
        same = result.judged - len(result.verdicts)
        yield f"verdicts: {result.judged} compared, {same} the same and not broken"
    if result.times:
        rounds = result.times[0].change.rounds
        yield f"times: {len(result.times)}, {rounds} rounds, each in new processes, taking turns"
    yield f"{result.decision.value}: {_counted(list(result.decisions)) or 'nothing changed'}"


def _counted(found: list[Decision]) -> str:
    told = {
        Decision.FAIL: "worse",
        Decision.INCONCLUSIVE: "not known",
        Decision.PASS: "within limits",
    }
    return ", ".join(f"{found.count(d)} {words}" for d, words in told.items() if d in found)


def show(result: Result, console: Console) -> None:
    """For a terminal."""
    for headings, rows in tables(result):
        table = Table(show_edge=False, pad_edge=False)
        numbers = {"base", "head", "head / base", "at least", "at most", "limit"}
        for heading in headings:
            table.add_column(heading, justify="right" if heading in numbers else "left")
        for row in rows:
            table.add_row(*(_styled(cell) for cell in row))
        console.print(table)
        console.print()
    for line in summary(result):
        console.print(escape(line), highlight=False, soft_wrap=True)


def _styled(cell: str) -> str:
    style = {decision.value: style for decision, style in STYLES.items()}.get(cell)
    return f"[{style}]{cell}[/]" if style else escape(cell)


def markdown(result: Result) -> str:
    """For a job's summary."""
    lines = [f"## kvassay gate: {result.decision.value}", ""]
    for headings, rows in tables(result):
        lines += [_row(headings), _row(["---"] * len(headings)), *map(_row, rows), ""]
    return "\n".join([*lines, *(f"- {line}" for line in summary(result)), ""])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def records(result: Result, options: dict[str, str]) -> Iterator[Record]:
    """One for each side; the same `gate` in the options says that they belong together."""
    for place, opened in enumerate((result.base, result.head)):
        side = ("base", "head")[place]
        counters = {
            one.name: count
            for one in result.counters
            if (count := (one.base, one.head)[place]) is not None
        }
        yield Record(
            suite=SUITE,
            subject=opened.subject,
            environment=opened.environment,
            options={**options, "side": side, "decision": result.decision.value},
            counters=counters,
            metrics=[
                Metric(
                    name=one.name,
                    unit="s",
                    direction=Direction.LOWER,
                    value=median_high([pair[place] for pair in one.pairs]),
                    samples=[pair[place] for pair in one.pairs],
                )
                for one in result.times
            ],
            findings=[
                {
                    "invariant": one.invariant,
                    "base": one.base,
                    "head": one.head,
                    "decision": one.decision.value,
                    "why": one.why,
                }
                for one in result.verdicts
            ],
        )
