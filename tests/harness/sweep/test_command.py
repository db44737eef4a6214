"""``kvassay sweep``: the same results with any number of workers, resumed, and with one killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvassay.harness.cli import app
from kvassay.harness.sweep.cells import Cell, Counted, count, grid
from kvassay.harness.sweep.keeping import LINES, TABLE, Kept
from kvassay.harness.sweep.running import NoCluster, connected, run

pytest.importorskip("distributed", reason="a sweep needs dask")
pytestmark = pytest.mark.filterwarnings("default")  # of dask's own
GRID = ("--capacity", 8192, "--capacity", 65536, "--block-size", 256, "--block-size", 512)
BY = ("--policy", "lru", "--policy", "optimum", "--impl", "radix")


def sweep(output: Path, trace: str, *options: object) -> Any:
    arguments = ["sweep", "--output", output, "--trace", trace, *options]
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200"})


def test_any_number_of_workers_counts_the_same(trace: str, tmp_path: Path) -> None:
    tables = []
    for workers in (1, 3):
        folder = tmp_path / f"with-{workers}"
        result = sweep(folder, trace, *GRID, *BY, "--workers", workers)
        assert result.exit_code == 0, result.output
        tables.append((folder / TABLE).read_bytes())
    assert tables[0] == tables[1]
    assert tables[0].count(b"\n") == 1 + 2 * 2 * 3


def test_a_sweep_goes_on_where_it_was(trace: str, tmp_path: Path) -> None:
    assert sweep(tmp_path / "out", trace, *GRID, *BY).exit_code == 0
    lines = (tmp_path / "out" / LINES).read_text().splitlines()
    whole = (tmp_path / "out" / TABLE).read_bytes()
    known = json.loads(lines[0])
    known["counted"]["hit_tokens"] = 7  # as no replay would count it
    (tmp_path / "out" / LINES).write_text(f"{json.dumps(known)}\n{lines[1]}\n{lines[2][:40]}")
    assert sweep(tmp_path / "out", trace, *GRID, *BY).exit_code == 0
    again = (tmp_path / "out" / TABLE).read_bytes()
    assert again != whole
    assert again.count(b",7,") == 1
    assert len((tmp_path / "out" / LINES).read_text().splitlines()) == len(lines)


def test_a_cell_that_fails_is_told_and_the_others_go_on(trace: str, tmp_path: Path) -> None:
    result = sweep(tmp_path / "out", trace, *GRID, "--block-size", 300, "--policy", "lru")
    assert result.exit_code == 1
    assert "block size 300: expected a part or a multiple" in " ".join(result.output.split())
    assert (tmp_path / "out" / TABLE).read_text().count("\n") == 1 + 4


def test_a_failure_is_tried_once_more(tmp_path: Path) -> None:
    tries = tmp_path / "tries"

    def play(cell: Cell) -> Counted:
        with tries.open("a") as out:
            out.write(f"{cell.capacity}\n")
        if cell.capacity == 512 or tries.read_text().split().count(str(cell.capacity)) == 1:
            raise RuntimeError("not today")
        return Counted(1, 0, 2, 1, None)

    kept: dict[Cell, Counted] = {}
    with connected(None, 1) as client:
        cells = grid(["t"], [512], [512, 1024], ["lru"], [])
        failed = run(client, cells, kept.__setitem__, play)
    assert [one.cell.capacity for one in failed] == [512]
    assert failed[0].error == "RuntimeError: not today"
    assert [cell.capacity for cell in kept] == [1024]
    assert sorted(tries.read_text().split()) == ["1024", "1024", "512", "512"]


@contextmanager
def started(*arguments: str, until: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = next(line for line in process.stderr if until in line)
            yield process, line
        finally:
            process.terminate()


def test_a_worker_that_is_killed_loses_nothing(trace: str, tmp_path: Path) -> None:
    cells = grid([trace], [64, 256, 512], [8192 * n for n in range(1, 9)], ["lru", "optimum"], [])
    known = {cell: count(cell) for cell in cells}
    kept = Kept(tmp_path / "out")
    scheduler = ("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0")
    with started(*scheduler, "--no-dashboard", until="Scheduler at:") as (_, told):
        address = told.split()[-1]
        worker = ("distributed.cli.dask_worker", address, "--no-nanny", "--no-dashboard")
        one_thread = ("--nthreads", "1")
        with (
            started(*worker, *one_thread, until="Registered to:") as (victim, _),
            started(*worker, *one_thread, until="Registered to:"),
            connected(address, 1) as client,
        ):

            def keep(cell: Cell, counted: Counted) -> None:
                kept.add(cell, counted)
                if len(kept.found) == len(cells) // 4:
                    victim.send_signal(signal.SIGKILL)

            assert not run(client, cells, keep)
        assert victim.returncode == -signal.SIGKILL
    assert kept.found == known


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--capacity", 8192, "--policy", "random"), "expected one of lru, leaf-lru"),
        (("--capacity", 8, "--policy", "lru"), "expected at least a block, 16"),
        (("--capacity", 8192), "expected at least one trace"),
    ],
)
def test_what_is_no_grid_is_said(
    trace: str, tmp_path: Path, options: tuple[object, ...], told: str
) -> None:
    result = sweep(tmp_path / "out", trace, *options)
    assert result.exit_code == 2
    assert told in result.stderr
    assert not (tmp_path / "out").exists()


def test_no_scheduler_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvassay.harness.sweep.running.PATIENCE", 0.2)
    with (
        pytest.raises(NoCluster, match="no scheduler at tcp://127"),
        connected("tcp://127.0.0.1:9", 1),
    ):
        pass


def test_without_dask_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, trace: str, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    result = sweep(tmp_path / "out", trace, *GRID, *BY)
    assert result.exit_code == 2
    assert "pip install distributed" in result.stderr


def test_policies_and_a_manager_count_what_the_trace_allows(trace: str) -> None:
    cells = grid([trace], [512], [65536, 10**7], ["lru", "optimum", "infinite"], ["radix"])
    hits = {(cell.capacity, cell.policy or cell.impl): count(cell).hit_tokens for cell in cells}
    assert hits[10**7, "lru"] == hits[10**7, "infinite"] == hits[10**7, "radix"]
    assert hits[65536, "radix"] == hits[65536, "lru"] < hits[65536, "optimum"]
    assert hits[65536, "optimum"] < hits[65536, "infinite"]
