"""Latency and goodput against arrival rate, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from kvassay.harness.virtual.outcome import Outcome


@dataclass(frozen=True, eq=False)
class Point:
    """One case."""

    rate: float
    """Arrivals per second."""
    series: str
    got: Outcome


def draw(points: Sequence[Point], caption: str, file: Path) -> None:
    """Three charts side by side, the caption below."""
    figure = Figure(figsize=(13, 4.8))
    FigureCanvasAgg(figure)
    latency, gaps, goodput = figure.subplots(1, 3)
    for number, series in enumerate(dict.fromkeys(point.series for point in points)):
        color = f"C{number}"
        line = sorted((one for one in points if one.series == series), key=lambda one: one.rate)
        rates = [one.rate for one in line]
        for percent, style in ((50, "-"), (99, "--")):
            label = f"{series}, p{percent}"
            ttft = [float(np.percentile(one.got.ttft, percent)) for one in line]
            latency.plot(rates, ttft, style, color=color, marker="o", label=label)
            itl = [1e3 * float(np.percentile(one.got.itl, percent)) for one in line]
            gaps.plot(rates, itl, style, color=color, marker="o")
        good = [one.got.goodput for one in line]
        goodput.plot(rates, good, "-", color=color, marker="o", label=series)
    latency.set(yscale="log", xlabel="arrivals, 1/s", ylabel="time to first token, s")
    gaps.set(yscale="log", xlabel="arrivals, 1/s", ylabel="inter-token latency, ms")
    goodput.set(xlabel="arrivals, 1/s", ylabel="goodput, 1/s")
    latency.legend(fontsize=7)
    figure.text(0.02, 0.01, fill(caption, 170), fontsize=8)
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    figure.savefig(file, dpi=110)
