"""Latency and goodput against arrival rate, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

import numpy as np

from kvassay.harness.report import style
from kvassay.harness.virtual.outcome import Outcome


@dataclass(frozen=True, eq=False)
class Point:
    """One case."""

    rate: float
    """Arrivals per second."""
    series: str
    got: Outcome


def drawn(points: Sequence[Point], caption: str) -> Any:
    """Three charts side by side, the caption above."""
    figure, (latency, gaps, goodput) = style.panels(3, height=4.4)
    for place, series in enumerate(dict.fromkeys(point.series for point in points)):
        look = {"color": style.colour(place), "marker": style.marker(place), "markersize": 4}
        line = sorted((one for one in points if one.series == series), key=lambda one: one.rate)
        rates = [one.rate for one in line]
        for percent, stroke in ((50, "-"), (99, "--")):
            label = f"{series}, p{percent}"
            ttft = [float(np.percentile(one.got.ttft, percent)) for one in line]
            latency.plot(rates, ttft, stroke, label=label, **look)
            itl = [1e3 * float(np.percentile(one.got.itl, percent)) for one in line]
            gaps.plot(rates, itl, stroke, **look)
        goodput.plot(rates, [one.got.goodput for one in line], "-", label=series, **look)
    latency.set(yscale="log", xlabel="arrivals, 1/s", ylabel="time to first token, s")
    gaps.set(yscale="log", xlabel="arrivals, 1/s", ylabel="inter-token latency, ms")
    goodput.set(xlabel="arrivals, 1/s", ylabel="goodput, 1/s")
    style.legend_below(figure, latency, 4)
    figure.suptitle(fill(caption, 170), fontsize=8)
    return figure
