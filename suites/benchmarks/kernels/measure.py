"""One shape, all contenders side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from kvassay.harness.roofline import Ceiling, Shape
from kvassay.harness.timing import Call, Timed, captured, side_by_side
from kvassay.suites.benchmarks.kernels.batches import batches
from kvassay.suites.benchmarks.kernels.contenders import NotOffered, Prepare


@dataclass
class Row:
    """What was measured on one shape."""

    shape: Shape
    timed: dict[str, Timed] = field(default_factory=dict)
    not_offered: dict[str, str] = field(default_factory=dict)
    """Why a contender has no number here."""


@dataclass
class Table:
    """A run: the device, its ceilings measured in the same run, and the rows."""

    device: str
    ceiling: Ceiling
    rows: list[Row] = field(default_factory=list)


def measure(
    shape: Shape,
    contenders: Mapping[str, Prepare],
    device: str,
    dtype: torch.dtype,
    *,
    seconds: float,
) -> Row:
    """Prepare every contender on every set of inputs, then time them in rounds."""
    row = Row(shape)
    sets = batches(shape, device, dtype)
    calls: dict[str, list[Call]] = {}
    for name, prepare in contenders.items():
        try:
            calls[name] = [captured(prepare(batch), device) for batch in sets]
        except (NotOffered, RuntimeError) as refusal:
            # What cannot be captured as a graph has no comparable number.
            row.not_offered[name] = f"{type(refusal).__name__}: {str(refusal).splitlines()[0]}"
    row.timed = side_by_side(calls, device, limit=seconds)
    return row
