"""The attention suite asks for every check, each in exactly one test named after its invariant."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import kvassay.suites.attention
from kvassay.harness.attention import checks
from kvassay.harness.attention.check import CHECKS
from kvassay.harness.attention.law import KERNEL_LAW

SUITE = Path(kvassay.suites.attention.__file__).parent


def asked(source: str) -> list[tuple[str, str]]:
    """Test functions and the checks that they require, as ``assay.require("name")``."""
    return [
        (function.name, call.args[0].value)
        for function in ast.walk(ast.parse(source))
        if isinstance(function, ast.FunctionDef) and function.name.startswith("test_")
        for call in ast.walk(function)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "require"
        and isinstance(call.args[0], ast.Constant)
        and isinstance(call.args[0].value, str)
    ]


def in_suite() -> list[tuple[str, str]]:
    return [each for path in sorted(SUITE.glob("test_*.py")) for each in asked(path.read_text())]


def misfits(found: list[tuple[str, str]]) -> list[str]:
    """Checks that no test, or more than one, asks for; tests of more than one, or of none."""
    tests, names = Counter(test for test, _ in found), Counter(name for _, name in found)
    wrong = [f"check {name}: {names[name]} tests" for name in CHECKS if names[name] != 1]
    wrong += [f"no check {name}" for name in names if name not in CHECKS]
    return wrong + [f"{test}: {number} checks" for test, number in tests.items() if number != 1]


def test_every_check_has_one_test_and_every_test_one_check() -> None:
    assert checks.find("oracle") in CHECKS.values()
    assert len(CHECKS) > 40
    assert misfits(in_suite()) == []


def test_a_check_left_out_asked_for_twice_or_unknown_is_seen() -> None:
    found = in_suite()
    (_, first), *others = found
    assert misfits(others) == [f"check {first}: 0 tests"]
    assert misfits([*found, ("test_k1_again", first)]) == [f"check {first}: 2 tests"]
    assert misfits([*found, ("test_k1_other", "other")]) == ["no check other"]
    twice = 'def test_k1_x(assay):\n    assay.require("oracle")\n    assay.require("needle")\n'
    assert asked(twice) == [("test_k1_x", "oracle"), ("test_k1_x", "needle")]
    assert "test_k1_x: 2 checks" in misfits(asked(twice))


def test_a_test_is_named_after_the_first_invariant_of_its_check_and_after_the_check() -> None:
    for test, name in in_suite():
        invariant, words = re.fullmatch(r"test_(k\d+)_(\w+)", test).groups()  # type: ignore[union-attr]
        assert invariant.upper() == CHECKS[name].invariants[0], test
        assert words == name.replace("-", "_"), test


def test_every_invariant_of_the_law_has_a_check() -> None:
    vouched = {invariant for check in CHECKS.values() for invariant in check.invariants}
    assert vouched == set(KERNEL_LAW)
