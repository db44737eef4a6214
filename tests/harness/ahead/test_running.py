"""Compiling that goes wrong is told, never passed over."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest

from kvassay.harness.ahead import running
from kvassay.harness.ahead.compiling import Interpreted, use_compiler
from kvassay.harness.ahead.gates import GATES
from kvassay.harness.ahead.report import Report
from kvassay.harness.ahead.targets import TARGETS


@dataclass
class NoLaunch:
    kernel: Any = None
    arguments: tuple[Any, ...] = ()
    constants: dict[str, Any] = field(default_factory=dict)
    options: dict[str, int] = field(default_factory=dict)


@dataclass
class Nothing:
    name: str = "nothing"
    launch: NoLaunch = field(default_factory=NoLaunch)
    phase: str = "decode"
    tile_bytes: int = 32768
    narrow: tuple[int, ...] = ()


@pytest.mark.parametrize("target", TARGETS)
def test_what_does_not_compile_is_a_report_that_every_gate_objects_to(target: str) -> None:
    pytest.importorskip("triton")
    report = running.report(Nothing(), TARGETS[target])
    assert report.error == "kvassay.harness.ahead.compiling.Interpreted: " + (
        "expected a kernel to compile, got NoneType"
    )
    assert [name for name, gate in GATES.items() if gate(report)] == list(GATES)
    assert "error: kvassay" in running.table([report])


def test_an_interpreter_cannot_be_told_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", running)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(Interpreted, match="TRITON_INTERPRET=0"):
        use_compiler()
    monkeypatch.delitem(sys.modules, "triton")
    use_compiler()
    assert os.environ["TRITON_INTERPRET"] == "0"


def test_a_table_has_a_row_for_each_report() -> None:
    reports = [Report(name, target, "other") for target in ("sm_90", "gfx942") for name in "ab"]
    lines = running.table(reports).splitlines()
    assert [line for line in lines if "|" not in line and line] == ["sm_90", "gfx942"]
    assert sum(line.startswith(("| a ", "| b ")) for line in lines) == 4


def test_a_source_that_is_not_there_ends_in_an_error(tmp_path: Any) -> None:
    path = tmp_path / "reports.json"
    done = subprocess.run(
        [sys.executable, "-m", "kvassay.harness.ahead.running", "kvassay.nowhere:shipped", path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "kvassay.nowhere" in done.stderr
    assert not path.exists()
