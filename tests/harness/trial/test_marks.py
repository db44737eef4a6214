"""Corrupted code is recognised when it is run: functions, methods, edits of a source."""

from __future__ import annotations

from kvassay.harness.trial.marks import mark_of_edit, marks_of, watched


class Base:
    def inherited(self) -> int:
        return 1

    def own(self) -> int:
        return 1


class Below(Base):
    def own(self) -> int:
        return super().own()

    @property
    def shown(self) -> int:
        return 2

    @staticmethod
    def still() -> int:
        return 3


def test_a_class_is_marked_by_what_it_defines() -> None:
    names = {name for _, name in marks_of(Below)}
    assert {"Below.own", "Below.shown", "Below.still"} <= names
    assert marks_of(Below()) == marks_of(Below)
    assert marks_of(test_a_class_is_marked_by_what_it_defines) == {
        ("test_marks.py", "test_a_class_is_marked_by_what_it_defines")
    }


def test_calls_of_marked_functions_are_counted_and_no_others() -> None:
    with watched(marks_of(Below)) as watch:
        Base().own()
        Below().inherited()
    assert watch.calls == 0
    with watched(marks_of(Below)) as watch:
        assert Below().own() + Below().shown + Below.still() == 6
    assert watch.calls == 3


SOURCE = """
import math

LIMIT = 3


def outer(x):
    def inner(y):
        return y + 1

    return inner(x)


class Thing:
    def method(self):
        return LIMIT
"""


def test_an_edit_is_marked_by_the_innermost_function_around_it() -> None:
    def at(text: str) -> set[str]:
        line = SOURCE[: SOURCE.index(text)].count("\n") + 1
        return {name for _, name in mark_of_edit(SOURCE, "some/where.py", line)}

    assert at("return y") == {"outer.<locals>.inner"}
    assert at("return inner") == {"outer"}
    assert at("return LIMIT") == {"Thing.method"}
    assert at("LIMIT = 3") == set()
