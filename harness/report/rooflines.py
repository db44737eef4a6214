"""Kernels beside the roofline: the records of the kernel benchmark, a row for each shape.

*Of floor* is measured / floor, by the copies and products of the same run: 1 is as fast as those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvassay.harness.record import Metric, Record
from kvassay.harness.report.measured import shown
from kvassay.harness.report.section import Section, Table

SUITE = "kernels"
LATENCY, FLOOR = "latency, ", "latency / floor, "


def section(records: Iterable[Record]) -> Iterator[Section]:
    """A table for each device, of the newest record of each kernel; none without records."""
    devices: dict[str, dict[str, dict[str, Metric]]] = {}
    for record in records:
        if record.suite == SUITE:
            kernels = devices.setdefault(record.options.get("device", "unknown"), {})
            kernels[record.subject.name] = {one.name: one for one in record.metrics}
    if devices:
        yield Section(
            "rooflines",
            "Kernels beside the roofline",
            "Median latency, and how many times the floor it is: what a plain copy or matrix "
            "product of that size took in the same run.",
            [_table(device, kernels) for device, kernels in devices.items()],
        )


def _table(device: str, kernels: dict[str, dict[str, Metric]]) -> Table:
    names = sorted(kernels)
    shapes = list(
        dict.fromkeys(
            name.removeprefix(LATENCY)
            for metrics in kernels.values()
            for name in metrics
            if name.startswith(LATENCY)
        )
    )
    headings = ["shape", *(part for name in names for part in (name, f"{name}, of floor"))]
    rows = [
        (
            shape,
            *(
                _value(kernels[name].get(f"{kind}{shape}"))
                for name in names
                for kind in (LATENCY, FLOOR)
            ),
        )
        for shape in shapes
    ]
    return Table(device, headings, rows)


def _value(metric: Metric | None) -> str:
    if metric is None or metric.value is None:
        return "-"
    return shown(metric.value, metric.unit)
