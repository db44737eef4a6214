"""Charts of records, by matplotlib: for the page as SVG in the colours of its theme, and as files.

Lines of the frame and text are drawn in one colour that the page replaces by its own, so that a
chart reads on a light page and on a dark one.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from kvassay.harness.report import style

THEME = "#123456"
"""Stands for the colour of text in an SVG of a page."""


@dataclass(frozen=True)
class Line:
    """One series."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    """Of a band around it."""
    high: Sequence[float] | None = None
    place: int | None = None
    """Of its colour and marker: the same implementation has the same in all charts."""


@dataclass(frozen=True)
class Chart:
    """What is to be drawn."""

    name: str
    """Of its files."""
    title: str
    x: str
    y: str
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False
    note: str = ""
    """What must be known to read it."""


def figure(chart: Chart, ink: str = style.INK) -> Any:
    """A matplotlib figure of it."""
    drawn, (axes,) = style.panels(1, 6.4, 3.6, ink)
    for number, line in enumerate(chart.lines):
        _line(axes, line, number if line.place is None else line.place)
    axes.set_title(chart.title, color=ink, fontsize=10, loc="left")
    axes.set(xlabel=chart.x, ylabel=chart.y)
    if chart.log_x:
        axes.set_xscale("log")
    if chart.log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    style.legend(axes, ink=ink)
    return drawn


def _line(axes: Any, line: Line, place: int) -> None:
    look = {"color": style.colour(place), "marker": style.marker(place), "markersize": 4}
    axes.plot(line.x, line.y, label=line.name, **look)
    if line.low is not None and line.high is not None:
        axes.fill_between(line.x, line.low, line.high, color=look["color"], alpha=0.2, linewidth=0)


def svg(chart: Chart) -> str:
    """For a page: its text takes the colour of the text around it."""
    drawn = figure(chart, THEME)
    drawn.patch.set_alpha(0)
    with style.written(chart.name):
        out = io.StringIO()
        drawn.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    body = text[text.index("<svg") :].replace(THEME, "currentColor")
    return body.replace("<svg", f'<svg role="img" aria-label="{escape(chart.title)}"', 1)
