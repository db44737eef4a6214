"""Measured quantities: each with its unit, the number of samples and their spread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import quantiles

from kvassay.harness.record import Metric, Record

PREFIXES = ((1e-9, "n"), (1e-6, "µ"), (1e-3, "m"), (1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"))


@dataclass(frozen=True)
class Quantity:
    """One number of one implementation."""

    suite: str
    implementation: str
    version: str
    options: str
    name: str
    value: str
    number: float
    """To sort by."""
    spread: str
    """Quartiles, or a dash for a single value."""
    samples: int
    better: str


def quantities(records: Iterable[Record]) -> Iterator[Quantity]:
    """Every metric that was measured."""
    for record in records:
        told = ", ".join(f"{k} {v}" for k, v in record.options.items() if len(v) < 40)
        for metric in record.metrics:
            if metric.value is not None:
                yield _quantity(record, told, metric, metric.value)


def _quantity(record: Record, options: str, metric: Metric, value: float) -> Quantity:
    return Quantity(
        record.suite,
        record.subject.name,
        record.subject.version,
        options,
        metric.name,
        shown(value, metric.unit),
        value,
        spread(metric),
        len(metric.samples),
        str(metric.direction),
    )


def spread(metric: Metric) -> str:
    """First and third quartile of the samples."""
    if len(metric.samples) < 2:
        return "-"
    low, _, high = quantiles(metric.samples, n=4, method="inclusive")
    return f"{shown(low, metric.unit)} to {shown(high, metric.unit)}"


def shown(value: float, unit: str) -> str:
    """With a prefix for seconds and bytes, and the plain number for the rest."""
    if unit == "1":
        return f"{value:.4g}"
    if unit == "s" and value:
        scale, prefix = next(
            (pair for pair in reversed(PREFIXES[:4]) if abs(value) >= pair[0]), PREFIXES[0]
        )
        return f"{value / scale:.4g} {prefix}s"
    return f"{value:.5g} {unit}"
