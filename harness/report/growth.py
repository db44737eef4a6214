"""The control plane's records as charts: how a request's life grows, and what a step costs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from statistics import quantiles

from kvassay.harness.record import Metric, Record
from kvassay.harness.report.charts import Chart, Line

SUITE = "control"
POINT = re.compile(r"(?P<experiment>\w+), (?P<at>\d+) (?:\w+|%)(?P<rest>[^:]*): (?P<stage>.+)")
AXES = {
    ("pool", ", hot", "life"): ("pool", "blocks in the pool", "prompts that are hot"),
    ("pool", ", random", "life"): ("pool-random", "blocks in the pool", "any prompt"),
    ("depth", "", "life"): ("depth", "nodes of the path", "a path with branches"),
    ("prompt", "", "life"): ("prompt", "resident tokens", "a prompt of growing length"),
}
"""Experiment, what follows the place, and the stage: file, axis and title."""


def charts(records: Iterable[Record]) -> Iterator[Chart]:
    """A chart for each growth that was measured, implementations side by side."""
    found: dict[str, dict[str, list[tuple[float, Metric]]]] = {}
    labels: dict[str, tuple[str, str]] = {}
    for record in records:
        if record.suite != SUITE:
            continue
        for metric in record.metrics:
            point = POINT.fullmatch(metric.name)
            axes = point and AXES.get((point["experiment"], point["rest"], point["stage"]))
            if not point or not axes or not metric.samples:
                continue
            name = f"control-{axes[0]}-block-{record.options.get('block_size', '')}"
            labels[name] = axes[1], f"{axes[2]}, blocks of {record.options.get('block_size', '?')}"
            by_name = found.setdefault(name, {})
            # Records come by age: the newest run of an implementation stands.
            points = dict(by_name.get(record.subject.name, ()))
            points[float(point["at"])] = metric
            by_name[record.subject.name] = sorted(points.items())
    names = sorted({who for by_name in found.values() for who in by_name})
    for name, by_name in sorted(found.items()):
        x, title = labels[name]
        lines = [_line(who, points, names.index(who)) for who, points in sorted(by_name.items())]
        yield Chart(
            name,
            f"A request's life in the cache manager: {title}",
            x,
            "µs",
            lines,
            log_x=True,
            log_y=True,
            note="Medians; the band is from the first to the third quartile of the samples.",
        )


def _line(name: str, points: list[tuple[float, Metric]], place: int) -> Line:
    # Twice, as there are no quartiles of one sample; of several they stay what they are.
    cut = [quantiles(metric.samples * 2, n=4, method="inclusive") for _, metric in points]
    return Line(
        name,
        [at for at, _ in points],
        [1e6 * middle for _, middle, _ in cut],
        [1e6 * low for low, _, _ in cut],
        [1e6 * high for _, _, high in cut],
        place,
    )
