"""ServeGen's client profiles: not requests but distributions, one client per line.

Arrivals are given per window of 600 s (rate, coefficient of variation, family of the gaps and its
two parameters), lengths per window of 21,600 s, as strings that hold a ``{value: probability}``
literal. They are parsed as just that, and nothing in a file is ever evaluated. A window without
traffic has no family, or an empty table.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from kvassay.harness.traces.reading import Opener, Row, json_rows, open_plain

FAMILIES = ("Gamma", "Weibull", "")
RATE_WINDOW = 600.0
LENGTH_WINDOW = 21600.0
CLOSE = 1e-6
"""How far the sum of probabilities may be from 1."""


@dataclass(frozen=True)
class Table:
    """A distribution over finitely many values."""

    values: tuple[float, ...]
    cumulative: tuple[float, ...]

    def mean(self) -> float:
        """The expectation."""
        below = (0.0, *self.cumulative[:-1])
        steps = zip(self.values, self.cumulative, below, strict=True)
        return math.fsum(value * (upto - from_) for value, upto, from_ in steps)

    def draw(self, rng: Random) -> float:
        """One value."""
        place = bisect_right(self.cumulative, rng.random() * self.cumulative[-1])
        return self.values[min(place, len(self.values) - 1)]


@dataclass(frozen=True)
class Window:
    """Arrivals in 600 s from `start` (s)."""

    start: float
    rate: float
    """Requests per second."""
    cv: float
    """Coefficient of variation of the gaps."""
    family: str | None
    """Distribution of the gaps; None without traffic."""
    parameters: tuple[float, float]


@dataclass(frozen=True)
class Lengths:
    """Token counts in 21,600 s from `start` (s)."""

    start: float
    input_tokens: Table
    output_tokens: Table
    reason_ratio: Table
    """Share of the output that is reasoning."""


@dataclass(frozen=True)
class Client:
    """One client's profile."""

    client: int
    mean_rate: float
    """Requests per second over the whole trace."""
    windows: tuple[Window, ...]
    lengths: tuple[Lengths, ...]
    """Windows with traffic only."""


def read(path: Path, opened: Opener = open_plain) -> Iterator[Client]:
    """The clients, in the order of the file."""
    for row in json_rows(path, opened):
        yield Client(
            client=row.whole("client"),
            mean_rate=row.number("mean_rate"),
            windows=tuple(_windows(row)),
            lengths=tuple(_lengths(row)),
        )


def _windows(row: Row) -> Iterator[Window]:
    names = ("start", "rate", "cv", "family", "first", "second")
    before = -math.inf
    for cells in row.listed("trace"):
        if not isinstance(cells, list) or len(cells) != len(names):
            row.bad(f"trace: expected rows of {len(names)} cells, got {cells!r}")
        cell = Row(row.path, row.line, dict(zip(names, cells, strict=True)))
        start, family = cell.number("start"), cell.text("family")
        if start <= before or start % RATE_WINDOW:
            row.bad(f"trace: expected increasing multiples of {RATE_WINDOW:g} s, got {start:g}")
        before = start
        if family not in FAMILIES:
            row.bad(f"trace: expected one of the families {FAMILIES}, got {family!r}")
        parameters = (cell.number("first"), cell.number("second"))
        yield Window(start, cell.number("rate"), cell.number("cv"), family or None, parameters)


def _lengths(row: Row) -> Iterator[Lengths]:
    windows = row.within(row.get("dataset"), "dataset")
    for start in windows.fields:
        if not start.isdigit() or int(start) % LENGTH_WINDOW:
            row.bad(f"dataset: expected multiples of {LENGTH_WINDOW:g} s, got {start!r}")
        window = windows.within(windows.get(start), f"dataset {start}")
        names = ("input_tokens", "output_tokens", "reason_ratio")
        tables = [_table(window, name) for name in names]
        found = [table for table in tables if table is not None]
        if len(found) == len(names):
            yield Lengths(float(start), *found)
        elif found:
            row.bad(f"dataset {start}: expected all of {', '.join(names)} or none")


def _table(row: Row, name: str) -> Table | None:
    """A literal like ``{4: 0.25, 5: 0.75}``; None for the empty one."""
    text = row.text(name).strip()
    if not (text.startswith("{") and text.endswith("}")):
        row.bad(f"{name}: expected {{value: probability, ...}}, got {text[:40]!r}")
    if not text[1:-1].strip():
        return None
    values, cumulative, total = [], [], 0.0
    for entry in text[1:-1].split(","):
        try:
            value, share = map(float, entry.split(":"))
        except ValueError:
            row.bad(f"{name}: expected value: probability, got {entry.strip()!r}")
        if not (0 <= value < math.inf and 0 <= share <= 1 + CLOSE):
            row.bad(f"{name}: expected a value >= 0 and its probability, got {entry.strip()!r}")
        total += share
        values.append(value)
        cumulative.append(total)
    if abs(total - 1) > CLOSE:
        row.bad(f"{name}: expected probabilities that add up to 1, got {total:g}")
    return Table(tuple(values), tuple(cumulative))
