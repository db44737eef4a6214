"""The law: every id is enforced by one suite and one test, and says what it needs."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kvassay.harness.contract import Declaration
from kvassay.harness.evidence import Seen
from kvassay.harness.invariants import LAW, of_suite

SUITES = ("allocator", "cow", "prefix", "events")
HOUSE = Path(__file__).parents[2]
CACHE = ["prefix_cache"]


def required(suite: str) -> dict[str, list[str]]:
    """Test function -> ids that it requires, read from the source."""
    tree = ast.parse((HOUSE / "suites" / suite / f"test_{suite}.py").read_text())
    return {
        function.name: [
            call.args[0].value
            for call in ast.walk(function)
            if isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == "require"
            and isinstance(call.args[0], ast.Constant)
        ]
        for function in tree.body
        if isinstance(function, ast.FunctionDef)
    }


def test_every_id_belongs_to_exactly_one_suite() -> None:
    everywhere = [entry.id for suite in SUITES for entry in of_suite(suite)]
    assert sorted(everywhere) == sorted(LAW)
    assert {entry.suite for entry in LAW.values()} == set(SUITES)
    assert all(entry.id == name for name, entry in LAW.items())


@pytest.mark.parametrize("suite", SUITES)
def test_every_id_is_required_by_one_test_named_after_it(suite: str) -> None:
    tests = required(suite)
    for name, ids in tests.items():
        assert len(ids) == 1, f"{name} requires {ids}"
        assert name.startswith(f"test_{ids[0].lower()}_"), name
    ids = Counter(each for found in tests.values() for each in found)
    assert ids == Counter(entry.id for entry in of_suite(suite))


@pytest.mark.parametrize(
    ("name", "claims", "lacks"),
    [
        ("A5", Declaration(), Declaration(reclaim="reset")),
        ("A5", Declaration(["reset"], reclaim="reset"), Declaration(reclaim="reset")),
        ("A6", Declaration(), Declaration(reclaim="reset")),
        ("C1", Declaration(["fork"]), Declaration()),
        ("C1", Declaration(CACHE), Declaration()),
        ("C2", Declaration(["copies"]), Declaration(["fork"])),
        ("P1", Declaration(CACHE), Declaration()),
        ("P2", Declaration(CACHE), Declaration()),
        ("P3", Declaration(CACHE), Declaration()),
        ("P4", Declaration([*CACHE, "commit"]), Declaration(CACHE)),
        ("P4", Declaration([*CACHE, "truncate"]), Declaration(["truncate"])),
        ("P4", Declaration([*CACHE, "drafts"]), Declaration(["drafts"])),
        ("P4", Declaration(CACHE, publish="release"), Declaration(publish="release")),
        (
            "P4",
            Declaration([*CACHE, "commit"]),
            Declaration([*CACHE, "commit"], publish="reservation"),
        ),
        ("P5", Declaration(CACHE), Declaration()),
        ("P6", Declaration(CACHE, unit=1), Declaration(CACHE)),
        ("P6", Declaration(CACHE, unit=1), Declaration(unit=1)),
        ("P7", Declaration([*CACHE, "chunked"]), Declaration(["chunked"])),
        ("P8", Declaration([*CACHE, "counters"]), Declaration(CACHE)),
        ("P9", Declaration(["evict"]), Declaration(CACHE)),
        ("P10", Declaration(CACHE, order="fifo"), Declaration(CACHE)),
        ("P10", Declaration(CACHE, order="fifo"), Declaration(order="fifo")),
        ("P11", Declaration(CACHE), Declaration()),
        ("P12", Declaration(CACHE), Declaration()),
        ("E1", Declaration(["events"]), Declaration()),
        ("E2", Declaration(["events"]), Declaration()),
    ],
)
def test_a_claim_needs_what_it_speaks_of(
    name: str, claims: Declaration, lacks: Declaration
) -> None:
    assert LAW[name].claim(claims) is None
    assert LAW[name].claim(lacks)


@pytest.mark.parametrize("name", ["A1", "A2", "A3", "A4", "A7"])
def test_the_core_is_claimed_by_everybody(name: str) -> None:
    assert LAW[name].claim(Declaration(reclaim="reset", placement="contiguous")) is None


@pytest.mark.parametrize("declared", [Declaration(), Declaration(window=4)], ids=["", "window"])
@pytest.mark.parametrize("name", list(LAW))
def test_a_verdict_needs_one_state_of_every_group(name: str, declared: Declaration) -> None:
    entry = LAW[name]
    demanded = entry.demands(declared)
    assert demanded
    assert (demanded == entry.reached) == (not declared.windowed or not entry.behind_windows)
    for members in (min, max):
        met = Counter({members(group): 1 for group in demanded})
        assert entry.missing(met, declared) == []
    assert len(entry.missing(Counter(), declared)) == len(demanded)
    for group in demanded:
        rest = Counter(dict.fromkeys(set(Seen) - set(group), 1))
        assert " or ".join(seen.value for seen in group) in entry.missing(rest, declared)


@pytest.mark.parametrize("name", ["A1", "A5", "A7", "P1", "P2", "P3"])
def test_where_there_are_windows_one_must_have_passed_something(name: str) -> None:
    assert LAW[name].behind_windows


@pytest.mark.parametrize("more", [{"window": 4}, {"capabilities": {"groups", "events"}}])
@pytest.mark.parametrize("name", ["P10", "E1", "E2"])
def test_victims_and_events_are_not_judged_over_windows(name: str, more: dict[str, Any]) -> None:
    capabilities = {"prefix_cache", "events", *more.get("capabilities", ())}
    declared = Declaration(**more | {"capabilities": capabilities, "order": "fifo"})
    assert "window" in str(LAW[name].claim(declared)) or "passed" in str(LAW[name].claim(declared))
