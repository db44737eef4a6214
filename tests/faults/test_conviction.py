"""A file outside the repository with one fault in it is convicted, as its author would run it.

Under an accepted invariant, with a short scenario, exit status 1, and the stored scenario replays;
with the implementation's own inspection and without, on usual and on pinned shapes. The same file
without the fault passes, and so do the controls.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvassay.harness.scenario import load
from kvassay.impls.faulty.managers import FAULTS

PATIENCE = 180
OF_MANAGERS = tuple(f"kvassay.suites.{name}" for name in ("allocator", "cow", "prefix", "events"))
"""The others have nothing to say of a manager, and import PyTorch."""
BLIND = ("--no-inspection",)
"""The harder way; with inspection `tox run -e trial` convicts every fault."""
SHORT = 8
REQUIRED = (
    "key-drops-last-token",
    "recycled-keeps-key",
    "salt-ignored",
    "cow-above-two",
    "copy-forgotten",
    "copy-reversed",
    "refusal-keeps-blocks",
    "published-before-commit",
    "aborted-is-published",
    "drafts-published-at-release",
    "full-hit",
    "tail-leaked",
    "truncation-keeps-key",
    "wrong-victim",
    "wrong-victim-fifo",
    "evict-too-much",
    "evict-too-much-silently",
    "match-past-hole",
    "duplicate-frees-canonical",
    "fork-forgets-parent-reference",
)
USUAL = REQUIRED[::3]
RARE = [pytest.param(name, marks=pytest.mark.long) for name in REQUIRED if name not in USUAL]
"""A run of its own takes seconds; `tox run -e trial` convicts all of them in every CI run."""
FAULTY = """
from kvassay.harness.contract import CacheManager
from kvassay.harness.registry import implementation
from kvassay.impls.faulty.managers import FAULTS

FAULT = FAULTS[{name!r}]
implementation("mine", kind=CacheManager, declaration=FAULT.declaration)(FAULT.build)
"""
CORRECT = """
from kvassay.harness.contract import CacheManager
from kvassay.harness.registry import implementation
from kvassay.impls.faulty import controls, hashed

implementation("mine", kind=CacheManager, declaration=hashed.DECLARATION)(hashed.HashedCache)
"""


def assay(
    folder: Path, source: str, *options: str, suites: tuple[str, ...] = ("kvassay.suites",)
) -> subprocess.CompletedProcess[str]:
    """Run suites from a foreign folder on a file in it."""
    (folder / "mine.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "--pyargs", *suites, "-q"]
    command += ["-p", "kvassay.harness.plugin", "-p", "no:cacheprovider", "--impl", "./mine.py"]
    return subprocess.run(
        [*command, *options],
        cwd=folder,
        env={**os.environ, "PYTEST_ADDOPTS": "", "PYTEST_XDIST_WORKER": ""},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def convictions(folder: Path) -> dict[str, Path]:
    """The stored counterexamples by invariant."""
    stored = (folder / "results/counterexamples").glob("mine-*.json")
    return {path.stem.removeprefix("mine-"): path for path in stored}


@pytest.mark.parametrize("inspection", [pytest.param((), marks=pytest.mark.long), BLIND])
@pytest.mark.parametrize("name", [*USUAL, *RARE])
def test_a_fault_is_convicted(tmp_path: Path, name: str, inspection: tuple[str, ...]) -> None:
    run = assay(tmp_path, FAULTY.format(name=name), *inspection, suites=OF_MANAGERS)
    assert run.returncode == 1, run.stdout
    found = convictions(tmp_path)
    accepted = {invariant: found[invariant] for invariant in FAULTS[name].accepted & set(found)}
    assert accepted, f"convicted only under {sorted(found)}"
    shortest = min(load(path).num_counted for path in accepted.values())
    assert shortest <= SHORT
    for invariant, path in accepted.items():
        assert json.loads(path.read_text())["violates"] == f"{invariant} in mine"
        assert f"{invariant:<4}" in run.stdout


@pytest.mark.long
@pytest.mark.parametrize("shape", [("64", "16"), ("4", "32")], ids="x".join)
@pytest.mark.parametrize("name", ["wrong-victim-fifo", "copy-forgotten", "match-past-hole"])
def test_a_fault_is_convicted_on_any_shape(
    tmp_path: Path, name: str, shape: tuple[str, str]
) -> None:
    num_blocks, block_size = shape
    pinned = ("--num-blocks", num_blocks, "--block-size", block_size, "--no-inspection")
    run = assay(tmp_path, FAULTY.format(name=name), *pinned, suites=OF_MANAGERS)
    assert run.returncode == 1, run.stdout
    found = {invariant: load(path) for invariant, path in convictions(tmp_path).items()}
    accepted = [found[invariant] for invariant in FAULTS[name].accepted & set(found)]
    assert accepted, f"convicted only under {sorted(found)}"
    assert min(scenario.num_counted for scenario in accepted) <= SHORT
    assert {scenario.block_size for scenario in accepted} == {int(block_size)}


def test_the_same_file_without_a_fault_passes(tmp_path: Path) -> None:
    run = assay(tmp_path, CORRECT, "--examples", "400")
    assert run.returncode == 0, run.stdout
    assert not convictions(tmp_path)


@pytest.mark.long
def test_the_bump_allocator_passes(tmp_path: Path) -> None:
    run = assay(tmp_path, CORRECT, "--impl", "control-bump", "--examples", "400")
    assert run.returncode == 0, run.stdout
    assert "control-bump" in run.stdout


def test_managers_that_publish_at_release_pass(tmp_path: Path) -> None:
    both = ("--impl", "control-publish-at-finish", "--impl", "control-drafts-at-release")
    run = assay(tmp_path, CORRECT, *both, "--examples", "120")
    assert run.returncode == 0, run.stdout
    (reached,) = re.findall(r"^P4 .*$", run.stdout, re.MULTILINE)
    assert reached.count("pass") == 3
