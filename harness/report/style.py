"""How charts look, and how they are written: one style for the report and for `results/charts`.

Colours are those of Okabe and Ito, which people with any colour vision tell apart; markers, line
styles and hatches say the same once more. A chart is written as SVG and as PNG, the same to the
byte for the same data and matplotlib, and both carry a digest of what is drawn: so it is seen
whether a stored chart is of these data, whichever version of matplotlib drew it.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#555555")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", ":", "-.")
HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo")
INK, GREY = "#222222", "#888888"
FORMS = ("svg", "png")
DPI = 96
SMALL = 7
"""Points, of a legend with many entries."""
STORED = re.compile(r"sha256:[0-9a-f]{64}")


def colour(place: int) -> str:
    """Of the series at this place."""
    return COLOURS[place % len(COLOURS)]


def marker(place: int) -> str:
    """Of the series at this place."""
    return MARKERS[place % len(MARKERS)]


def hatch(place: int) -> str:
    """Of the bars at this place."""
    return HATCHES[place % len(HATCHES)]


def panels(
    count: int = 1, width: float = 4.6, height: float = 3.8, ink: str = INK
) -> tuple[Any, Sequence[Any]]:
    """A figure with so many charts side by side, each so many inches wide; and their axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * count, height), layout="constrained")
    figure.patch.set_facecolor("white")
    found = figure.subplots(1, count, squeeze=False)[0]
    for axes in found:
        axes.tick_params(colors=ink, which="both", labelsize=8)
        axes.grid(alpha=0.25, color=ink, linewidth=0.5)
        axes.set_axisbelow(True)
        axes.set_facecolor("none")
        for text in (axes.xaxis.label, axes.yaxis.label, axes.title):
            text.set_color(ink)
            text.set_fontsize(9)
        for side, spine in axes.spines.items():
            spine.set_color(ink)
            spine.set_visible(side in ("left", "bottom"))
    return figure, list(found)


def legend(axes: Any, where: str = "best", ink: str = INK) -> None:
    """What is what, where the chart has anything with a name."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, labelcolor=ink, fontsize=SMALL, loc=where)


def legend_below(figure: Any, axes: Any, columns: int) -> None:
    """What is what in all panels, by one of them, below the figure."""
    handles, names = axes.get_legend_handles_labels()
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": columns}
    figure.legend(handles, names, frameon=False, fontsize=SMALL, **place)


# --------------------------------------------------------------------------------------- written


def written(name: str) -> AbstractContextManager[Any]:
    """Settings under which the chart of this name is written: text stays text, ids repeat."""
    from matplotlib import rc_context

    return rc_context({"svg.fonttype": "none", "svg.hashsalt": name})


def files(figure: Any, name: str) -> dict[str, bytes]:
    """The chart as SVG and PNG, by the name of the file."""
    told = digest(figure)
    metadata: dict[str, dict[str, str | None]] = {
        "svg": {"Date": None, "Creator": None, "Identifier": told},
        "png": {"Software": None, "Description": told},
    }
    made = {}
    with written(name):
        for form in FORMS:
            out = io.BytesIO()
            figure.savefig(out, format=form, dpi=DPI, metadata=metadata[form])
            made[f"{name}.{form}"] = out.getvalue()
    return made


def stale(figure: Any, name: str, folder: Path) -> list[str]:
    """Files of the chart that are not there, or are of other data; empty if it is as drawn now."""
    told = digest(figure)
    return [file for file in (f"{name}.{form}" for form in FORMS) if kept(folder / file) != told]


def kept(file: Path) -> str | None:
    """The digest that a file carries; None if there is no file, or it has none."""
    if not file.is_file():
        return None
    found = STORED.search(file.read_bytes().decode("latin-1"))
    return found[0] if found else None


def digest(figure: Any) -> str:
    """Of all that is drawn: words, points, bars, bands, and how they look."""
    told = "\n".join(word for axes in figure.axes for word in _told(axes))
    title = figure.get_suptitle()
    texts = [text.get_text() for text in figure.texts]
    return "sha256:" + hashlib.sha256("\n".join([title, *texts, told]).encode()).hexdigest()


def _told(axes: Any) -> Iterator[str]:
    yield from (axes.get_title(loc=where) for where in ("left", "center", "right"))
    yield from (axes.get_xlabel(), axes.get_ylabel(), axes.get_xscale(), axes.get_yscale())
    yield from (text.get_text() for text in axes.texts)
    for line in axes.lines:
        look = line.get_color(), line.get_linestyle(), line.get_marker(), line.get_markerfacecolor()
        yield f"{line.get_label()} {look} {_points(line.get_xydata())}"
    for patch in axes.patches:
        corners = patch.get_patch_transform().transform(patch.get_path().vertices)
        yield f"{patch.get_label()} {patch.get_facecolor()} {patch.get_hatch()} {_points(corners)}"
    for band in axes.collections:
        yield " ".join(_points(path.vertices) for path in band.get_paths())


def _points(points: Any) -> str:
    return " ".join(f"{x:.6g},{y:.6g}" for x, y in points)
