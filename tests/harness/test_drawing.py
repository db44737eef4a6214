"""Drawings: tables in text, with what is shared, unwritten or wrong marked."""

from __future__ import annotations

from kvassay.harness import drawing
from kvassay.harness.checker import Checker
from kvassay.harness.contract import CacheKey, Outcome, Span
from kvassay.harness.registry import find
from kvassay.harness.scenario import Admit, Append, Commit, Fork, Quiesce, Release
from kvassay.harness.session import build


def drawn(checker: Checker) -> list[str]:
    return drawing.tables(checker.model.live, checker.model, checker.device.memory).splitlines()


def started() -> Checker:
    """A request of three tokens in two blocks of two, all written."""
    checker = build(find("paged")[0], 4, 2)
    checker.step(Admit("a", CacheKey((5, 6, 7))))
    checker.step(Commit("a"))
    return checker


def test_shows_tokens_blocks_and_the_end_of_the_request() -> None:
    checker = started()
    first, last = checker.model.live["a"].table
    written = "(3 tokens, 3 written, hit 0)"
    assert drawn(checker) == [f"     a #{first}[5 6] #{last}[7 | .]   {written}"]


def test_marks_shared_blocks_and_unwritten_slots() -> None:
    checker = started()
    checker.step(Fork("a", ("b",)))
    first, last = checker.model.live["a"].table
    assert all(f"#{first}*[5 6] #{last}*[7 | .]" in line for line in drawn(checker))
    unwritten = build(find("radix")[0], 4, 2)
    unwritten.step(Admit("a", CacheKey((5, 6, 7))))
    assert "[. .]" in drawn(unwritten)[0]


def test_marks_the_slot_that_is_wrong_and_no_other() -> None:
    checker = started()
    assert "!" not in drawn(checker)[0]
    first, last = checker.model.live["a"].table
    other = checker.model.tags_of(CacheKey((5, 9)))
    checker.device.memory[first][1] = other[1]
    assert f"#{first}[5 9!] #{last}[7 | .]" in drawn(checker)[0]
    checker.device.begin_tenancies([last], ())
    assert f"#{first}[5 9!] #{last}[.! | .]" in drawn(checker)[0]
    del checker.device.memory[last]
    assert f"#{last}[?]" in drawn(checker)[0]


def test_long_tables_and_blocks_are_shortened() -> None:
    checker = build(find("paged")[0], 20, 1)
    checker.step(Admit("a", CacheKey(tuple(range(20)))))
    assert " .. 4 more " in drawn(checker)[0]
    wide = build(find("paged")[0], 2, 16)
    wide.step(Admit("a", CacheKey((3,) * 12)))
    assert "[3 3 3 3 3 3 3 3 ..]" in drawn(wide)[0]
    assert drawing.tables({}, wide.model, {}) == "(no live request)"


def test_operations_in_one_line() -> None:
    key = CacheKey(tuple(range(20)), "s", "l", (Span(1, 2, "x2"),))
    assert drawing.operation(Admit("a", CacheKey((1, 2)))) == "admit a [1 2]"
    assert drawing.operation(Admit("a", key)) == (
        "admit a [0 1 2 3 4 .. 15 16 17 18 19] (20 tokens) salt=s adapter=l x2@1+2"
    )
    assert drawing.operation(Append("a", (1,))) == "append a [1]"
    assert drawing.operation(Append("a", (1, 2), drafts=1)) == "append a [1 2] drafts=1"
    assert drawing.operation(Commit("a")) == "commit a"
    assert drawing.operation(Fork("a", ("b", "c"))) == "fork a -> b, c"
    assert drawing.operation(Release("a", Outcome.ABORTED)) == "release a outcome=aborted"
    assert drawing.operation(Quiesce()) == "quiesce"
