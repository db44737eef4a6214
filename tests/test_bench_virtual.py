"""The suite of virtual time: what it shows, keeps and says of itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvassay.harness.record import read_all
from kvassay.harness.virtual import agreement
from kvassay.suites.benchmarks import virtual

TICK = 3000


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Ten requests in three ticks; each second prompt goes on with the one before."""
    path = tmp_path / "trace.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number in range(10):
            ids = [0, number // 2 + 1] if number % 2 == 0 else [0, number // 2 + 1, 100 + number]
            row = {"timestamp": number // 4 * TICK, "input_length": 512 * len(ids) - 7}
            file.write(json.dumps({**row, "output_length": 40, "hash_ids": ids}) + "\n")
    return f"mooncake:{path}"


def rows(folder: Path) -> list[Any]:
    return read_all([folder])


def test_shows_every_case_with_the_models_error(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--trace", trace, "--cache", "on", "--cache", "off", "--speed", "1", "--speed", "2"]
    files = ["--record", str(tmp_path / "records"), "--output", str(tmp_path)]
    assert virtual.main([*command, *files]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert agreement.sentence() in said
    assert "on H200 (peaks: NVIDIA H200 (SXM) data sheet" in said
    assert "recorded in ticks of 3 s (10 requests at 3 moments): spread" in said
    charts = {path.name: path.stat().st_size for path in (tmp_path / "charts").iterdir()}
    assert set(charts) == {"virtual.svg", "virtual.png"}
    assert min(charts.values()) > 10_000
    assert "charts/virtual.svg" in (tmp_path / "virtual.md").read_text(encoding="utf-8")
    found = {
        (one.options["cache"], one.options["speed"]): one for one in rows(tmp_path / "records")
    }
    assert set(found) == {(cache, speed) for cache in ("on", "off") for speed in ("1.0", "2.0")}
    assert (
        found["on", "1.0"].counters["hit_tokens"] > found["off", "1.0"].counters["hit_tokens"] == 0
    )
    assert all(one.options["error"] == agreement.sentence() for one in found.values())


def test_the_published_page_tells_the_present_error() -> None:
    page = agreement.FILE.with_name("virtual.md").read_text(encoding="utf-8")
    assert agreement.sentence() in page
    assert agreement.NOT_COMPARED not in page


def test_the_same_command_gives_the_same_record(trace: str, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        assert virtual.main(["--trace", trace, "--record", str(tmp_path / folder)]) == 0
    assert virtual.main(["--trace", trace, "--speed", "3", "--record", str(tmp_path / "more")]) == 0
    (one,), (two,), (more,) = (rows(tmp_path / folder) for folder in ("one", "two", "more"))
    apart = {"id", "environment"}
    assert one.model_dump(exclude=apart) == two.model_dump(exclude=apart)
    assert one.options["digest"] != more.options["digest"]


def test_bursts_of_coarse_ticks_can_be_kept(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert virtual.main(["--trace", trace, "--as-recorded"]) == 0
    assert "kept, so requests come in bursts" in " ".join(capsys.readouterr().out.split())


def test_what_is_complete_is_shown_after_an_interruption(
    trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, cases = virtual.run, []

    def run(case: Any, *arguments: Any) -> Any:
        cases.append(case)
        if len(cases) == 2:
            raise KeyboardInterrupt
        return real(case, *arguments)

    monkeypatch.setattr(virtual, "run", run)
    command = ["--trace", trace, "--speed", "1", "--speed", "2", "--speed", "3"]
    assert virtual.main(command) == virtual.INTERRUPTED
    assert capsys.readouterr().out.count("radix") == 1


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["--impl", "nobody"], "no implementation 'nobody'"),
        (["--trace", "nowhere"], "no trace 'nowhere'"),
    ],
)
def test_says_what_is_wrong(
    command: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert virtual.main(command) == virtual.USAGE_ERROR
    assert message in capsys.readouterr().err
