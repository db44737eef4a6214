"""Every invariant has a meaning and a page, and pages are what they would be written as."""

from __future__ import annotations

import pytest

from kvassay.harness.attention.law import WHOLE_LAW
from kvassay.harness.invariants import LAW
from kvassay.harness.meaning import MEANING
from kvassay.suites.invariants import pages


def test_every_invariant_has_a_meaning() -> None:
    assert list(MEANING) == list(WHOLE_LAW)


def test_every_invariant_has_a_page_that_says_so() -> None:
    stored = {path.stem for path in pages.FOLDER.glob("*.md")} - {"README"}
    assert stored == set(WHOLE_LAW)
    for id, one in WHOLE_LAW.items():
        text = (pages.FOLDER / f"{id}.md").read_text("utf-8")
        assert text.startswith(f"# {id} {one.title}\n\n{MEANING[id]}\n")
        assert "\n- " in text, "no planted fault that it may convict"


@pytest.mark.parametrize("id", LAW)
def test_a_minimal_violation_is_told_to_its_end(id: str) -> None:
    text = (pages.FOLDER / f"{id}.md").read_text("utf-8")
    assert "<-- here" in text
    assert f"\n{id} " in text.split("```text")[1]


@pytest.mark.long
def test_pages_are_as_they_would_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert pages.main(["--check"]) == 0, capsys.readouterr().err
