"""Telling a scenario: step by step, up to the wrong slot and the violation."""

from __future__ import annotations

from kvassay.harness.contract import CacheKey, CacheManager
from kvassay.harness.explain import Told, explain
from kvassay.harness.registry import Registration, find
from kvassay.harness.scenario import Admit, Append, Commit, Fork, Release, Scenario
from kvassay.harness.session import replay
from kvassay.harness.violation import Crash, Violation
from kvassay.impls.faulty.hashed import DECLARATION, HashedCache
from kvassay.impls.faulty.managers import CowAboveTwo

SCENARIO = Scenario(
    4,
    2,
    (
        Admit("a", CacheKey((1, 2, 3))),
        Commit("a"),
        Fork("a", ("b",)),
        Append("a", (7,)),
        Commit("a"),
        Append("b", (8,)),
        Commit("b"),
        Release("a"),
    ),
)


def tell(factory: type[HashedCache]) -> tuple[list[str], Told]:
    told = Told()
    chosen = Registration("mine", CacheManager, factory, DECLARATION)
    return list(explain(chosen, SCENARIO, told)), told


def test_a_violation_is_told_with_the_wrong_slot_marked() -> None:
    lines, told = tell(CowAboveTwo)
    text = "\n".join(lines)
    assert isinstance(told.verdict, Violation)
    assert lines[0] == "mine: 4 blocks of 2 tokens"
    assert "  6  commit b   <-- here" in lines
    assert "[3 8!]" in text
    assert lines[-1] == str(told.verdict)
    assert "C1 write seen by a sharer, operation 6 (commit): expected" in lines[-1]
    assert "release" not in text
    chosen = Registration("mine", CacheManager, CowAboveTwo, DECLARATION)
    assert str(replay(chosen, SCENARIO).verdict) == lines[-1]


def test_a_clean_run_is_told_to_its_end() -> None:
    lines, told = tell(HashedCache)
    text = "\n".join(lines)
    assert told.verdict is None
    assert lines[-1] == "no violation"
    assert "  7  release a outcome=finished   done" in lines
    assert "!" not in text
    assert "<--" not in text


def test_refused_and_skipped_operations_say_so() -> None:
    small = Scenario(1, 2, (Admit("a", CacheKey((1, 2, 3))), Release("a")))
    lines = list(explain(find("paged")[0], small, Told()))
    assert "  0  admit a [1 2 3]   refused" in lines
    assert "  1  release a outcome=finished   skipped" in lines


def test_a_crash_is_told_like_a_violation() -> None:
    class Raises(HashedCache):
        def fork(self, parent: str, children: object) -> None:
            raise ZeroDivisionError("of blocks")

    lines, told = tell(Raises)
    assert isinstance(told.verdict, Crash)
    assert lines[-1] == "error in operation 2 (fork): ZeroDivisionError: of blocks"
