"""The replay benchmark: rows, records, errors in one line, and Ctrl-C that keeps what there is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvassay.harness.record import read_all
from kvassay.suites.benchmarks import replay as bench


def trace(folder: Path, *prompts: list[int]) -> str:
    path = folder / "small.jsonl"
    rows = [
        {"timestamp": 0, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids}
        for ids in prompts
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"mooncake:{path}"


def test_a_trace_is_replayed_shown_and_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = trace(tmp_path, [0, 1, 2], [3], [0, 1, 2], [0, 4, 5, 6])
    arguments = ["--impl", "radix", "--impl", "paged", "--trace", name, "--capacity", "3"]
    assert bench.main([*arguments, "--record", str(tmp_path / "records")]) == 0
    assert "radix" in capsys.readouterr().out
    by_name = {record.subject.name: record for record in read_all([tmp_path / "records"])}
    radix, paged = by_name["radix"], by_name["paged"]
    assert radix.counters["hits"] == 2
    assert (radix.counters["refused"], radix.counters["refused_blocks"]) == (1, 4)
    assert (radix.counters["lru"], radix.counters["optimum"], radix.counters["ceiling"]) == (
        3,
        4,
        3,
    )
    assert (paged.counters["hits"], paged.counters["missed"]) == (0, 3)
    assert radix.options["complete"] == "yes"
    metrics = {metric.name: metric.value for metric in radix.metrics}
    assert metrics["hit ratio, blocks"] == pytest.approx(2 / 7)


def test_a_page_has_a_line_for_each_row(tmp_path: Path) -> None:
    name, page = trace(tmp_path, [0, 1], [0, 1]), tmp_path / "page.md"
    arguments = ["--trace", name, "--capacity", "3", "--page", str(page)]
    assert bench.main(arguments) == 0
    (line,) = (each for each in page.read_text().splitlines() if each.startswith("| radix |"))
    cells = dict(zip(_head(page), line.split(" | "), strict=True))
    assert (cells["hit"], cells["evicted"]) == ("2", "0")
    assert bench.main([*arguments, "--no-counters"]) == 0
    (line,) = (each for each in page.read_text().splitlines() if each.startswith("| radix |"))
    cells = dict(zip(_head(page), line.split(" | "), strict=True))
    assert (cells["hit"], cells["evicted"]) == ("2", "-")


def _head(page: Path) -> list[str]:
    (head,) = (line for line in page.read_text().splitlines() if line.startswith("| manager"))
    return head.split(" | ")


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = trace(tmp_path, [0, 1], [0, 1], [0, 1])
    whole = bench.Case.stream
    calls: list[int] = []

    def interrupted(case: bench.Case, opened: Any) -> Any:
        calls.append(1)
        rows = iter(whole(case, opened))
        yield from [next(rows), next(rows)]
        if len(calls) == 4:  # policies, radix, policies, and now radix again
            raise KeyboardInterrupt
        yield from rows

    monkeypatch.setattr(bench.Case, "stream", interrupted)
    arguments = ["--trace", name, "--capacity", "5", "--capacity", "9"]
    assert bench.main([*arguments, "--record", str(tmp_path / "records")]) == bench.INTERRUPTED
    records = {record.options["capacity"]: record for record in read_all([tmp_path / "records"])}
    assert (records["5"].options["complete"], records["5"].counters["hits"]) == ("yes", 4)
    assert (records["9"].options["complete"], records["9"].counters["hits"]) == ("no", 2)
    assert "lru" not in records["9"].counters


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--trace", "nothing"], "no trace 'nothing'"),
        (["--trace", "mooncake:/none.jsonl"], "/none.jsonl, line 1: cannot be read"),
        (["--impl", "nobody", "--trace", "x"], "no implementation 'nobody'"),
    ],
)
def test_what_cannot_be_replayed_is_said_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(arguments) == bench.USAGE_ERROR
    assert said in capsys.readouterr().err


def test_damage_after_the_first_rows_keeps_nothing_of_that_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = trace(tmp_path, [0], [2, 1])
    assert bench.main(["--trace", name]) == bench.USAGE_ERROR
    shown = capsys.readouterr()
    assert "line 2: hash_ids: expected increasing ids" in shown.err
    assert shown.out == ""
