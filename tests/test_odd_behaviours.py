"""The table of odd behaviours names what shows each of them, and that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "results" / "findings" / "README.md"
KINDS = ("defect", "limitation", "convention", "precondition", "known")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text("utf-8").splitlines()
    if line.startswith("|")
][2:]
SHOWN = re.compile(r"`((?:tests|suites|results|impls|harness)/[^`:]+)(?:::(\w+))?`")


def test_findings_stand_in_it() -> None:
    text = PAGE.read_text("utf-8")
    findings = {path.name for path in (ROOT / "results" / "findings").glob("*-*.md")}
    assert findings == set(re.findall(r"results/findings/([\w-]+\.md)", text))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} {row[2]}".strip())
def test_what_shows_a_behaviour_is_there(row: list[str]) -> None:
    assert row[3].partition(":")[0].partition(",")[0] in KINDS
    for path, test in SHOWN.findall(row[4]):
        assert (ROOT / path).is_file()
        assert not test or f"def {test}(" in (ROOT / path).read_text("utf-8")
    assert SHOWN.search(row[4]) or "account of misuse" in row[4]
