"""The command ``kvassay``: list implementations, replay a scenario, merge records, measure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from kvassay.harness.attention.case import BadCase
from kvassay.harness.bench import bench
from kvassay.harness.contract import ContractError
from kvassay.harness.explain import Told
from kvassay.harness.gate.command import gate
from kvassay.harness.load.command import serve
from kvassay.harness.pairs.pairing import pairing
from kvassay.harness.registry import (
    Registration,
    Unavailable,
    UnknownImplementation,
    entry_points,
    find,
)
from kvassay.harness.report.command import report
from kvassay.harness.scenario import BadScenario, text_of
from kvassay.harness.session import without_inspection
from kvassay.harness.showing import declared_values
from kvassay.harness.subjects import teller_of
from kvassay.harness.sweep.command import sweep
from kvassay.harness.violation import Crash
from kvassay.harness.wrong_call import fail

LEAST_BESIDE_NAMES = 50
"""Columns for the rest of a listed line: a name is there to be copied, and never broken."""

app = typer.Typer(help="Assay paged KV caches and prefix caches.", no_args_is_help=True)

bench.command("serve")(serve)
app.add_typer(bench, name="bench")
app.command("gate")(gate)
app.command("report")(report)
app.command("sweep")(sweep)


@app.command("list")
def list_implementations(
    impl: Annotated[
        list[str] | None, typer.Option(help="also these: ./file.py or package.module")
    ] = None,
) -> None:
    """Show what can be assayed: kind, version, capabilities and non-default declarations."""
    found = _all(impl or [])
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("name", no_wrap=True)
    for heading in ("kind", "version", "capabilities", "declares"):
        table.add_column(heading, overflow="fold")
    for registration in found:
        shown = declared_values(registration.declaration)
        capabilities = shown.pop("capabilities", "-").replace(",", ", ")
        table.add_row(
            registration.name,
            registration.kind.__name__,
            registration.version,
            capabilities,
            "\n".join(f"{name}={value}" for name, value in shown.items()) or "-",
        )
    longest = max((len(registration.name) for registration in found), default=0)
    console = Console()
    console.width = max(console.width, longest + LEAST_BESIDE_NAMES)
    console.print(table)


def _all(references: list[str]) -> list[Registration]:
    found = {}
    for reference in [*sorted(entry_points()), *references]:
        for registration in _found(reference):
            found[registration.kind, registration.name] = registration
    return list(found.values())


def _found(reference: str) -> list[Registration]:
    try:
        return find(reference)
    except (UnknownImplementation, ImportError, ValueError, SyntaxError) as error:
        fail(f"--impl {reference}: {error}")


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="a scenario file")],
    impl: Annotated[
        list[str],
        typer.Option(
            help="implementation: a name, ./file.py or a module; for a pair its two halves"
        ),
    ],
    no_inspection: Annotated[bool, typer.Option(help="use no capability that only looks")] = False,
) -> None:
    """Run a scenario and tell it step by step; exit status 1 if it shows a violation."""
    found = [registration for reference in impl for registration in _found(reference)]
    if _is_of_pair(file):
        raise typer.Exit(_replay_pairs(file, found))
    failed = False
    for registration, scenario in _fitting(file, found):
        chosen = registration
        if no_inspection:
            blind = without_inspection(registration.declaration)
            chosen = replace(registration, declaration=blind)
        told = Told()
        try:
            for line in teller_of(chosen.kind).explain(chosen, scenario, told):
                typer.echo(line)
        except (Unavailable, ValueError) as error:
            fail(str(error))
        failed = failed or told.verdict is not None
    raise typer.Exit(1 if failed else 0)


def _fitting(file: Path, found: list[Registration]) -> list[tuple[Registration, Any]]:
    """The implementations of the kind that the scenario is for, with the scenario."""
    fitting = []
    problem = f"{file}: nothing to replay it on"
    for registration in found:
        try:
            fitting.append((registration, teller_of(registration.kind).load(file)))
        except (BadCase, BadScenario, ContractError) as error:
            problem = str(error)
    return fitting or fail(problem)


def _is_of_pair(file: Path) -> bool:
    from kvassay.harness.pairs.scenario import FORMAT

    try:
        return f'"format": "{FORMAT}"' in text_of(file)
    except BadScenario as error:
        fail(str(error))


def _replay_pairs(file: Path, found: list[Registration]) -> int:
    """Tell the scenario of a pair for each manager with each kernel; the exit status."""
    asked = pairing(found)
    if not asked.pairs or asked.supplied:
        fail(f"{file}: the scenario of a pair: expected --impl for a manager and for a kernel")
    from kvassay.harness.pairs.explain import explain
    from kvassay.harness.pairs.scenario import load
    from kvassay.harness.pairs.session import Pair

    failed = False
    for manager, kernel in asked.pairs:
        told = Told()
        try:
            for line in explain(Pair(manager, kernel), load(file), told):
                typer.echo(line)
        except (Crash, Unavailable, ValueError) as error:
            fail(str(error))
        failed = failed or told.verdict is not None
    return 1 if failed else 0


@app.command()
def merge(
    records: Annotated[list[Path], typer.Argument(help="record files, or folders of them")],
    output: Annotated[
        Path | None, typer.Option(help="also write the table as Markdown to this file")
    ] = None,
    totals: Annotated[
        Path | None, typer.Option(help="also write how much was tried as Markdown to this file")
    ] = None,
) -> None:
    """Join records of several environments into one verdict table; the newest of each counts."""
    from kvassay.harness import totals as summed
    from kvassay.harness.record import BadRecord, read_all
    from kvassay.harness.verdict_table import as_markdown, as_text, merged

    try:
        found = read_all(records)
    except BadRecord as error:
        fail(str(error))
    verdicts = merged(found)
    if not verdicts:
        fail(f"no verdicts in {', '.join(str(path) for path in records)}")
    typer.echo(as_text(verdicts))
    if output is not None:
        output.write_text(as_markdown(verdicts, found), encoding="utf-8")
    if totals is not None:
        totals.write_text(summed.as_markdown(found), encoding="utf-8")


def main() -> None:
    """Entry point of the console script."""
    app()
