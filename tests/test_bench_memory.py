"""The memory benchmark: what the stored page says is what comes out, and is what was promised."""

from __future__ import annotations

from functools import cache

import pytest

from kvassay.harness.memory.lengths import Lengths, lengths_of
from kvassay.harness.memory.reserving import MAX, Paged
from kvassay.harness.registry import find
from kvassay.harness.traces.finding import VARIABLE, NoTrace, requests
from kvassay.suites.benchmarks import memory as bench


def lengths(trace: str) -> Lengths:
    try:
        return lengths_of(requests(trace))
    except NoTrace:
        pytest.skip(f"{trace} is not here: {VARIABLE} names the folder of traces")


@cache
def rows_of(trace: str) -> list[bench.Row]:
    return bench.rows_of(trace, lengths(trace))


@pytest.mark.parametrize(
    ("trace", "waste"),
    [
        ("azure-conversation", (0.26, 0.54, 1.12, 2.21, 4.38)),
        ("azure-code", (0.17, 0.37, 0.73, 1.51, 3.04)),
    ],
)
def test_waste_on_the_azure_traces(trace: str, waste: tuple[float, ...]) -> None:
    by_policy = {row.policy: row for row in rows_of(trace)}
    for size, expected in zip((8, 16, 32, 64, 128), waste, strict=True):
        assert 100 * by_policy[Paged(size)].end.waste == pytest.approx(expected, abs=0.005)
    blocks, runs = by_policy[Paged(16)], by_policy[MAX]
    for use in (blocks.end, blocks.life):
        assert use.waste < 0.01
    for use in (runs.end, runs.life):
        assert use.waste > 0.60
        assert use.later + use.never == use.held - use.filled
    assert blocks.pool.share(blocks.pool.use.filled) > 0.99
    assert runs.pool.live < blocks.pool.live / 3


@pytest.mark.parametrize("trace", bench.TRACES)
def test_the_stored_page_is_what_is_measured(trace: str) -> None:
    """A part of it: the tables of lengths. ``--check`` compares all."""
    rows, text = rows_of(trace), bench.PAGE.read_text(encoding="utf-8")
    assert bench.life_table(rows, trace) in text
    assert bench.pool_table(rows, trace) in text
    for row in rows:
        line = next(line for line in text.splitlines() if line.startswith(f"| {row.policy.name} |"))
        cells = [cell.strip() for cell in line.split("|")[2:-1]]
        assert cells[bench.TRACES.index(trace)] == bench.percent(row.end.waste)


def test_the_stored_savings_are_what_is_measured() -> None:
    (entry,) = find("paged")
    got = bench.sharing_of("azure-code", lengths("azure-code"), 2, entry)
    line = bench.sharing_table([got]).splitlines()[-1]
    assert line in bench.PAGE.read_text(encoding="utf-8").splitlines()


def test_without_traces_it_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert bench.main([]) == 2
    assert f"set {VARIABLE} to the folder of traces" in capsys.readouterr().err
