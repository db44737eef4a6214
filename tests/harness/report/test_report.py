"""The page says what the records say, escapes what is not its own, and needs nothing else."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvassay.harness.cli import app
from kvassay.harness.record import Direction, Metric, Record, write
from kvassay.harness.report import style
from kvassay.harness.report.building import NothingToShow, page
from kvassay.harness.report.charts import THEME, Chart, Line, figure, svg
from kvassay.harness.report.growth import charts
from kvassay.harness.report.matrix import broken, matrix
from kvassay.harness.report.measured import quantities, shown
from kvassay.harness.report.published import PAGES, images, sections, tables
from kvassay.harness.verdict import Status

REPOSITORY = Path(__file__).parents[3]


def test_cells_say_what_stands(records: list[Record]) -> None:
    found = matrix(records)
    assert [column.name for column in found.columns] == ["mine", "other"]
    mine, other = found.columns
    assert [row.id for row in found.rows] == ["A1", "A2", "P3", "P9"]
    assert mine.cells["A1"].status is Status.FAIL
    assert mine.cells["P3"].status is Status.PASS  # another suite met it
    assert mine.broken == 1
    assert other.broken == 0
    assert [(column.name, row.id) for column, row, _ in broken(found)] == [("mine", "A1")]


def test_a_newer_record_takes_the_place_of_an_older_one(records: list[Record]) -> None:
    repaired = records[0].model_copy(update={"verdicts": records[0].verdicts[1:]})
    again = matrix([*records, repaired])
    assert "A1" not in again.columns[0].cells


class Outside(HTMLParser):
    """Whatever a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            fetched = name in ("src", "href", "action", "xlink:href")
            if fetched and not (value or "").startswith(("#", "data:")):
                self.found.append(f"{tag} {name}={value}")


def test_the_page_needs_no_network_and_escapes_what_it_is_told(records: list[Record]) -> None:
    text = page(records, REPOSITORY / "results")
    seen = Outside()
    seen.feed(text)
    assert not seen.found
    assert seen.tags.count("script") == 1
    assert not re.search(r"url\(|@import", text)
    assert "<b>" not in text
    assert "3[ 1 2 ]" in text
    assert "kvassay replay mine-A1.json --impl ./mine.py" in text
    assert "1 µs to" not in text  # quartiles of 1, 2 and 3
    assert "1.5 µs to 2.5 µs" in text
    assert ">3</td>" in text


def test_without_anything_there_is_no_page(tmp_path: Path) -> None:
    with pytest.raises(NothingToShow, match="no records"):
        page([], tmp_path)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0023, "s", "2.3 ms"),
        (2.5e-7, "s", "250 ns"),
        (12.0, "s", "12 s"),
        (0.0, "s", "0 s"),
        (-0.002, "s", "-2 ms"),
        (1234567.0, "token/s", "1.2346e+06 token/s"),
        (0.33333, "1", "0.3333"),
    ],
)
def test_numbers_have_units(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text


def test_one_sample_has_no_spread(records: list[Record]) -> None:
    single = Metric(name="x", unit="s", direction=Direction.LOWER, value=1.0, samples=[1.0])
    (found,) = quantities([records[2].model_copy(update={"metrics": [single]})])
    assert (found.spread, found.samples) == ("-", 1)


def test_published_pages_are_read_table_by_table() -> None:
    text = (
        "# A\n\n| x | `y` |\n| --- | --- |\n| **1** | [two](z.md) |\n\n## B\n\n| only | heads |\n"
    )
    (found,) = tables(text)
    assert (found.caption, found.headings, found.rows) == ("A", ["x", "y"], [["1", "two"]])


def test_charts_of_a_page_are_embedded(tmp_path: Path) -> None:
    (tmp_path / "charts").mkdir()
    for file in ("one.svg", "one.png", "two.png"):
        (tmp_path / "charts" / file).write_text("x")
    text = "".join(f"[![{n}](charts/{n}.png)](charts/{n}.svg)\n" for n in ("one", "two", "none"))
    found = list(images(text, tmp_path))
    assert found == [
        ("data:image/svg+xml;base64,eA==", "one"),
        ("data:image/png;base64,eA==", "two"),
    ]
    shown = {one.id: len(one.images) for one in sections(REPOSITORY / "results")}
    assert shown["memory"] == 2
    assert shown["ttft"] == 0


def test_every_published_section_has_its_numbers() -> None:
    found = list(sections(REPOSITORY / "results"))
    assert len(found) >= 5
    assert all(one.tables for one in found), [one.id for one in found if not one.tables]
    assert {page.file for page in PAGES} >= {f"{one.id.replace('-', '_')}.md" for one in found}


def test_stored_growth_becomes_charts() -> None:
    from kvassay.harness.record import read_all

    found = list(charts(read_all([REPOSITORY / "results" / "control"])))
    names = {chart.name: [line.name for line in chart.lines] for chart in found}
    # Beside whom an implementation was measured is said where there were several runs.
    assert {"radix (beside vllm)", "vllm"} <= set(names["control-pool-block-16"])
    assert "radix" in names["control-prompt-block-1"]
    (one,) = (chart for chart in found if chart.name == "control-prompt-block-1")
    line = next(line for line in one.lines if line.name == "radix")
    assert line.low is not None
    assert line.high is not None
    for low, middle, high in zip(line.low, line.y, line.high, strict=True):
        assert 0 < low <= middle <= high


def test_a_chart_takes_the_colour_of_its_page() -> None:
    chart = Chart("c", "A <title>", "x", "y", [Line("one", [1, 2], [3, 4], [2, 3], [4, 5])])
    text = svg(chart)
    assert THEME not in text
    assert "currentColor" in text
    assert "<title>" not in text
    assert svg(chart) == text  # the same to the byte
    made = style.files(figure(chart), chart.name)
    assert made["c.png"].startswith(b"\x89PNG")
    assert made["c.svg"].startswith(b"<?xml")


def test_the_command_writes_page_and_charts(records: list[Record], tmp_path: Path) -> None:
    for one in records:
        write(one, tmp_path / "run")
    output, folder = tmp_path / "out" / "report.html", tmp_path / "charts"
    arguments = [str(tmp_path / "run"), "--output", str(output), "--charts", str(folder)]
    arguments += ["--results", str(REPOSITORY / "results")]
    result = CliRunner().invoke(app, ["report", *arguments])
    assert result.exit_code == 0, result.output
    assert str(output) in result.output.replace("\n", "")
    assert "it broke" in output.read_text()
    assert (folder / "control-pool-block-16.svg").exists()


@pytest.mark.parametrize("wrong", ["nowhere", "broken"])
def test_what_is_no_record_is_said(tmp_path: Path, wrong: str) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "x.json").write_text("{}")
    result = CliRunner().invoke(app, ["report", str(tmp_path / wrong), "--results", str(tmp_path)])
    assert result.exit_code == 2
    assert wrong in result.stderr
