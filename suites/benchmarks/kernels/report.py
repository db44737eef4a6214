"""The table, the records and the chart of a run.

``of floor`` is measured / floor by the ceilings measured in the same run: 1 is what a plain copy or
product reaches. Less than 1 means that the caches were not read from memory: the sample is marked
and not to be used. ``of contiguous`` is paged / contiguous.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvassay.harness.environment import capture
from kvassay.harness.record import Direction, Metric, Record, Subject, write
from kvassay.harness.report import style
from kvassay.harness.roofline import bound, floor, work
from kvassay.suites.benchmarks.kernels.measure import Row, Table

BASELINE = "sdpa-contiguous"
SUITE = "kernels"


def line(table: Table, row: Row) -> str:
    """A row in words, as it is measured."""
    parts = [f"{name} {_micro(timed.median)}" for name, timed in row.timed.items()]
    parts += [f"{name}: not offered" for name in row.not_offered]
    return f"{row.shape.name}: floor {_micro(_floor(table, row))}; " + "; ".join(parts)


def page(table: Table) -> str:
    """A page in Markdown."""
    names = sorted({name for row in table.rows for name in (*row.timed, *row.not_offered)})
    head = "| shape | bound | floor |" + "".join(
        f" {name} | of floor | of contiguous |" for name in names
    )
    rule = "|---" * (3 + 3 * len(names)) + "|"
    lines = [
        f"Measured on {table.device}: copies at {table.ceiling.bandwidth / 1e9:.0f} GB/s, matrix "
        f"products at {table.ceiling.matmul / 1e12:.2f} TFLOP/s. Medians.",
        "",
        head,
        rule,
        *(_row(table, row, names) for row in table.rows),
    ]
    reasons = sorted(
        f"* {name}, {row.shape.name}: {why}"
        for row in table.rows
        for name, why in row.not_offered.items()
    )
    return "\n".join([*lines, "", "Not measured:", "", *(reasons or ["* nothing"])]) + "\n"


def _row(table: Table, row: Row, names: list[str]) -> str:
    least = _floor(table, row)
    cells = [row.shape.name, bound(work(row.shape), table.ceiling), _micro(least)]
    base = row.timed[BASELINE].median if BASELINE in row.timed else None
    for name in names:
        median = row.timed[name].median if name in row.timed else None
        cells.append(_micro(median))
        cells.append(_ratio(median, least) + (" (cached)" if median and median < least else ""))
        cells.append(_ratio(median, base))
    return "| " + " | ".join(cells) + " |"


def _floor(table: Table, row: Row) -> float:
    return floor(work(row.shape), table.ceiling)


def _micro(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e6:.1f} us"


def _ratio(value: float | None, base: float | None) -> str:
    return "-" if value is None or base is None else f"{value / base:.2f}"


def keep(table: Table, folder: Path) -> None:
    """Write one record per contender, ``kernels.md`` and its chart, as SVG and PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in sorted({name for row in table.rows for name in row.timed}):
        write(_record(table, name), folder)
    (folder / "kernels.md").write_text("# Kernels\n\n" + page(table), encoding="utf-8")
    for file, content in style.files(_chart(table), SUITE).items():
        (folder / file).write_bytes(content)


def _record(table: Table, name: str) -> Record:
    metrics = []
    for row in table.rows:
        timed = row.timed.get(name)
        if timed is None:
            continue
        median, least = timed.median, _floor(table, row)
        of_floor = None if median is None else median / least
        metrics += [
            Metric(
                name=f"latency, {row.shape.name}",
                unit="s",
                direction=Direction.LOWER,
                value=median,
                samples=timed.seconds,
            ),
            Metric(
                name=f"latency / floor, {row.shape.name}",
                unit="1",
                direction=Direction.LOWER,
                value=of_floor,
            ),
        ]
    for label, unit, value in (
        ("copy bandwidth", "B/s", table.ceiling.bandwidth),
        ("matrix product rate", "FLOP/s", table.ceiling.matmul),
    ):
        metrics.append(Metric(name=label, unit=unit, direction=Direction.HIGHER, value=value))
    return Record(
        suite=SUITE,
        subject=Subject(
            name=name, kind="PagedAttention", version="", reference=name, declaration={}
        ),
        environment=capture(seed="0"),
        options={"device": table.device},
        metrics=metrics,
    )


def _chart(table: Table) -> Any:
    """Measured / floor by shape, a line of points per contender."""
    shapes = [row.shape.name for row in table.rows]
    figure, (axes,) = style.panels(1, 9, 1.5 + 0.32 * len(shapes))
    for number, name in enumerate(sorted({name for row in table.rows for name in row.timed})):
        points = [
            (row.timed[name].median or 0.0) / _floor(table, row)
            for row in table.rows
            if name in row.timed
        ]
        places = [index for index, row in enumerate(table.rows) if name in row.timed]
        look = {"color": style.colour(number), "marker": style.marker(number)}
        axes.plot(points, places, linestyle="none", label=name, **look)
    axes.axvline(1.0, color=style.INK, linewidth=1)
    axes.set_yticks(range(len(shapes)), shapes)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("measured / floor (1: as fast as a plain copy or product)")
    style.legend(axes)
    return figure
