"""What is published can still be read, names what still exists, and comes out of what is stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvassay.harness.record import read_all
from kvassay.harness.registry import entry_points
from kvassay.harness.report.building import page
from kvassay.harness.report.command import stored
from kvassay.harness.report.published import PAGES

RESULTS = Path(__file__).parents[1] / "results"
FOLDERS = stored(RESULTS)
OWN = {"kvassay"}
"""The harness itself, on trial."""


def known(name: str) -> bool:
    """Whether an implementation, or both parts of a pair, can be found by its name."""
    return all(part in entry_points() or part in OWN for part in name.split("+"))


def test_there_is_something_to_look_at() -> None:
    assert {"control", "engine", "load_curves"} <= {folder.name for folder in FOLDERS}
    assert known("radix+torch")
    assert not known("radix+gone")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.name))
def test_records_are_of_this_schema_and_name_what_exists(folder: Path) -> None:
    found = read_all([folder])  # raises for another schema
    assert found
    gone = {record.subject.name for record in found if not known(record.subject.name)}
    assert not gone, f"{folder.name}: nothing is called so any more"


@pytest.mark.parametrize("listed", PAGES, ids=lambda listed: str(listed.file))
def test_pages_of_the_report_are_there(listed: object) -> None:
    file = str(listed.file)  # type: ignore[attr-defined]
    if file == "gate.md":
        pytest.skip("gate.md: made by tox run -e calibrate, minutes on a quiet machine")
    assert (RESULTS / file).is_file()


def test_the_report_of_what_is_published_is_made() -> None:
    text = page(read_all(FOLDERS), RESULTS)
    for folder in FOLDERS:
        for record in read_all([folder]):
            assert record.subject.name in text
