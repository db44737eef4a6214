"""``kvassay gate``: may head be merged?

Exit status: 0 PASS, 1 FAIL, 2 INCONCLUSIVE, 3 for a wrong call or two sides that cannot be
compared, 130 if it was interrupted.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn
from uuid import uuid4

import typer

from kvassay.harness.gate.parts import PARTS, ROUNDS

STATUS = {"PASS": 0, "FAIL": 1, "INCONCLUSIVE": 2}
"""By `deciding.Decision`, which is not imported before there is one."""
USAGE_ERROR, INTERRUPTED = 3, 130


def gate(
    base: Annotated[str, typer.Option(help="implementation before the change")],
    head: Annotated[str, typer.Option(help="and after it: a name, ./file.py, package.module")],
    base_path: Annotated[
        Path | None, typer.Option(help="folder from which base's modules are imported first")
    ] = None,
    head_path: Annotated[Path | None, typer.Option(help="the same for head")] = None,
    base_python: Annotated[str, typer.Option(help="interpreter of base")] = sys.executable,
    head_python: Annotated[str, typer.Option(help="interpreter of head")] = sys.executable,
    base_name: Annotated[str, typer.Option(help="which, where a file registers several")] = "",
    head_name: Annotated[str, typer.Option(help="the same for head")] = "",
    only: Annotated[
        list[str] | None, typer.Option(help=f"one of {', '.join(PARTS)}; repeat")
    ] = None,
    rounds: Annotated[int, typer.Option(help="pairs of processes to time", min=1)] = ROUNDS,
    examples: Annotated[int | None, typer.Option(help="of each suite", min=1)] = None,
    thresholds: Annotated[Path | None, typer.Option(help="limits (TOML)")] = None,
    record: Annotated[Path | None, typer.Option(help="write records into this folder")] = None,
) -> None:
    """Compare an implementation before and after a change, side by side on this machine."""
    from rich.console import Console
    from rich.progress import Progress

    from kvassay.harness.gate import telling
    from kvassay.harness.gate.gate import NotComparable
    from kvassay.harness.gate.gate import gate as compare
    from kvassay.harness.gate.sides import Side, SideFailed
    from kvassay.harness.gate.thresholds import DEFAULT, BadThresholds, load
    from kvassay.harness.record import write

    parts = only or list(PARTS)
    if set(parts) - set(PARTS):
        _fail(f"only: expected some of {', '.join(PARTS)}, got {', '.join(parts)}")
    for path in (base_path, head_path):
        if path is not None and not path.is_dir():
            _fail(f"{path}: no such folder")
    options = ("--examples", str(examples)) if examples else ()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("gate", total=rounds + 3)
        try:
            result = compare(
                Side("base", base, base_name, base_path, base_python),
                Side("head", head, head_name, head_path, head_python),
                load(thresholds or DEFAULT),
                parts=parts,
                rounds=rounds,
                assay_options=options,
                watch=lambda what: progress.update(bar, advance=1, description=what),
            )
        except (NotComparable, SideFailed, BadThresholds, ValueError) as error:
            progress.stop()
            _fail(str(error))
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
    telling.show(result, Console())
    if record is not None:
        asked = {"gate": uuid4().hex, "rounds": str(rounds), "parts": ",".join(parts)}
        for one in telling.records(result, asked):
            write(one, record)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        with Path(summary).open("a", encoding="utf-8") as out:
            out.write(telling.markdown(result))
    raise typer.Exit(STATUS[result.decision])


def _fail(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(USAGE_ERROR)
