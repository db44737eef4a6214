"""What a measurement leaves: a table for people, a record, and the timelines as they were seen."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvassay.harness.environment import capture
from kvassay.harness.load.session import Report
from kvassay.harness.metrics.metric import PERCENTILES, Measured, Per
from kvassay.harness.metrics.timeline import Timeline
from kvassay.harness.record import Direction, Metric, Record, Subject
from kvassay.harness.serving.http import without_password

SUITE = "bench-serve"


def show(report: Report, console: Console) -> None:
    """The table, then errors and what must be known beside it."""
    table = Table(show_edge=False, pad_edge=False)
    for heading in ("metric", "unit", "value", *(f"p{p}" for p in PERCENTILES), "samples"):
        table.add_column(heading, justify="left" if heading in ("metric", "unit") else "right")
    for one in report.measured.values():
        if one.value is not None:
            table.add_row(*_row(one))
    console.print(table)
    missing = [f"{one.tag} ({one.reason})" for one in report.measured.values() if one.reason]
    console.print(f"not measured: {escape(', '.join(missing))}")
    for error, count in report.errors.most_common():
        console.print(f"[red]{count} x {escape(error)}[/]", highlight=False)
    lost = len(report.run.timelines) - len(report.run.complete)
    if lost:
        others = f"{lost} requests are not complete, and latencies are of the others"
        console.print(f"{others}; {_all(report)}")
    for note in report.notes:
        console.print(f"note: {escape(note)}", highlight=False)
    if report.interrupted:
        console.print("interrupted: these are the results until then")


def _row(one: Measured) -> tuple[str, ...]:
    if one.per is Per.RUN:
        return one.tag, one.unit, _number(one.value), "", "", "", ""
    marks = [_number(one.percentile(percent)) for percent in PERCENTILES]
    return one.tag, one.unit, "", *marks, f"{len(one.samples)} per {one.per}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _all(report: Report) -> str:
    """Percentiles that count a request which failed as one that takes for ever."""
    told = []
    for tag in ("ttft", "e2e"):
        worst = report.measured[tag].percentile_of_all(99)
        told.append(f"{tag} p99 of all {'never' if worst is None else f'{worst:.4g} s'}")
    return ", ".join(told)


def record_of(report: Report, model: str, url: str, options: Mapping[str, object]) -> Record:
    """The record, with raw samples; times of requests are relative to the first intended start."""
    endings = (f"requests_{name}" for name in ("complete", "truncated", "failed", "cancelled"))
    return Record(
        suite=SUITE,
        subject=Subject(
            name=model.replace("/", "_"),
            kind="Engine",
            version="unknown",
            reference=without_password(url),
            declaration={},
        ),
        environment=capture(str(options.get("seed", ""))),
        options={name: str(value) for name, value in options.items() if value is not None},
        counters={tag: int(report.measured[tag].value or 0) for tag in endings},
        metrics=[*_metrics(report), *_times(report)],
        findings=[
            *({"error": error, "requests": count} for error, count in report.errors.items()),
            *({"note": note} for note in report.notes),
        ],
    )


def _metrics(report: Report) -> Iterator[Metric]:
    for one in report.measured.values():
        yield _metric(one.tag, one, one.value, list(one.samples))
        if one.per is not Per.RUN:
            for percent in PERCENTILES:
                yield _metric(f"{one.tag}_p{percent}", one, one.percentile(percent), [])


def _metric(name: str, one: Measured, value: float | None, samples: list[float]) -> Metric:
    return Metric(name=name, unit=one.unit, direction=one.direction, value=value, samples=samples)


def _times(report: Report) -> Iterator[Metric]:
    lines = report.run.timelines
    start = min((one.intended for one in lines), default=0.0)
    intended = [one.intended - start for one in lines]
    sent = [one.sent - start for one in lines if one.sent is not None]
    for name, samples in (("intended", intended), ("sent", sent)):
        yield Metric(name=name, unit="s", direction=Direction.NEITHER, value=None, samples=samples)


def write_timelines(report: Report, path: Path) -> None:
    """All that was seen, a request a line: times in seconds of one monotonic clock."""
    with path.open("w", encoding="utf-8") as out:
        for one in report.run.timelines:
            out.write(json.dumps(_as_dict(one)) + "\n")


def _as_dict(one: Timeline) -> dict[str, Any]:
    return {
        "request": one.request,
        "prompt_tokens": one.prompt_tokens,
        "intended": one.intended,
        "sent": one.sent,
        "ended": one.ended,
        "ending": one.ending.value,
        "error": one.error,
        "declared_cached": one.declared_cached,
        "output_tokens": one.output_tokens,
        "events": [
            {
                "time": event.time,
                "tokens": list(event.tokens),
                "finish_reason": event.finish_reason,
                "cached_tokens": event.cached_tokens,
            }
            for event in one.events
        ],
    }
