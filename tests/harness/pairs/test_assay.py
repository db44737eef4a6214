"""From a campaign to verdicts, a stored scenario and its replay; as a user runs it, too."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvassay.harness.assay import AssayError, Plan
from kvassay.harness.attention.oracle_kernel import twisted
from kvassay.harness.campaign import Budget
from kvassay.harness.cli import app
from kvassay.harness.contract import CacheManager, Declaration, PagedAttention
from kvassay.harness.pairs.assay import PairAssay
from kvassay.harness.pairs.law import PAIR_LAW
from kvassay.harness.pairs.scenario import PairScenario, from_json, load, to_json
from kvassay.harness.pairs.session import Pair
from kvassay.harness.registry import Registration
from kvassay.harness.scenario import BadScenario, Scenario
from kvassay.harness.scenario import from_json as plain_from_json
from kvassay.harness.verdict import Status
from kvassay.impls.faulty.managers import FAULTS

pytest_plugins = ["pytester"]
SOURCE = """
from kvassay.harness.contract import CacheManager
from kvassay.harness.registry import implementation
from kvassay.impls.faulty.managers import FAULTS

FAULT = FAULTS["copy-forgotten"]
implementation("mine", kind=CacheManager, declaration=FAULT.declaration)(FAULT.build)
"""


def assay(folder: Path, make: Callable[..., Pair], *halves: Any, examples: int = 12) -> PairAssay:
    pair = make(*halves)
    plan = Plan(Budget(examples), examples=examples, counterexamples=folder)
    return PairAssay(pair.manager, pair.kernel, plan)


def verdicts(assayed: PairAssay) -> dict[str, Status]:
    for invariant in PAIR_LAW:
        try:
            assayed.require(invariant)
        except (pytest.fail.Exception, pytest.skip.Exception):
            continue
    news = [each["verdict"] for each in assayed.take_news() if "verdict" in each]
    return {each["invariant"]: Status(each["status"]) for each in news}


def test_a_right_pair_passes_what_its_manager_claims(
    tmp_path: Path, make: Callable[..., Pair]
) -> None:
    assayed = assay(tmp_path, make, "paged", "torch")
    found = verdicts(assayed)
    assert {i for i, status in found.items() if status is Status.PASS} == {
        *("A2", "A7", "C1", "C2", "K1", "K2")
    }
    assert {*found.values()} == {Status.PASS, Status.NOT_CLAIMED}
    assayed.require_control()
    assayed.require_nothing_else()
    assert not list(tmp_path.iterdir())


def test_a_wrong_pair_fails_with_a_scenario_that_is_stored_and_known(
    tmp_path: Path, make: Callable[..., Pair]
) -> None:
    fault = FAULTS["copy-forgotten"]
    wrong = Registration("mine", CacheManager, fault.build, fault.declaration, reference="./m.py")
    assayed = assay(tmp_path, make, wrong)
    assert verdicts(assayed)["C2"] is Status.FAIL
    with pytest.raises(pytest.fail.Exception, match=r"manager is at fault.*C2 lost copy") as failed:
        assayed.require("C2")
    assert "replay:   kvassay replay" in str(failed.value)
    assert "--impl ./m.py --impl torch" in str(failed.value)
    (path,) = tmp_path.iterdir()
    stored = load(path)
    assert path.name == "mine+torch-C2.json"
    assert (stored.manager, stored.kernel) == ("./m.py", "torch")
    assert stored.violates == "C2 in mine+torch"
    again = assay(tmp_path, make, wrong).outcome
    assert again.finding is not None
    assert (again.finding.known, again.examples) == (True, 1)


def test_what_no_test_speaks_of_fails_all_the_same(
    tmp_path: Path, make: Callable[..., Pair]
) -> None:
    assayed = assay(tmp_path, make, "paged", lambda: twisted("no-scale")(Declaration()))
    assert Status.FAIL not in verdicts(assayed).values()
    with pytest.raises(pytest.fail.Exception, match="the kernel is at fault: K9"):
        assayed.require_nothing_else()
    told = [each["verdict"]["invariant"] for each in assayed.take_news() if "verdict" in each]
    assert told == ["K9"]


def test_a_deviation_of_either_half_is_one_of_the_pair(
    tmp_path: Path, make: Callable[..., Pair]
) -> None:
    (tmp_path / "mine.deviations.toml").write_text(
        '[[deviation]]\ninvariant = "C2"\nscope = "lost copy"\nreason = "known"\n'
        'link = "https://example.org/1"\n'
    )
    fault = FAULTS["copy-forgotten"]
    wrong = Registration(
        "mine", CacheManager, fault.build, fault.declaration, origin=tmp_path / "mine.py"
    )
    assayed = assay(tmp_path / "found", make, wrong)
    with pytest.raises(pytest.xfail.Exception, match="known"):
        assayed.require("C2")


def test_a_pair_that_has_shown_nothing_has_not_reached_anything(
    tmp_path: Path, make: Callable[..., Pair]
) -> None:
    class Refuses:
        def __call__(self, batch: Any) -> Any:
            raise NotImplementedError("anything")

    assayed = assay(tmp_path, make, "paged", Refuses)
    assert {*verdicts(assayed).values()} == {Status.NOT_REACHED, Status.NOT_CLAIMED}
    with pytest.raises(pytest.fail.Exception, match="nothing was attended to"):
        assayed.require_control()


def test_evidence_does_not_help_a_campaign_whose_controls_went_unseen(
    tmp_path: Path, make: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    assayed = assay(tmp_path, make, "paged", "torch")
    monkeypatch.setattr(assayed.outcome, "blind", "the control was not convicted")
    assert {*verdicts(assayed).values()} == {Status.NOT_REACHED, Status.NOT_CLAIMED}
    with pytest.raises(pytest.fail.Exception, match="the control was not convicted"):
        assayed.require_control()


def test_a_kernel_that_cannot_be_built_ends_the_assay(tmp_path: Path) -> None:
    def broken() -> Any:
        raise KeyError("no device")

    kernel = Registration("mine", PagedAttention, broken, Declaration())
    manager = Registration("m", CacheManager, FAULTS["full-hit"].build, Declaration())
    with pytest.raises(AssayError, match=r"m\+mine: building mine: KeyError: 'no device'"):
        PairAssay(manager, kernel, Plan(counterexamples=tmp_path))


# ------------------------------------------------------------------------------ files, replays


def test_the_file_of_a_pair_is_its_own_format(tmp_path: Path) -> None:
    scenario = PairScenario.of(Scenario(3, 2, ()), "radix", "torch")
    text = to_json(scenario)
    assert from_json(text) == scenario
    with pytest.raises(BadScenario, match="expected the format that of a cache manager"):
        plain_from_json(text)


@pytest.fixture
def stored(tmp_path: Path, make: Callable[..., Pair]) -> Path:
    """The scenario of a lost copy, and beside it the manager that loses it."""
    (tmp_path / "mine.py").write_text(SOURCE)
    fault = FAULTS["copy-forgotten"]
    assay(tmp_path, make, Registration("mine", CacheManager, fault.build, fault.declaration))
    return tmp_path / "mine+torch-C2.json"


@pytest.mark.usefixtures("own_registry")
def test_a_replay_needs_both_halves_and_exits_as_it_goes(stored: Path) -> None:
    def replay(*names: str | Path) -> Any:
        halves = [part for name in names for part in ("--impl", str(name))]
        return CliRunner().invoke(app, ["replay", str(stored), *halves])

    wrong = replay(stored.parent / "mine.py", "torch")
    assert wrong.exit_code == 1
    assert re.search(r"^ +3  append .* <-- here$", wrong.output, re.MULTILINE)
    assert "the manager is at fault: C2 lost copy" in wrong.output
    right = replay("radix", "torch")
    assert right.exit_code == 0
    assert "no violation in" in right.output
    alone = replay("radix")
    assert alone.exit_code == 2
    assert "expected --impl for a manager and for a kernel" in alone.stderr


# ------------------------------------------------------------------------------ as a user runs it


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    pytester.makeini("[pytest]")
    return pytester.runpytest_subprocess(
        *("-c", "tox.ini", "-p", "kvassay.harness.plugin", "--import-mode=importlib", "-ra"),
        *("--pyargs", "kvassay.suites.integration", "--examples=6"),
        *arguments,
        timeout=120,
    )


def test_a_manager_alone_is_paired_and_that_is_told(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(mine=SOURCE)
    result = run(pytester, "--impl=./mine.py")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "kvassay: no kernel named: managers are paired with torch",
            "*the manager is at fault: C2 lost copy*",
            "C2  copies are complete * fail",
            "mine+torch (Pair): *",
        ]
    )


def test_a_pair_of_two_names_passes_in_two_processes(pytester: pytest.Pytester) -> None:
    folders = pytester.path, pytester.path / "again"
    kept = [f"--record={folder}" for folder in folders]
    result = run(pytester, "--impl=paged", "--impl=torch", "-n2", *kept)
    assert result.ret == pytest.ExitCode.OK
    assert "named" not in result.stdout.str()
    result.stdout.fnmatch_lines(["paged+torch (Pair): [1-9]* examples, *"])
    first, second = (list(folder.glob("*-paged+torch-integration-*.json")) for folder in folders)
    assert '"kind": "Pair"' in first[0].read_text()
    assert first[0].read_text() == second[0].read_text()


def test_what_is_neither_manager_nor_kernel_is_a_usage_error(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--impl=radix-index")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*nothing to assay: radix-index is a PrefixIndex*"])


def test_collecting_the_suites_imports_no_torch() -> None:
    check = (
        "import sys, kvassay.harness.plugin, kvassay.harness.cli;"
        "import kvassay.suites.integration.test_integration, kvassay.suites.cow.test_cow;"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
