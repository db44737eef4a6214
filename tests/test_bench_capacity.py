"""Hits by capacity: counts that are known, and a stored page that is what comes out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvassay.harness.record import read_all
from kvassay.harness.traces.finding import VARIABLE, NoTrace
from kvassay.harness.virtual.model import MODELS
from kvassay.suites.benchmarks import capacity as bench

BLOCKS_PER_GIB = 16
"""Of 512 tokens of Llama 3 8B: 64 MiB each."""


def trace(folder: Path, *prompts: list[int]) -> str:
    path = folder / "small.jsonl"
    rows = [
        {"timestamp": 0, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids}
        for ids in prompts
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"mooncake:{path}"


def test_a_tokens_bytes_are_those_of_the_published_configuration() -> None:
    """Llama 3.1 8B: 32 layers, 8 KV heads, hidden size 4,096 in 32 heads, bfloat16."""
    assert MODELS["llama-3-8b"].token_bytes == 2 * 32 * 8 * (4096 // 32) * 2 == 131_072
    assert MODELS["llama-3-70b"].token_bytes == 2 * 80 * 8 * (8192 // 64) * 2 == 327_680


def test_hits_by_gib_are_those_of_so_many_blocks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = list(range(12)), [0, *range(12, 23)]
    name = trace(tmp_path, first, second, first, second)
    arguments = ["--trace", name, "--gib", "1", "--gib", "2", "--gib", "4"]
    assert bench.main([*arguments, "--record", str(tmp_path / "records")]) == 0
    (record,) = read_all([tmp_path / "records"])
    counted = record.counters
    assert (counted["references"], counted["distinct"], counted["ceiling"]) == (48, 23, 25)
    small = {key: counted[f"1 GiB, {key}"] for key in ("blocks", "hits", "lru", "optimum")}
    # One GiB holds a prompt and four blocks behind the root of the other: 1 + 5 + 5 are hit.
    # Whoever knows the future keeps the whole first prompt, and four blocks of the second.
    assert small == {"blocks": BLOCKS_PER_GIB, "hits": 11, "lru": 11, "optimum": 1 + 12 + 5}
    assert counted["2 GiB, lru"] == counted["2 GiB, optimum"] == counted["2 GiB, hits"] == 25
    assert "4 GiB, lru" not in counted  # two hit all that can be
    assert "an infinite cache hits 25 (52.08 %)" in " ".join(capsys.readouterr().out.split())


def test_a_prompt_that_fits_no_pool_is_counted_as_refused(tmp_path: Path) -> None:
    name = trace(tmp_path, list(range(20)), list(range(20)))
    assert bench.main(["--trace", name, "--gib", "1", "--record", str(tmp_path / "r")]) == 0
    (record,) = read_all([tmp_path / "r"])
    assert record.counters["1 GiB, refused"] == 2
    assert record.counters["1 GiB, hits"] == 0 < record.counters["1 GiB, lru"]


def test_ctrl_c_keeps_what_was_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bench.row_of

    def interrupted(*arguments: object) -> bench.Row:
        if arguments[1] == 2:
            raise KeyboardInterrupt
        return whole(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(bench, "row_of", interrupted)
    name = trace(tmp_path, list(range(20)), list(range(20)))
    arguments = ["--trace", name, "--gib", "1", "--gib", "2", "--record", str(tmp_path / "r")]
    assert bench.main(arguments) == bench.INTERRUPTED
    (record,) = read_all([tmp_path / "r"])
    assert record.options["complete"] == "no"
    assert "1 GiB, lru" in record.counters
    assert "2 GiB, lru" not in record.counters


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--trace", "nothing"], "no trace 'nothing'"),
        (["--impl", "nobody"], "no implementation 'nobody'"),
    ],
)
def test_what_cannot_be_counted_is_said(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(arguments) == bench.USAGE_ERROR
    assert said in capsys.readouterr().err


def stored(name: str) -> list[list[str]]:
    """The cells of the stored table of a trace."""
    text = bench.PAGE.read_text(encoding="utf-8")
    section = text.partition(f"## {name}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines[2:]]


@pytest.mark.parametrize("name", bench.TRACES)
def test_the_stored_rates_are_in_the_order_in_which_they_must_be(name: str) -> None:
    rows = [[int(cell.replace(",", "")) for cell in (*row[2:8:2], row[8])] for row in stored(name)]
    assert len(rows) > 5
    for hits, lru, optimum, refused in rows:
        assert lru <= optimum
        assert hits == lru or refused
    for column in (1, 2):  # a larger cache hits no less
        values = [row[column] for row in rows]
        assert values == sorted(values)
    assert rows[-1][0] == rows[-1][1] == rows[-1][2]


def test_the_stored_page_is_what_is_counted() -> None:
    """A part of it: the smallest trace at some capacities. ``--check`` compares all."""
    try:
        trace = bench.trace_of("mooncake-synthetic")
    except NoTrace:
        pytest.skip(f"traces are not here: {VARIABLE} names their folder")
    (entry,) = bench.find("radix")
    model = MODELS["llama-3-8b"]
    told = bench.about(trace, model).partition(": ")[2]
    assert told[1:] in bench.PAGE.read_text(encoding="utf-8")
    lines = {row[0]: row for row in stored(trace.name)}
    for gib in (16, 256, 4096):
        row = bench.row_of(trace, gib, entry, model)
        assert lines[f"{gib:,}"] == bench.cells(trace, row)
