"""``kvassay report``: records and published results as one HTML file.

Exit status: 0, or 2 for a wrong call or nothing to show.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvassay.harness.wrong_call import fail


def report(
    records: Annotated[
        list[Path] | None, typer.Argument(help="record files, or folders of them")
    ] = None,
    results: Annotated[Path, typer.Option(help="folder of published results")] = Path("results"),
    output: Annotated[Path, typer.Option(help="file of the page")] = Path("report.html"),
    charts: Annotated[
        Path | None, typer.Option(help="also write the charts as SVG and PNG into this folder")
    ] = None,
) -> None:
    """Write one page: what breaks what, how to see it again, what it costs."""
    from kvassay.harness.record import BadRecord, read_all
    from kvassay.harness.report import growth, style
    from kvassay.harness.report.building import NothingToShow, page
    from kvassay.harness.report.charts import figure

    try:
        found = read_all([*(records or []), *stored(results)])
        text = page(found, results)
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")
        if charts is not None:
            charts.mkdir(parents=True, exist_ok=True)
            for chart in growth.charts(found):
                for name, content in style.files(figure(chart), chart.name).items():
                    (charts / name).write_bytes(content)
    except (BadRecord, NothingToShow, OSError) as error:
        fail(str(error))
    typer.echo(f"report: {output.resolve()}")


def stored(results: Path) -> list[Path]:
    """Folders of published records."""
    if not results.is_dir():
        return []
    folders = (path for path in sorted(results.iterdir()) if path.is_dir())
    return [path for path in folders if path.name not in OTHERS and any(path.glob("*.json"))]


OTHERS = ("schema", "counterexamples", "findings", "charts", "releases")
"""Folders of results that hold no records, or records of more than one version."""
