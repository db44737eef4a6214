"""Whether corrupted code was executed: a fault that was never run has proved nothing.

Functions are known by the name of their file and by their qualified name, so that a source which
is compiled again, or elsewhere, is still recognised.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from types import CodeType, FrameType, FunctionType
from typing import Any

Mark = tuple[str, str]
"""Name of a file, and qualified name of a function in it."""


def mark_of(code: CodeType) -> Mark:
    """The mark of a function's code."""
    return PurePath(code.co_filename).name, code.co_qualname


def marks_of(thing: Any) -> frozenset[Mark]:
    """Of a function, itself; of a class, the functions that it defines and does not inherit."""
    if isinstance(thing, FunctionType):
        return frozenset({mark_of(thing.__code__)})
    if not isinstance(thing, type):
        return marks_of(type(thing))
    functions = (_function(member) for member in vars(thing).values())
    return frozenset(mark_of(each.__code__) for each in functions if each is not None)


def _function(member: Any) -> FunctionType | None:
    if isinstance(member, property):
        member = member.fget
    member = getattr(member, "__func__", member)
    member = getattr(member, "__wrapped__", member)
    return member if isinstance(member, FunctionType) else None


def mark_of_edit(source: str, name: str, line: int) -> frozenset[Mark]:
    """The innermost function of a source that contains a line (from 1); none outside functions."""
    found: list[str] = []
    _descend(ast.parse(source), line, [], found)
    return frozenset({(PurePath(name).name, found[-1])}) if found else frozenset()


def _descend(node: ast.AST, line: int, path: list[str], found: list[str]) -> None:
    for child in ast.iter_child_nodes(node):
        below = path
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not child.lineno <= line <= (child.end_lineno or child.lineno):
                continue
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            below = [*path, *(["<locals>"] if inside else []), child.name]
            if not isinstance(child, ast.ClassDef):
                found.append(".".join(below))
        _descend(child, line, below, found)


class Watched:
    """Whether marked functions were called while it was watched."""

    def __init__(self, marks: frozenset[Mark]) -> None:
        self.marks = marks
        self.calls = 0
        self._known: dict[CodeType, bool] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """To be called by the interpreter on every call and return."""
        if event != "call":
            return
        code = frame.f_code
        marked = self._known.get(code)
        if marked is None:
            marked = self._known[code] = mark_of(code) in self.marks
        self.calls += marked


@contextmanager
def watched(marks: frozenset[Mark]) -> Iterator[Watched]:
    """Count the calls of marked functions on this thread."""
    watch, before = Watched(marks), sys.getprofile()
    sys.setprofile(watch)
    try:
        yield watch
    finally:
        sys.setprofile(before)
