"""The occupancy benchmark: shown, recorded, and errors in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvassay.harness.record import read_all
from kvassay.suites.benchmarks import occupancy as bench


def trace(folder: Path) -> str:
    rows = [
        {"timestamp": 0, "input_length": 1000, "output_length": 40, "hash_ids": [0, 1]},
        {"timestamp": 2000, "input_length": 1100, "output_length": 40, "hash_ids": [0, 2, 3]},
    ]
    path = folder / "small.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"mooncake:{path}"


def test_slots_are_shown_and_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = tmp_path / "records"
    arguments = ["--impl", "radix", "--impl", "paged", "--trace", trace(tmp_path), "--blocks", "8"]
    assert bench.main([*arguments, "--record", str(records)]) == 0
    out = capsys.readouterr().out
    assert bench.NOTHING in out
    by_name = {record.subject.name: record for record in read_all([records])}
    metrics = {one.name.split(",")[0]: one.value for one in by_name["paged"].metrics}
    # 2,100 tokens for one second each, at 128 KiB.
    assert metrics["filled"] == pytest.approx(2100 / 8192)
    assert by_name["paged"].counters["hit_tokens"] == 0
    assert by_name["radix"].counters["hit_tokens"] == 512
    assert by_name["radix"].options["step"] == "0.025"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--trace", "nothing"], "no trace 'nothing'"),
        (["--impl", "contiguous-pow2"], "contiguous-pow2 does not declare COUNTERS"),
    ],
)
def test_what_cannot_be_served_is_said(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["--trace", trace(tmp_path), *arguments]) == bench.USAGE_ERROR
    assert said in capsys.readouterr().err
