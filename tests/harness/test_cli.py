"""The command line: what is listed, and the exit status of a replay."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvassay.harness.cli import app
from kvassay.harness.contract import CacheKey
from kvassay.harness.scenario import Admit, Commit, Fork, Release, Scenario, to_json

pytestmark = pytest.mark.usefixtures("own_registry")
WRONG = Scenario(
    4,
    2,
    (Admit("a", CacheKey((1, 2))), Commit("a"), Release("a"), Admit("b", CacheKey((1, 2)))),
)
SOURCE = """
from kvassay.harness.contract import CacheManager
from kvassay.harness.registry import implementation
from kvassay.impls.faulty.hashed import DECLARATION
from kvassay.impls.faulty.managers import {build}

implementation("cli-{build}", kind=CacheManager, declaration=DECLARATION)({build})
"""


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "400"})


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """A prompt of whole blocks that comes again: it must not hit to its end."""
    path = tmp_path / "wrong.json"
    path.write_text(to_json(WRONG))
    return path


def write(folder: Path, build: str) -> Path:
    path = folder / f"{build}.py"
    path.write_text(SOURCE.format(build=build))
    return path


def test_lists_the_built_ins_with_their_capabilities() -> None:
    result = run("list")
    assert result.exit_code == 0
    rows = {line.split()[0]: line for line in result.output.splitlines()}
    assert "CacheManager" in rows["paged"]
    assert "fork" in rows["paged"]
    assert "prefix_cache" not in rows["paged"]
    assert "prefix_cache" in rows["radix"]
    assert "unit=1" in rows["radix"]


def test_lists_a_line_for_each_kind_of_a_name() -> None:
    lines = [line for line in run("list").output.splitlines() if line.startswith("contiguous ")]
    assert ["CacheManager" in line for line in lines] == [True, False]
    assert ["PagedAttention" in line for line in lines] == [False, True]


UNTOUCHED = """
import sys
from kvassay.harness.cli import app

app(sys.argv[1:], standalone_mode=False)
print("with torch" if "torch" in sys.modules else "without torch")
"""


@pytest.mark.parametrize("command", ["list", "replay"])
def test_who_asks_for_no_kernel_does_not_wait_for_torch(command: str, scenario: Path) -> None:
    """Every kernel is listed, and the name `contiguous` is a kernel's too."""
    arguments = {"list": ["list"], "replay": ["replay", str(scenario), "--impl", "contiguous"]}
    ask = [sys.executable, "-c", UNTOUCHED, *arguments[command]]
    wide = {**os.environ, "COLUMNS": "400"}
    told = subprocess.run(ask, capture_output=True, text=True, check=True, env=wide).stdout
    assert told.splitlines()[-1] == "without torch"
    assert {"list": "PagedAttention", "replay": "no violation"}[command] in told


@pytest.mark.parametrize("columns", [20, 80])
def test_never_breaks_a_listed_name(tmp_path: Path, columns: int) -> None:
    name = "a-name-" * 20
    path = tmp_path / "long.py"
    path.write_text(SOURCE.format(build="FullHit").replace("cli-FullHit", name))
    listed = CliRunner().invoke(
        app, ["list", "--impl", str(path)], env={"COLUMNS": str(columns), "TERM": "dumb"}
    )
    names = [line.split()[0] for line in listed.output.splitlines() if line[:1].isalpha()]
    assert {name, "sglang-unified-python-commit", "radix"} <= set(names)


def test_lists_what_a_file_registers_too(tmp_path: Path) -> None:
    assert "cli-FullHit" not in run("list").output
    assert "cli-FullHit" in run("list", "--impl", write(tmp_path, "FullHit")).output


def test_a_replay_that_shows_a_violation_exits_with_1(tmp_path: Path, scenario: Path) -> None:
    result = run("replay", scenario, "--impl", write(tmp_path, "FullHit"))
    assert result.exit_code == 1
    assert "  3  admit b [1 2]   <-- here" in result.output
    assert "P3 hit law broken, operation 3 (admit)" in result.output


def test_a_replay_without_violation_exits_with_0(scenario: Path) -> None:
    result = run("replay", scenario, "--impl", "radix")
    assert result.exit_code == 0
    assert result.output.splitlines()[-1] == "no violation"


def test_without_inspection_counters_do_not_convict(tmp_path: Path) -> None:
    """A holder that is not counted shows in the reference counts at once, and else not yet."""
    path = tmp_path / "fork.json"
    operations = (Admit("a", CacheKey((1, 2, 3))), Commit("a"), Fork("a", ("b",)))
    path.write_text(to_json(Scenario(4, 2, operations)))
    impl = write(tmp_path, "ForkForgetsParentReference")
    assert run("replay", path, "--impl", impl).exit_code == 1
    assert run("replay", path, "--impl", impl, "--no-inspection").exit_code == 0


ODD = {
    "expected UTF-8": "\u00e9".encode("latin-1"),
    "not a scenario: nested too deeply": b"[" * 100_000,
    "not JSON": b"9" * 5_000,
}


@pytest.mark.parametrize("says", ODD)
def test_a_file_that_no_scenario_could_be_in_takes_one_line(tmp_path: Path, says: str) -> None:
    path = tmp_path / "odd.json"
    path.write_bytes(ODD[says])
    for impl in ("radix", "radix-index"):
        result = run("replay", path, "--impl", impl)
        assert result.exit_code == 2
        (line,) = result.output.splitlines()
        assert line.startswith(f"kvassay: {path}: {says}")


@pytest.mark.parametrize(
    ("file", "impl", "says"),
    [
        ("none.json", "radix", "none.json: cannot be read"),
        ("wrong.json", "no-such-cache", "no implementation 'no-such-cache'"),
        ("wrong.json", "./no_such.py", "no file './no_such.py'"),
        ("wrong.json", "broken.py", "SyntaxError|invalid syntax|never closed"),
        ("bad.json", "radix", "bad.json: not JSON"),
        ("wrong.json", "needy.py", "needs no-such-package"),
    ],
)
def test_what_cannot_be_replayed_exits_with_2(
    tmp_path: Path,
    scenario: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    impl: str,
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "broken.py").write_text("(")
    needy = SOURCE.replace("=DECLARATION)", "=DECLARATION, package='no-such-package')")
    (tmp_path / "needy.py").write_text(needy.format(build="FullHit"))
    result = run("replay", file, "--impl", impl)
    assert result.exit_code == 2
    assert re.search(says, result.stderr), result.stderr
    assert result.stderr.startswith("kvassay: ")


def test_an_option_that_is_missing_exits_with_2(scenario: Path) -> None:
    assert run("replay", scenario).exit_code == 2


def test_starting_imports_nothing_that_takes_long() -> None:
    heavy = ("numpy", "pydantic", "hypothesis", "pandas", "matplotlib", "torch")
    code = f"import sys, kvassay.harness.cli; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
