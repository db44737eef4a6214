"""Assays of a prefix index: every planted fault is convicted, every control is not."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import replace
from itertools import count, repeat
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kvassay.harness import campaign
from kvassay.harness import scenario as of_managers
from kvassay.harness.campaign import Budget, Campaign, Geometry, Outcome
from kvassay.harness.checker import Effect
from kvassay.harness.contract import CacheKey, Declaration, Match, Node, PrefixIndex, Span
from kvassay.harness.evidence import Seen
from kvassay.harness.explain import Told
from kvassay.harness.health import Health
from kvassay.harness.index import scenario as ops
from kvassay.harness.index.explain import explain
from kvassay.harness.index.law import FLOORS, LAW
from kvassay.harness.index.misuse import answers
from kvassay.harness.index.scenario import IndexScenario, from_json, load, to_json
from kvassay.harness.index.session import build, explore, replay
from kvassay.harness.registry import Registration, find
from kvassay.harness.scenario import BadScenario, Peek, Reset
from kvassay.harness.session import without_inspection
from kvassay.harness.violation import Crash, Violation
from kvassay.impls.faulty.index_controls import CONTROLS
from kvassay.impls.faulty.indexes import FAULTS
from kvassay.impls.radix_index import DECLARATION, RadixIndex

SHORT = 8
LOOKING = ["inspected", "blind"]


@pytest.fixture(autouse=True)
def _soon_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """One conviction is enough here; do not look long for others."""
    monkeypatch.setattr(campaign, "FURTHER", 40)


def registered(name: str, looking: str = "inspected") -> Registration:
    (found,) = find(name)
    if looking == "inspected":
        return found
    return replace(found, declaration=without_inspection(found.declaration))


def mine(factory: Any, declaration: Declaration = DECLARATION) -> Registration:
    return Registration("mine", PrefixIndex, factory, declaration)


def assay(registration: Registration, examples: int, **options: Any) -> Outcome:
    return Campaign(registration, "index", Budget(examples), **options).run()


# -------------------------------------------------------------------------------- faults, controls


@pytest.mark.parametrize("looking", LOOKING)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_convicted(name: str, looking: str) -> None:
    registration = registered(f"index-fault-{name}", looking)
    findings = assay(registration, 120).findings
    accepted = [findings[id] for id in FAULTS[name].accepted if id in findings]
    assert accepted, f"convicted only under {sorted(findings)}"
    shortest = min(accepted, key=lambda finding: finding.scenario.num_counted)
    assert shortest.scenario.num_counted <= SHORT
    assert isinstance(shortest.scenario, IndexScenario)
    assert replay(registered("radix-index", looking), shortest.scenario).verdict is None


@pytest.mark.parametrize("looking", LOOKING)
@pytest.mark.parametrize("name", CONTROLS)
def test_a_control_is_acquitted(name: str, looking: str) -> None:
    outcome = assay(registered(f"index-control-{name}", looking), 80)
    assert outcome.findings == {}
    assert outcome.num_operations > 2_000


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_the_built_in_passes_and_the_run_is_healthy(page_size: int) -> None:
    registration = registered("radix-index")
    outcome = assay(registration, 150, geometry=Geometry(block_size=page_size))
    assert outcome.findings == {}
    below = Health.of(outcome, registration.declaration, FLOORS).below_floors()
    assert [text for text in below if page_size > 1 or "fill a page" not in text] == []
    for invariant in LAW.values():
        assert invariant.claim(registration.declaration) is None
        assert invariant.missing(outcome.met, registration.declaration) == []


def test_every_fault_says_what_it_hides_behind_and_names_the_law() -> None:
    assert len(FAULTS) >= 12
    assert len(CONTROLS) >= 3
    for fault in FAULTS.values():
        assert fault.accepted <= set(LAW)
        assert fault.hides


# ---------------------------------------------------------------------------------------- scenarios

EVERYTHING = IndexScenario(
    None,
    4,
    (
        ops.Match("r", CacheKey((1, 2), "a", "b")),
        ops.Insert(CacheKey((1, 2), spans=(Span(0, 1, "x"),))),
        ops.Lock("r"),
        ops.Unlock("r"),
        ops.Evict(3),
        Reset(),
        Peek(CacheKey((4,))),
    ),
    name="everything",
    note="a note",
    violates="P1 in mine",
)


@pytest.mark.parametrize("capacity", [None, 8])
def test_a_scenario_comes_back_from_its_file(tmp_path: Path, capacity: int | None) -> None:
    scenario = replace(EVERYTHING, capacity=capacity)
    path = tmp_path / "one.json"
    path.write_text(to_json(scenario))
    assert load(path) == scenario
    assert to_json(load(path)) == to_json(scenario)


def test_generated_scenarios_come_back_and_run_alike() -> None:
    registration = registered("radix-index")
    for seed in range(20):
        run = explore(registration, Random(seed), seed % 5, 2, length=25)
        assert isinstance(run.scenario, IndexScenario)
        again = from_json(to_json(run.scenario))
        assert again == run.scenario
        repeated = replay(registration, again)
        assert repeated.verdict is None
        assert repeated.met == run.met


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"kvassay index scenario"', '"other"', "expected the format kvassay index scenario"),
        ('"op": "match"', '"op": "admit"', "expected op to be one of match, insert"),
        ('"page_size": 4', '"page_size": 0', "pages of 0: expected >= 1"),
        ('"num_tokens": 3', '"num_tokens": "x"', "num_tokens"),
    ],
)
def test_what_is_no_scenario_says_why(old: str, new: str, says: str) -> None:
    text = to_json(EVERYTHING)
    assert old in text
    with pytest.raises(BadScenario, match=says):
        from_json(text.replace(old, new))


def test_the_two_kinds_of_scenario_are_told_apart() -> None:
    with pytest.raises(BadScenario, match="that of a cache manager, got kvassay index scenario"):
        of_managers.from_json(to_json(EVERYTHING))
    pool = of_managers.to_json(of_managers.Scenario(1, 1, ()))
    with pytest.raises(BadScenario, match="expected the format kvassay index scenario"):
        from_json(pool)


# ---------------------------------------------------------------------------------------- checking


def effects(*operations: ops.Operation, declaration: Declaration = DECLARATION) -> list[Effect]:
    checker = build(mine(RadixIndex, declaration), 4, 2)
    return [checker.step(operation) for operation in operations]


KEY = CacheKey((1, 2, 3, 4))


def test_what_is_not_legal_is_skipped() -> None:
    bare = Declaration()
    skipped = (ops.Evict(1), Reset(), Peek(KEY), ops.Lock("r"), ops.Insert(CacheKey((1,), "a")))
    assert effects(*skipped, declaration=bare) == [Effect.SKIPPED] * 5
    assert effects(ops.Lock("r"), ops.Unlock("r"), ops.Evict(0)) == [Effect.SKIPPED] * 3
    held = (ops.Insert(KEY), ops.Match("r", KEY), ops.Lock("r"))
    assert effects(*held, Reset(), ops.Match("r", KEY))[3:] == [Effect.SKIPPED] * 2


def test_a_handle_is_not_locked_after_a_change() -> None:
    change = ops.Insert(CacheKey((9, 9)))
    done = effects(ops.Insert(CacheKey((1, 2))), ops.Match("r", KEY), change, ops.Lock("r"))
    assert done[-1] is Effect.SKIPPED


def test_refusals_and_misuse_are_told_from_success() -> None:
    assert effects(ops.Insert(KEY), ops.Insert(CacheKey((9, 9)))) == [Effect.DONE, Effect.REFUSED]
    assert effects(ops.Insert(KEY), ops.Match("r", KEY), ops.Unlock("r"))[-1] is Effect.REFUSED


class Wrong(RadixIndex):
    """Answers what it is told to."""

    answer: Any = None

    def match(self, key: CacheKey) -> Any:
        return self.answer


@pytest.mark.parametrize(
    ("answer", "invariant"),
    [
        (Match(-2, []), "P3"),
        (Match(3, [0, 1, 2]), "P3"),
        (Match(6, [0, 1, 2, 3, 0, 0]), "P3"),
        (Match(2, [0]), "P3"),
        (Match(4, [0, 1, 2, 77]), "P5"),
        (Match(4, [0, 1, 3, 2]), "P1"),
        (Match(4, [4, 5, 2, 3]), "P2"),
        (Match(4, [6, 7, 2, 3]), "P11"),
        (Match(2, [0, 1]), "P6"),
        (Match(0, []), "P12"),
    ],
)
def test_a_wrong_answer_convicts_under_its_invariant(answer: Match, invariant: str) -> None:
    checker = build(mine(type("Told", (Wrong,), {"answer": answer})), None, 2)
    for key in (KEY, CacheKey((9, 9)), CacheKey((1, 2))):
        checker.step(ops.Insert(key))
    with pytest.raises(Violation) as told:
        checker.step(ops.Match("r", KEY))
    assert told.value.invariant == invariant
    assert (told.value.index, told.value.operation) == (3, ops.Match("r", KEY))


@pytest.mark.parametrize("answer", [None, Match(2, None), Match(2, ["a", "b"])])  # type: ignore[arg-type]
def test_an_answer_that_cannot_be_used_is_an_error(answer: Any) -> None:
    checker = build(mine(type("Told", (Wrong,), {"answer": answer})), None, 2)
    checker.step(ops.Insert(KEY))
    with pytest.raises(Crash, match="cannot be used"):
        checker.step(ops.Match("r", KEY))


@pytest.mark.parametrize(
    ("method", "answer", "invariant"),
    [
        ("match", lambda self, key: Match(2, repeat(0)), "P3"),  # type: ignore[arg-type]
        ("evict", lambda self, number: repeat(0), "P9"),
        ("walk", lambda self: map(Node, count(), repeat(None), repeat(()), repeat(())), "P8"),
    ],
)
def test_an_answer_without_end_is_read_as_far_as_it_may_go(
    method: str, answer: Any, invariant: str
) -> None:
    endless = mine(type("Endless", (RadixIndex,), {method: answer}))
    operations = (ops.Insert(KEY), ops.Match("r", KEY), ops.Evict(1))
    assert replay(mine(RadixIndex), IndexScenario(None, 2, operations)).verdict is None
    verdict = replay(endless, IndexScenario(None, 2, operations)).verdict
    assert isinstance(verdict, Violation)
    assert verdict.invariant == invariant


def test_the_run_tells_what_it_met() -> None:
    met = explore(registered("radix-index"), Random(1), 4, 2, length=60).met
    assert met[Seen.HIT]
    assert met[Seen.EVICTED_ON_DEMAND]


# ------------------------------------------------------------------------------------------ telling


def test_a_violation_is_told_step_by_step_with_what_is_stored() -> None:
    operations = (
        ops.Insert(KEY),
        ops.Match("r", KEY),
        ops.Lock("r"),
        ops.Insert(CacheKey((1, 2, 9, 9))),
    )
    told = Told()
    faulty = registered("index-fault-split-loses-lock")
    lines = list(explain(faulty, IndexScenario(None, 2, operations), told))
    assert lines[0] == "index-fault-split-loses-lock: no limit, pages of 2"
    assert "       [1 2 3 4]* -> [0 1 2 3]" in lines
    assert "  3  insert [1 2 9 9]   <-- here" in lines
    assert lines[-1] == str(told.verdict)
    assert "P7 lock lost, operation 3 (insert)" in lines[-1]
    assert "held by r" in lines[-1]


# ------------------------------------------------------------------------------------------- misuse


def test_the_built_in_refuses_all_misuse() -> None:
    found = answers(registered("radix-index"))
    assert len(found) > 25
    assert [answer for answer in found if answer.problem or not answer.refused] == []


def test_misuse_that_is_accepted_is_told() -> None:
    found = answers(registered("index-fault-unlock-unchecked"))
    problems = [answer.misuse for answer in found if answer.problem]
    assert problems == [
        "unlock of a handle without a lock",
        "unlock of something that is no handle",
    ]


# ------------------------------------------------------------------------------------- the suite

pytest_plugins = ["pytester"]


def run_suites(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """`pytest --pyargs` with the plugin and nothing of the repository's set-up."""
    pytester.makeini("[pytest]")
    return pytester.runpytest_subprocess(
        *("-c", "tox.ini", "-p", "kvassay.harness.plugin", "--import-mode=importlib"),
        *("--examples=60", "--pyargs", *arguments),
        timeout=60,
    )


def test_suites_leave_out_what_they_do_not_assay(pytester: pytest.Pytester) -> None:
    both = ("kvassay.suites.index", "kvassay.suites.cow")
    result = run_suites(pytester, *both, "--impl=radix-index")
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=17, deselected=5)
    assert "P6  splitting is invisible" in result.stdout.str()
    result = run_suites(pytester, "kvassay.suites.cow", "--impl=radix-index", "-n2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    expected = (
        "nothing to assay: radix-index is a PrefixIndex; the suites here are for CacheManager"
    )
    result.stderr.fnmatch_lines([f"*{expected}*"])


def test_a_faulty_file_fails_with_a_replay_that_works(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        my_index="""
        from kvassay.harness.contract import PrefixIndex
        from kvassay.harness.registry import implementation
        from kvassay.impls.faulty.indexes import SplitLosesLock
        from kvassay.impls.radix_index import DECLARATION

        implementation("leaky", kind=PrefixIndex, declaration=DECLARATION)(SplitLosesLock)
        """
    )
    result = run_suites(pytester, "kvassay.suites.index", "--impl=./my_index.py")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*P7 locks protect: P7 lock lost*", "*<-- here"])
    told = re.findall(r"^replay: +kvassay (replay .*-P7\.json .*)$", result.stdout.str(), re.M)
    again = pytester.run(Path(sys.executable).with_name("kvassay"), *shlex.split(told[0]))
    assert again.ret == 1
    again.stdout.fnmatch_lines(["*P7 lock lost*"])
