"""The plugin in a process of its own, in a folder that is not the repository."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

SOURCE = """
from kvassay.harness.contract import CacheManager
from kvassay.harness.registry import implementation
from kvassay.impls.faulty.hashed import DECLARATION, HashedCache
from kvassay.impls.faulty.managers import FullHit

implementation({name!r}, kind=CacheManager, declaration=DECLARATION)({build})
"""


def assay(pytester: pytest.Pytester, *arguments: str, examples: int = 60) -> pytest.RunResult:
    """`pytest --pyargs kvassay.suites` with the plugin and nothing of the repository's set-up."""
    pytester.makeini("[pytest]")
    return pytester.runpytest_subprocess(
        *("-c", "tox.ini", "-p", "kvassay.harness.plugin", "--import-mode=importlib", "-ra"),
        *("--pyargs", "kvassay.suites", f"--examples={examples}"),
        *arguments,
        timeout=60,
    )


def write(pytester: pytest.Pytester, name: str, build: str) -> str:
    pytester.makepyfile(my_cache=SOURCE.format(name=name, build=build))
    return "--impl=./my_cache.py"


def row(result: pytest.RunResult, invariant: str) -> str:
    """The line of the verdict table: where CI is set, pytest repeats every message below it."""
    table = result.stdout.str().partition("kvassay verdicts")[2].partition("total ")[0]
    (line,) = re.findall(rf"^{invariant} .*$", table, re.M)
    return line


def test_a_faulty_file_fails_with_the_table_and_a_replay_that_works(
    pytester: pytest.Pytester,
) -> None:
    result = assay(pytester, write(pytester, "leaky", "FullHit"))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert row(result, "P3").split()[-1] == "fail"
    assert row(result, "A2").split()[-1] == "pass"
    assert row(result, "P7").endswith("not claimed")
    result.stdout.fnmatch_lines(["*P3 declared hit law: P3 hit law broken*", "*<-- here"])
    told = re.findall(r"^replay: +(kvassay replay .*-P3\.json .*)$", result.stdout.str(), re.M)
    command = shlex.split(told[-1])
    command[0] = str(Path(sys.executable).with_name("kvassay"))
    again = subprocess.run(command, cwd=pytester.path, capture_output=True, text=True, check=False)
    assert again.returncode == 1, again.stderr
    assert "P3 hit law broken" in again.stdout
    assert (pytester.path / "results/counterexamples/leaky-P3.json").is_file()


def test_a_correct_file_passes(pytester: pytest.Pytester) -> None:
    result = assay(pytester, write(pytester, "sound", "HashedCache"), examples=150)
    outcomes = result.parseoutcomes()
    assert result.ret == pytest.ExitCode.OK
    assert outcomes["passed"] > 20
    assert "failed" not in outcomes
    assert row(result, "P3").split()[-1] == "pass"
    assert not (pytester.path / "results").exists()


def test_an_unknown_implementation_is_a_usage_error(pytester: pytest.Pytester) -> None:
    result = assay(pytester, "--impl=no-such-cache")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--impl no-such-cache: no implementation 'no-such-cache'*"])


def test_each_campaign_runs_once_however_many_workers_there_are(
    pytester: pytest.Pytester,
) -> None:
    """Four suites of 40 examples; one campaign more would show in the sum."""
    impl = write(pytester, "sound", "HashedCache")
    for workers in ("-n0", "-n2"):
        result = assay(pytester, impl, workers, examples=40)
        assert result.ret == pytest.ExitCode.OK
        result.stdout.fnmatch_lines(["sound (CacheManager): 160 examples, *"])


TWINS = """
from kvassay.harness.contract import CacheManager, PrefixIndex
from kvassay.harness.registry import implementation

@implementation("twin", kind=CacheManager)
class Manager:
    def __init__(self, num_blocks, block_size):
        self.num_blocks, self.block_size = num_blocks, block_size
    def admit(self, request, key): raise ZeroDivisionError("the manager")
    def append(self, request, tokens): ...
    def block_table(self, request): ...
    def release(self, request, outcome=None): ...

@implementation("twin", kind=PrefixIndex)
class Index:
    def __init__(self, capacity, page_size): ...
    def insert(self, key, values): raise ZeroDivisionError("the index")
    def match(self, key): raise ZeroDivisionError("the index")
"""


def test_kinds_that_share_a_name_are_told_apart(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(my_cache=TWINS)
    result = assay(pytester, "--impl=./my_cache.py", "-k", "(allocator and a1) or (index and p1)")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    told = result.stdout.str()
    for kind, file in (("CacheManager", "twin-error"), ("PrefixIndex", "twin-PrefixIndex-error")):
        assert re.search(rf"^twin \({kind}\): \d+ examples", told, re.M)
        assert f"counterexamples/{file}.json --impl" in told
    folder = pytester.path / "results/counterexamples"
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    assert set(texts) == {"twin-error.json", "twin-PrefixIndex-error.json"}
    assert len(set(texts.values())) == 2


def test_a_missing_method_is_named(pytester: pytest.Pytester) -> None:
    lame = "class Lame(HashedCache):\n    fork = None\n\n\nimplementation("
    source = SOURCE.format(name="lame", build="Lame").replace("implementation(", lame)
    pytester.makepyfile(my_cache=source)
    result = assay(pytester, "--impl=./my_cache.py", "-k", "allocator and a1")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*lame declares FORK, which needs the method fork()*"])


def test_the_options_alone_change_nothing_for_others(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_own="def test_own():\n    pass\n")
    pytester.makeini("[pytest]")
    result = pytester.runpytest_subprocess("-c", "tox.ini", "-v", "-W", "error", "test_own.py")
    assert result.ret == pytest.ExitCode.OK
    assert "kvassay:" not in result.stdout.str()
    result = pytester.runpytest_subprocess("-c", "tox.ini", "--help")
    result.stdout.fnmatch_lines(["*--impl=REF*"])
