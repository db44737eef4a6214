"""Charts are the same to the byte, and carry a digest of all that is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvassay.harness.report import style


def drawn(**more: Any) -> Any:
    """A line, bars, a band, words; `more` changes one of them."""
    figure, (left, right) = style.panels(2)
    look = {"color": style.colour(0), "marker": style.marker(0), "label": "one"}
    left.plot([1, 2], [3, more.get("y", 4)], **{**look, **more.get("look", {})})
    left.fill_between([1, 2], [2, 3], [4, more.get("high", 5)])
    left.set(title=more.get("title", "left"), xscale=more.get("scale", "linear"), xlabel="x")
    left.errorbar([1], [1], yerr=[[0.5], [more.get("error", 0.5)]])
    right.bar(["a", "b"], [1, more.get("bar", 2)], hatch=style.hatch(more.get("hatch", 1)))
    right.annotate(more.get("said", "here"), (0, 1))
    figure.suptitle(more.get("suptitle", "both"))
    style.legend(left)
    return figure


def test_a_chart_is_the_same_to_the_byte() -> None:
    one, two = style.files(drawn(), "chart"), style.files(drawn(), "chart")
    assert one == two
    assert set(one) == {"chart.svg", "chart.png"}
    assert b"<dc:date>" not in one["chart.svg"]
    assert style.files(drawn(), "other")["other.svg"] != one["chart.svg"]  # ids are of the name


CHANGES: dict[str, Any] = {
    "y": 5,
    "high": 6,
    "title": "right",
    "scale": "log",
    "error": 0.6,
    "bar": 3,
    "hatch": 2,
    "said": "there",
    "suptitle": "all",
    "look": {"marker": "s"},
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the chart as it is."""
    folder = tmp_path_factory.mktemp("charts")
    for name, content in style.files(drawn(), "chart").items():
        (folder / name).write_bytes(content)
    return folder


def test_what_is_as_stored_is_not_stale(stored: Path, tmp_path: Path) -> None:
    assert style.stale(drawn(), "chart", stored) == []
    assert style.stale(drawn(), "chart", tmp_path) == ["chart.svg", "chart.png"]  # not there


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_makes_it_stale(stored: Path, change: str) -> None:
    changed = drawn(**{change: CHANGES[change]})
    assert style.stale(changed, "chart", stored) == ["chart.svg", "chart.png"]


def test_a_file_without_a_digest_is_of_no_data(tmp_path: Path) -> None:
    (tmp_path / "chart.svg").write_text("<svg/>")
    (tmp_path / "chart.png").write_bytes(style.files(drawn(), "chart")["chart.png"])
    assert style.stale(drawn(), "chart", tmp_path) == ["chart.svg"]


def test_every_series_has_a_look_of_its_own() -> None:
    places = range(len(style.COLOURS))
    assert len({style.colour(place) for place in places}) == len(places)
    assert len({style.marker(place) for place in places}) == len(places)
    assert len({style.hatch(place) for place in places}) == len(places)
