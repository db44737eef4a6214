"""``kvassay sweep``: hits over a grid of traces, capacities, block sizes, policies and managers.

Exit status: 0 if every cell has a result, 1 if some have none, 2 for a wrong call, 130 if it was
interrupted. The folder keeps what was counted; the same command goes on from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from kvassay.harness.sweep.cells import Cell, Counted

USAGE_ERROR, INTERRUPTED = 2, 130
HEADINGS = ("trace", "block size", "capacity", "by", "requests", "refused", "hits, %", "evicted")


def sweep(
    output: Annotated[Path, typer.Option(help="folder of the results; what it has is not redone")],
    trace: Annotated[list[str], typer.Option(help="name, or FORMAT:PATH; repeat")],
    capacity: Annotated[list[int], typer.Option(help="tokens; repeat", min=1)],
    block_size: Annotated[list[int] | None, typer.Option(help="tokens (16); repeat", min=1)] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="lru, leaf-lru, optimum or infinite; repeat")
    ] = None,
    impl: Annotated[list[str] | None, typer.Option(help="a cache manager; repeat")] = None,
    concurrency: Annotated[int, typer.Option(help="live requests of a manager", min=1)] = 1,
    limit: Annotated[int, typer.Option(help="requests of a trace (all)", min=0)] = 0,
    scheduler: Annotated[
        str | None, typer.Option(help="of a Dask cluster, tcp://HOST:PORT (in this process)")
    ] = None,
    workers: Annotated[int, typer.Option(help="threads, without a scheduler", min=1)] = 1,
) -> None:
    """Count hits over a grid, on one machine or a Dask cluster."""
    from rich.console import Console
    from rich.progress import Progress

    from kvassay.harness.sweep.cells import BadGrid, grid
    from kvassay.harness.sweep.keeping import Kept
    from kvassay.harness.sweep.running import Failed, NoCluster, connected, run

    console, failed = Console(), list[Failed]()
    try:
        cells = grid(
            trace, block_size or [16], capacity, policy or [], impl or [],
            concurrency=concurrency, limit=limit,
        )  # fmt: skip
        kept = Kept(output)
        missing = [cell for cell in cells if cell not in kept.found]
        with Progress(console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task("cells", total=len(cells), completed=len(cells) - len(missing))

            def keep(cell: Cell, counted: Counted) -> None:
                kept.add(cell, counted)
                progress.advance(bar)

            if missing:
                with connected(scheduler, workers) as client:
                    failed = run(client, missing, keep)
    except (BadGrid, NoCluster, OSError) as error:
        _fail(str(error))
    except KeyboardInterrupt:
        console.print(f"interrupted: {output} keeps what was counted, and the same command goes on")
        raise typer.Exit(INTERRUPTED) from None
    _show(console, {cell: kept.found[cell] for cell in cells if cell in kept.found})
    for one in failed:
        console.print(f"[red]no result:[/] {one.cell.key}: {one.error}", highlight=False)
    console.print(f"table: {kept.write_table(cells)}", highlight=False)
    raise typer.Exit(1 if failed else 0)


def _show(console: Console, found: Mapping[Cell, Counted]) -> None:
    from rich.table import Table

    table = Table(show_edge=False, pad_edge=False)
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in ("trace", "by") else "right")
    for cell, counted in found.items():
        evicted = counted.evicted_blocks
        table.add_row(
            cell.trace,
            str(cell.block_size),
            f"{cell.capacity:,}",
            cell.impl or cell.policy,
            f"{counted.requests:,}",
            f"{counted.refused:,}",
            f"{100 * counted.hit_rate:.2f}",
            "-" if evicted is None else f"{evicted:,}",
        )
    console.print(table)


def _fail(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(USAGE_ERROR)
