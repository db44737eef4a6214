"""What is published can still be read, names what still exists, and comes out of what is stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvassay.harness.pairs import pairing
from kvassay.harness.record import read, read_all
from kvassay.harness.registry import entry_points, find
from kvassay.harness.report.building import page
from kvassay.harness.report.command import stored
from kvassay.harness.report.published import PAGES, tables
from kvassay.harness.trial.page import of_record
from kvassay.harness.trial.workers import catalogue

RESULTS = Path(__file__).parents[1] / "results"
FOLDERS = stored(RESULTS)
OWN = {"kvassay", pairing.OWN}
"""The harness itself, on trial, and a manager's own attention, in a pair."""
FAULTY = "kvassay.impls.faulty"
CONTROLS = ("hashed", "controls", "index_controls", "kernel_controls")
"""Modules whose implementations are right, and have no entry point."""
NAMING = ("implementation", "manager")
"""Columns of a page that name implementations."""
IN_ENGINES = ("vllm-", "sglang-")
"""Faults that are registered only where the engine is."""


def known(name: str) -> bool:
    """Whether an implementation, or both parts of a pair, can be found by its name."""
    return all(part in entry_points() or part in OWN for part in name.split("+"))


def named(text: str) -> Iterator[str]:
    """Implementations that the tables of a page name."""
    for table in tables(text):
        for heading in set(NAMING) & set(table.headings):
            place = list(table.headings).index(heading)
            yield from (row[place] for row in table.rows)
        if table.headings[0] == "invariant" and set(table.headings) > {"invariant"}:
            yield from (heading for heading in table.headings[1:] if heading not in OF_MATRIX)


OF_MATRIX = {"", "named by", "first", "seen"}
"""Columns of the kill matrix, whose rows are invariants too."""


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
    assert (RESULTS / file).is_file()


def test_the_report_of_what_is_published_is_made() -> None:
    text = page(read_all(FOLDERS), RESULTS)
    for folder in FOLDERS:
        for record in read_all([folder]):
            assert record.subject.name in text


def test_names_in_tables_are_seen() -> None:
    text = "| manager | x |\n|---|---|\n| one | 1 |\n\n| invariant | two | three |\n|---|---|---|\n"
    assert list(named(text + "| A1 | pass | fail |\n")) == ["one", "two", "three"]


def test_pages_name_what_exists() -> None:
    controls = {one.name for part in CONTROLS for one in find(f"{FAULTY}.{part}")}
    found = {
        (path.name, name)
        for path in RESULTS.glob("*.md")
        for name in named(path.read_text(encoding="utf-8"))
    }
    assert {file for file, _ in found} >= {"verdicts.md", "false_alarms.md", "replay.md"}
    assert {one for one in found if not known(one[1]) and one[1] not in controls} == set()


def test_the_kill_matrix_names_faults_that_exist() -> None:
    there = {one.key for one in catalogue(f"{FAULTY}.registry").everything()}
    told = {one.key for one in of_record(read(RESULTS / "kill_matrix.json")).ended}
    assert len(told) > 300
    gone = {key for key in told - there if not key.partition(": ")[2].startswith(IN_ENGINES)}
    assert gone == set()
