"""A stranger's repository adopts by copying one file: its steps pass, and with a fault they fail.

The steps are those of the workflow file itself, run by bash in a repository that has a folder
``harness/`` of its own and a cache that knows nothing of kvassay.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="reading a workflow needs pyyaml")
REPOSITORY = Path(__file__).parents[2]
WORKFLOW = REPOSITORY / "suites" / "adoption" / "kvassay.yml"
PLUGIN = "kvassay.harness.plugin"
BRIDGE = REPOSITORY / "impls" / "bridge" / "kvassay_adapter.py"
CACHE = '''
"""A paged cache without prefixes; a block goes back when its request leaves."""


class Pool:
    def __init__(self, blocks, size):
        self.size, self.free, self.tables, self.lengths = size, list(range(blocks)), {}, {}

    def grow(self, name, count):
        table, length = self.tables[name], self.lengths[name] + count
        need = -(-length // self.size) - len(table)
        if need > len(self.free):
            raise RuntimeError("OOM: no block is free")
        table += [self.free.pop() for _ in range(need)]
        self.lengths[name] = length

    def leave(self, name):
        self.free += self.tables.pop(name)
        del self.lengths[name]
'''
ADAPTER = """
import harness  # the repository's own
from cache import Pool
from kvassay_adapter import OutOfBlocks, serve

assert harness.MINE


class Manager:
    def __init__(self, num_blocks, block_size):
        self.num_blocks, self.block_size = num_blocks, block_size
        self.pool = Pool(num_blocks, block_size)

    def admit(self, request, key):
        self.pool.tables[request], self.pool.lengths[request] = [], 0
        try:
            self.append(request, key.tokens)
        except OutOfBlocks:
            self.pool.leave(request)
            raise
        return 0

    def append(self, request, tokens):
        try:
            self.pool.grow(request, len(tokens))
        except RuntimeError as error:
            raise OutOfBlocks(str(error)) from None

    def block_table(self, request):
        return list(self.pool.tables[request])

    def release(self, request, outcome="finished"):
        self.pool.leave(request)


if __name__ == "__main__":
    serve(Manager, name="stranger", declaration={"capabilities": []})
"""
FAULT = ("self.free += self.tables.pop(name)", "self.free += self.tables.pop(name)[:-1]")


def steps() -> dict[str, dict[str, Any]]:
    """The workflow's steps that have a name."""
    (job,) = yaml.safe_load(WORKFLOW.read_text("utf-8"))["jobs"].values()
    return {step["name"]: step for step in job["steps"] if "name" in step}


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "harness").mkdir(parents=True)
    (folder / "harness" / "__init__.py").write_text("MINE = True\n")
    (folder / "cache.py").write_text(CACHE)
    # The names that the workflow expects: the bridge's file, and an adapter beside it.
    shutil.copy(BRIDGE, folder / "kvassay_adapter.py")
    (folder / "adapter.py").write_text(ADAPTER)
    return folder


def run(name: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A step, as the runner would."""
    known = {
        "RUNNER_TEMP": str(folder.parent / "temp"),
        "GITHUB_STEP_SUMMARY": str(folder.parent / "summary.md"),
        "ADAPTER": f"{sys.executable} adapter.py",
        "MODE": "check",
        "PYTEST_ADDOPTS": "--examples 60",
    }
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", steps()[name]["run"]],
        cwd=folder,
        env={**os.environ, **known, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture
def installed(stranger: Path) -> Path:
    """As if the first step had been made: the interpreter that the second one calls."""
    python = stranger.parent / "temp" / "kvassay" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return stranger


def test_a_correct_cache_passes(installed: Path) -> None:
    done = run("Assay", installed)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    summary = (installed.parent / "summary.md").read_text()
    assert "## kvassay: nothing is broken" in summary
    assert "| A3 release exactly once | pass |" in summary
    assert list((installed / "kvassay-out" / "records").glob("*.json"))


def test_a_fault_fails_with_its_scenario(installed: Path) -> None:
    cache = installed / "cache.py"
    cache.write_text(cache.read_text().replace(*FAULT))
    done = run("Assay", installed)
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
    summary = (installed.parent / "summary.md").read_text()
    assert "verdicts are fail or error" in summary
    assert "release r1" in summary
    assert '"operations"' in summary
    assert "Replay: `kvassay replay kvassay-out/scenarios/stranger-A" in summary
    assert list((installed / "kvassay-out" / "scenarios").glob("stranger-A*.json"))


@pytest.mark.long
def test_the_harness_installs_into_an_environment_of_its_own(stranger: Path) -> None:
    environment = {
        "KVASSAY": str(REPOSITORY),
        "PIP_CONSTRAINT": str(REPOSITORY / "constraints.txt"),
    }
    installed = run("Install the harness", stranger, **environment)
    assert installed.returncode == 0, installed.stderr[-3000:]
    done = run("Assay", stranger, PYTHONPATH="", PYTEST_ADDOPTS="")
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.long
def test_the_source_distribution_installs_and_assays_from_another_folder(tmp_path: Path) -> None:
    """The wheel is tried by `tox run -e wheel`."""
    source, away, made = tmp_path / "source", tmp_path / "away", tmp_path / "dist"
    left = shutil.ignore_patterns(".git", ".tox", "build", "*.egg-info", "__pycache__", ".*_cache")
    shutil.copytree(REPOSITORY, source, ignore=left)
    away.mkdir()
    python = tmp_path / "venv" / "bin" / "python"
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    alone["PIP_CONSTRAINT"] = str(REPOSITORY / "constraints.txt")

    def do(*command: object, cwd: Path = away) -> str:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=cwd,
            env=alone,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    do(sys.executable, "-m", "venv", tmp_path / "venv")
    do(python, "-m", "pip", "install", "--quiet", "build")
    do(python, "-m", "build", "--sdist", "--outdir", made, source)
    (sdist,) = made.glob("*.tar.gz")
    do(python, "-m", "pip", "install", "--quiet", sdist)
    where = do(python, "-c", "import kvassay; print(kvassay.__file__)").strip()
    assert Path(where).is_relative_to(tmp_path / "venv")
    few = ("--impl", "radix", "--impl", "radix-index", "--examples", "20")
    said = do(python, "-m", "pytest", "--pyargs", "kvassay.suites", "-p", PLUGIN, *few)
    assert "A3  release exactly once" in said
    assert "P6  splitting is invisible" in said


def test_the_action_and_the_workflow_assay_alike() -> None:
    action = yaml.safe_load((REPOSITORY / "action.yml").read_text("utf-8"))
    (assay,) = (one["run"] for one in action["runs"]["steps"] if one["name"] == "Assay")
    for option in (
        "--pyargs kvassay.suites",
        "-p kvassay.harness.plugin",
        "--assay",
        "-P -m pytest",
    ):
        assert option in assay
        assert option in steps()["Assay"]["run"]
