"""Findings: short, complete, and what their code prints is what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from kvassay.harness.engines.random_llama import Sizes, write_model
from kvassay.impls.engines.gguf_model import write_gguf
from kvassay.impls.engines.llama_cpp_engine import PROGRAM as LLAMA_SERVER

FOLDER = Path(__file__).parents[2] / "results" / "findings"
FINDINGS = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
NEEDS = re.compile(r"^- engine: ([a-z-]+)\n- version: (\d[\w.]*)\n- kind: (\w+)", re.MULTILINE)
LINES = 30
PROGRAMS = {"llama-cpp": LLAMA_SERVER}
"""By engine, where it is no package."""


def _version_of(engine: str) -> str | None:
    if engine in PROGRAMS:
        return PROGRAMS[engine].version if PROGRAMS[engine].path else None
    try:
        return version(engine)
    except PackageNotFoundError:
        return None


def test_there_are_findings() -> None:
    assert len(FINDINGS) >= 6


@pytest.mark.parametrize("path", FINDINGS, ids=lambda path: path.stem)
def test_a_finding_is_short_and_complete(path: Path) -> None:
    text = path.read_text("utf-8")
    assert text.count("\n") <= LINES
    for part in ("# ", "**What happens.**", "**Why.**", "# -> "):
        assert part in text
    needs = NEEDS.search(text)
    assert needs, "engine (the package), version and kind stand first"
    assert needs[3] in ("defect", "limitation")


@pytest.mark.parametrize("path", FINDINGS, ids=lambda path: path.stem)
def test_its_code_prints_what_it_says(path: Path, tmp_path: Path) -> None:
    text = path.read_text("utf-8")
    needs, code = NEEDS.search(text), CODE.search(text)
    assert needs
    assert code
    package, wanted, _ = needs.groups()
    here = _version_of(package)
    if here is None:
        pytest.skip(f"needs {package}=={wanted}")
    if not here.startswith(wanted):
        pytest.skip(f"needs {package}=={wanted}, {here} is here")
    if "model.gguf" in text:
        write_gguf(
            write_model(tmp_path, Sizes(vocab_size=320, hidden_size=64, num_attention_heads=2))
        )
    path = os.environ["PATH"]
    if package in PROGRAMS:
        program = PROGRAMS[package]
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / program.name).symlink_to(Path(program.path or "").resolve())
        path = f"{tmp_path / 'bin'}{os.pathsep}{path}"
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code[1]],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    expected = re.findall(r"^# -> (.*)$", text, re.MULTILINE)
    printed = [line for line in run.stdout.splitlines() if not line.startswith("Returning")]
    assert printed == expected, run.stderr
