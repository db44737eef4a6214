"""Charts of records, by matplotlib: for the page as SVG in the colours of its theme, and as files.

Colours are those of Okabe and Ito, which people with any colour vision tell apart; markers and line
styles say the same once more. Lines of the frame and text are drawn in one colour that the page
replaces by its own, so that a chart reads on a light page and on a dark one.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
INK = "#123456"
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


def figure(chart: Chart, ink: str) -> Any:
    """A matplotlib figure; to be closed by whoever asked."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(6.4, 3.6))
    axes = drawn.subplots()
    _lines(axes, chart)
    axes.set_title(chart.title, color=ink, fontsize=10, loc="left")
    axes.set_xlabel(chart.x, color=ink)
    axes.yaxis.label.set_color(ink)
    axes.tick_params(colors=ink, which="both")
    axes.grid(alpha=0.25, color=ink, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.set_facecolor("none")
    for side, spine in axes.spines.items():
        spine.set_color(ink)
        spine.set_visible(side in ("left", "bottom"))
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, labelcolor=ink, fontsize=8)
    drawn.patch.set_alpha(0)
    drawn.tight_layout()
    return drawn


def _lines(axes: Any, chart: Chart) -> None:
    for number, line in enumerate(chart.lines):
        place = number if line.place is None else line.place
        colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
        axes.plot(line.x, line.y, color=colour, marker=marker, markersize=4, label=line.name)
        if line.low is not None and line.high is not None:
            axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.2, linewidth=0)
    axes.set_ylabel(chart.y)
    if chart.log_x:
        axes.set_xscale("log")
    if chart.log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)


def svg(chart: Chart) -> str:
    """For a page: its text takes the colour of the text around it."""
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": chart.name}):
        out = io.StringIO()
        figure(chart, INK).savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    body = text[text.index("<svg") :].replace(INK, "currentColor")
    return body.replace("<svg", f'<svg role="img" aria-label="{escape(chart.title)}"', 1)


def files(chart: Chart) -> dict[str, bytes]:
    """As SVG and PNG on white, by the name of the file."""
    from matplotlib import rc_context

    made = {}
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": chart.name}):
        for form in ("svg", "png"):
            out, drawn = io.BytesIO(), figure(chart, "#222222")
            drawn.patch.set_alpha(1)
            drawn.patch.set_facecolor("white")
            metadata = {"Date": None} if form == "svg" else {"Software": None}
            drawn.savefig(out, format=form, dpi=150, metadata=metadata)
            made[f"{chart.name}.{form}"] = out.getvalue()
    return made
