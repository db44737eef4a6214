"""Published pages come out of what is stored, and of every page it is known how it is made."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kvassay.harness.record import VerdictEntry, read_all
from kvassay.harness.verdict import Status
from kvassay.suites.benchmarks import pages
from kvassay.suites.benchmarks.stored import CHARTS, Made, stale, write

RESULTS = Path(__file__).parents[1] / "results"
LARGEST = 150_000
"""Bytes of a chart."""
STORED = [page.name for page in pages.PAGES if page.make and (RESULTS / f"{page.name}.md").exists()]


def test_every_page_and_chart_is_accounted_for() -> None:
    assert list(pages.unaccounted(RESULTS)) == []


@pytest.mark.parametrize("name", STORED)
def test_a_page_is_what_comes_out_of_its_records(name: str) -> None:
    assert pages.check(RESULTS, [name]) == []


def test_the_index_is_that_of_the_pages() -> None:
    assert stale(pages.index(RESULTS), RESULTS) == []


def test_charts_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in (RESULTS / CHARTS).iterdir()}
    assert len(sizes) >= 20
    assert {name: size for name, size in sizes.items() if size > LARGEST} == {}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """All pages and charts, and the records of one page."""
    for path in RESULTS.glob("*.md"):
        shutil.copy(path, tmp_path)
    shutil.copytree(RESULTS / CHARTS, tmp_path / CHARTS)
    shutil.copy(RESULTS / "kill_matrix.json", tmp_path)
    return tmp_path


def only(copy: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What is said of the one page whose records are there."""
    assert pages.main(["--check", "--results", str(copy), "kill_matrix"]) == 1
    return capsys.readouterr().out


def test_another_text_is_stale(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--results", str(copy), "kill_matrix"]
    assert pages.main(["--check", *arguments]) == 0
    page = copy / "kill_matrix.md"
    before = page.read_text()
    page.write_text(before.replace("killed", "found", 1))
    assert "kill_matrix.md is another" in only(copy, capsys)
    assert pages.main(arguments) == 0
    assert page.read_text() == before


def test_another_record_makes_page_and_chart_stale(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy / "kill_matrix.json"
    content = json.loads(path.read_text())
    content["findings"][0]["fate"] = "survived"
    path.write_text(json.dumps(content))
    said = only(copy, capsys)
    for name in ("kill_matrix.md", "charts/kill_matrix.svg", "charts/kill_matrix.png"):
        assert f"{name} is another" in said


def test_a_record_of_another_schema_is_said(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = copy / "kill_matrix.json"
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 99'))
    assert "schema_version" in only(copy, capsys)
    assert pages.main(["--results", str(copy), "kill_matrix"]) == pages.USAGE_ERROR


def test_what_nobody_knows_is_said(copy: Path) -> None:
    (copy / "stray.md").write_text("# Stray\n\n![x](charts/gone.png)\n")
    (copy / CHARTS / "unseen.svg").write_text("<svg/>")
    (copy / "strays").mkdir()
    (copy / "probes.md").unlink()
    said = list(pages.unaccounted(copy))
    assert [line.partition(":")[0] for line in said] == [
        "stray.md",
        "probes.md",
        "strays/",
        "charts/gone.png",
        "charts/unseen.svg",
    ]


def test_a_page_without_its_records_is_stale(copy: Path) -> None:
    assert any("control" in line for line in pages.check(copy, ["control_plane"]))


@pytest.mark.parametrize(("name", "said"), [("ttft", "out of a run only"), ("no", "expected one")])
def test_what_cannot_be_made_is_said(
    name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pages.main([name]) == pages.USAGE_ERROR
    assert said in capsys.readouterr().err


def test_charts_that_are_as_drawn_stay(tmp_path: Path) -> None:
    from kvassay.harness.report import style

    def draw() -> object:
        figure, (axes,) = style.panels()
        axes.plot([1, 2], [3, 4])
        return figure

    made = Made("page", "text", {"chart": draw})
    write(made, tmp_path)
    path = tmp_path / CHARTS / "chart.png"
    path.write_bytes(path.read_bytes() + b" ")  # as another version of matplotlib draws it
    write(made, tmp_path)
    assert path.read_bytes().endswith(b" ")
    path.write_bytes(b"")
    write(made, tmp_path)
    assert path.stat().st_size > 1000


def test_what_fails_leads_to_its_findings_and_to_no_other(tmp_path: Path) -> None:
    for name, by in (
        ("e-room", '`pytest suites/engines --impl e`, S3 "no room"'),
        ("e-name", '`pytest suites/engines --impl e`, S3 "in use"'),
        ("f-room", '`pytest suites/engines --impl f`, S3 "no room"'),
    ):
        (tmp_path / f"{name}.md").write_text(f"- found by: {by}\n")
    (record,) = read_all([RESULTS / "verdicts"])[:1]

    def failing(name: str, reason: str) -> str:
        subject = record.subject.model_copy(update={"name": name})
        entry = VerdictEntry(invariant="S3", status=Status.FAIL, reason=reason)
        failed = record.model_copy(update={"subject": subject, "verdicts": [entry]})
        return "".join(pages._failing([failed], tmp_path))

    one, both, none = failing("e", "no room: 1"), failing("e", "other: 1"), failing("g", "no room")
    assert [name in one for name in ("e-room.md", "e-name.md", "f-room.md")] == [True, False, False]
    assert [name in both for name in ("e-room.md", "e-name.md", "f-room.md")] == [True, True, False]
    assert none == "- **g** S3: no room\n"
