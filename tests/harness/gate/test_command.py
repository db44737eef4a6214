"""``kvassay gate`` as somebody runs it: on files, in processes of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvassay.harness.cli import app
from kvassay.harness.gate import gate as module
from kvassay.harness.record import read_all

FILE = """
from kvassay.harness.contract import CacheManager
from kvassay.harness.registry import implementation
from kvassay.impls.faulty.managers import FAULTS
from kvassay.impls.faulty.hashed import DECLARATION, HashedCache

print("a line on stdout")
implementation("mine", kind=CacheManager, declaration=DECLARATION)({build})
"""


def gate(*options: object, **environment: str) -> Any:
    arguments = ["gate", *map(str, options)]
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200", **environment})


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return written(tmp_path / "base.py", "HashedCache")


def written(path: Path, build: str) -> Path:
    path.write_text(FILE.format(build=build), encoding="utf-8")
    return path


def test_equal_counters_pass(base: Path, tmp_path: Path) -> None:
    head = written(tmp_path / "head.py", "HashedCache")
    summary, folder = tmp_path / "summary.md", tmp_path / "records"
    result = gate(
        *("--base", base, "--head", head, "--only", "counters", "--record", folder),
        GITHUB_STEP_SUMMARY=str(summary),
    )
    assert result.exit_code == 0, result.output
    assert "## kvassay gate: PASS" in summary.read_text()
    found = {one.options["side"]: one for one in read_all([folder])}
    assert found["base"].counters == found["head"].counters
    assert found["base"].counters["hits"] > 1000
    assert found["base"].counters["evictions"] > 1000
    assert found["base"].options["gate"] == found["head"].options["gate"]


def test_a_verdict_that_is_worse_fails(base: Path, tmp_path: Path) -> None:
    head = written(tmp_path / "head.py", 'FAULTS["wrong-victim-fifo"].build')
    only = ("--only", "verdicts", "--examples", 60)
    result = gate("--base", base, "--head", head, *only)
    assert result.exit_code == 1, result.output
    assert "head breaks it, and base does not" in result.output


def test_a_counter_that_is_worse_fails(tmp_path: Path) -> None:
    """Found by the path in front alone, as a checkout before a change is."""
    for folder, build in (("old", "HashedCache"), ("new", 'FAULTS["match-past-hole"].build')):
        (tmp_path / folder).mkdir()
        written(tmp_path / folder / "my_cache_of_gate.py", build)
    name, old, new = "my_cache_of_gate", tmp_path / "old", tmp_path / "new"
    sides = ("--base", name, "--head", name, "--only", "counters")
    result = gate(*sides, "--base-path", old, "--head-path", new)
    assert result.exit_code == 1, result.output
    assert str(new) in result.output
    assert gate(*sides, "--base-path", new, "--head-path", old).exit_code == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--base", "radix", "--head", "radix-index"), "CacheManager and PrefixIndex"),
        (("--base", "radix", "--head", "no-such"), "head (no-such)"),
        (("--base", "radix", "--head", "radix", "--only", "speed"), "expected some of verdicts"),
        (("--base", "radix", "--head", "radix", "--base-path", "nowhere"), "no such folder"),
        (("--base", "radix", "--head", "radix", "--thresholds", "nowhere"), "cannot be read"),
        (
            ("--base", "radix", "--head", "radix", "--only", "times", "--rounds", 2),
            "need at least 10, got 2",
        ),
        (
            ("--base", "radix", "--head", "kvassay.impls.faulty.slow"),
            "expected one alone, or a name",
        ),
    ],
)
def test_what_cannot_be_compared_is_status_3(options: tuple[object, ...], told: str) -> None:
    result = gate(*options)
    assert result.exit_code == 3, result.output
    assert told in result.stderr


@pytest.mark.parametrize(("slower", "status"), [(1.0, 0), (1.2, 1), (1.05, 2)])
def test_times_decide_by_their_interval(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, slower: float, status: int
) -> None:
    spread = [1 + 0.01 * (number % 5 - 2) for number in range(24)]
    pairs = [(1e-3, 1e-3 * slower * one) for one in spread]
    monkeypatch.setattr(module, "timed", lambda *rest: ({"release": pairs}, ""))
    folder = tmp_path / "records"
    result = gate(*("--base", "radix", "--head", "radix", "--only", "times", "--record", folder))
    assert result.exit_code == status, result.output
    head = next(one for one in read_all([folder]) if one.options["side"] == "head")
    assert head.metrics[0].samples == [after for _, after in pairs]


@pytest.mark.long
def test_a_slower_head_fails(tmp_path: Path) -> None:
    """Nine tenths slower: to be seen on any machine, and no matter how fast."""
    folder = tmp_path / "records"
    source = """
from kvassay.harness.contract import CacheManager
from kvassay.harness.registry import implementation
from kvassay.impls.faulty import slow

implementation("mine", kind=CacheManager, declaration=slow.RADIX.declaration)(slow.built(900))
"""
    head = tmp_path / "head.py"
    head.write_text(source, encoding="utf-8")
    result = gate(
        *("--base", "radix", "--head", head, "--only", "times", "--rounds", 10, "--record", folder)
    )
    assert result.exit_code == 1, result.output
    kept = {one.options["side"]: one for one in read_all([folder])}
    for metric in kept["base"].metrics:
        assert len(metric.samples) == 10
        assert all(second > 0 for second in metric.samples), json.dumps(metric.samples)
