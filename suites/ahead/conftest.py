"""Compiles once, in a process of its own: this one may be using Triton's interpreter.

As it takes minutes and looks at the built-in kernel alone, whatever ``--impl`` says, the suite is
left out of a run that does not name its folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvassay.harness.ahead.report import Report, from_json
from kvassay.harness.ahead.running import table
from kvassay.harness.ahead.targets import TARGETS
from kvassay.harness.plugin import asked_for

FOLDER = Path(__file__).parent
SHIPPED = "kvassay.impls.triton_shipped:shipped"
SLOW = "kvassay.impls.faulty.ahead:slow"
TABLES = pytest.StashKey[list[str]]()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """True for everything here, unless the command line names something here."""
    return None if asked_for(FOLDER, config) else True


def compiled(
    reference: str, targets: list[str], folder: Path, config: pytest.Config
) -> list[Report]:
    """Reports of all launches that a module names; their table is shown at the end of the run."""
    path = folder / "reports.json"
    done = subprocess.run(
        [sys.executable, "-m", "kvassay.harness.ahead.running", reference, str(path), *targets],
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reports = [from_json(one) for one in json.loads(path.read_text(encoding="utf-8"))]
    config.stash.setdefault(TABLES, []).append(table(reports))
    return reports


@pytest.fixture(scope="session")
def shipped(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> list[Report]:
    """What the built-in kernel compiles to, on every target."""
    return compiled(SHIPPED, list(TARGETS), tmp_path_factory.mktemp("shipped"), request.config)


@pytest.fixture(scope="session")
def slow(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> list[Report]:
    """What must not pass."""
    return compiled(SLOW, ["sm_90", "gfx942"], tmp_path_factory.mktemp("slow"), request.config)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for shown in config.stash.get(TABLES, []):
        terminalreporter.write_line("")
        terminalreporter.write_line(shown)
