"""Findings: short, complete, and what their code prints is what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from kvassay.harness.engines.random_llama import Sizes, write_model
from kvassay.impls.engines.gguf_model import write_gguf

FOLDER = Path(__file__).parents[2] / "results" / "findings"
FINDINGS = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
NEEDS = re.compile(r"^- engine: ([a-z-]+)\n- version: (\d[\w.]*)\n- kind: (\w+)", re.MULTILINE)
LINES = 30


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
    try:
        here = version(package)
    except PackageNotFoundError:
        pytest.skip(f"needs {package}=={wanted}")
    if not here.startswith(wanted):
        pytest.skip(f"needs {package}=={wanted}, {here} is here")
    if "model.gguf" in text:
        write_gguf(
            write_model(tmp_path, Sizes(vocab_size=320, hidden_size=64, num_attention_heads=2))
        )
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code[1]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    expected = re.findall(r"^# -> (.*)$", text, re.MULTILINE)
    printed = [line for line in run.stdout.splitlines() if not line.startswith("Returning")]
    assert printed == expected, run.stderr
