"""The control plane's records as charts: how a request's life grows, and what a step costs.

Who was measured side by side took turns in one process. Where an implementation stands beside
several others it has a line for each, and says beside whom: lines of one set are to be compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
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


Who = tuple[str, str]
"""An implementation, and the contenders that it was measured with."""


def charts(records: Iterable[Record]) -> Iterator[Chart]:
    """A chart for each growth that was measured, implementations side by side."""
    found: dict[str, dict[Who, dict[float, Metric]]] = {}
    labels: dict[str, tuple[str, str]] = {}
    for record in records:
        if record.suite != SUITE:
            continue
        size, who = record.options.get("block_size", "?"), _who(record)
        for metric in record.metrics:
            point = POINT.fullmatch(metric.name)
            axes = point and AXES.get((point["experiment"], point["rest"], point["stage"]))
            if not point or not axes or not metric.samples:
                continue
            name = f"control-{axes[0]}-block-{size}"
            labels[name] = axes[1], f"{axes[2]}, blocks of {size}"
            # Records come by age: the newest run of a set stands.
            found.setdefault(name, {}).setdefault(who, {})[float(point["at"])] = metric
    known = sorted({who for lines in found.values() for who in lines})
    for name, lines in sorted(found.items()):
        x, title = labels[name]
        drawn = [_line(_named(who, lines), lines[who], known.index(who)) for who in sorted(lines)]
        yield Chart(
            name,
            f"A request's life in the cache manager: {title}",
            x,
            "µs per request",
            drawn,
            log_x=True,
            log_y=True,
            note="Medians; the band is from the first to the third quartile of the samples.",
        )


def _who(record: Record) -> Who:
    return record.subject.name, record.options.get("beside", record.subject.name)


def _named(who: Who, lines: Iterable[Who]) -> str:
    """Its name, and beside whom, where it has several lines."""
    name, beside = who
    if sum(other == name for other, _ in lines) == 1:
        return name
    others = [other for other in beside.split(",") if other != name]
    return f"{name} (beside {', '.join(others) or 'nobody'})"


def _line(name: str, points: Mapping[float, Metric], place: int) -> Line:
    where = sorted(points)
    # Twice, as there are no quartiles of one sample; of several they stay what they are.
    cut = [quantiles(points[at].samples * 2, n=4, method="inclusive") for at in where]
    return Line(
        name,
        where,
        [1e6 * middle for _, middle, _ in cut],
        [1e6 * low for low, _, _ in cut],
        [1e6 * high for _, _, high in cut],
        place,
    )
