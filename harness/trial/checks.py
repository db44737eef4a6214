"""What is a check, family by family: the least that can be taken out, and what is called so.

Of managers, indexes and pairs it is a function of their checkers that compares something and
convicts, as ``hits._check_missed``; whatever the names of what it finds are, it is one comparison.
Of kernels it is a check of the attention suite, of rigs a circumstance, of instruments an
invariant, as the suites have them. (What the driver of kernels looks at with every call is part of
all checks of kernels; in pairs the footprint is a check of its own.)
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from importlib import import_module

from kvassay.harness.trial.planted import Family
from kvassay.harness.trial.without import HARNESS, raising

CHECKERS = {
    Family.MANAGER: ("state", "checker", "hits", "looking", "tables", "mirror", "quiescence"),
    Family.INDEX: ("index.checker", "index.looking"),
    Family.PAIR: ("pairs.worker",),
}
"""Modules whose functions compare and convict."""
BESIDE = {
    Family.PAIR: ("pairs.attending.judged", "attention.driver._check_footprint"),
}
"""What convicts without a `Violation`."""


@cache
def checks_of(family: Family) -> tuple[str, ...]:
    """The names of all checks; none for a family of which it is not tried what is needed."""
    if family in CHECKERS:
        return (*_comparing(CHECKERS[family]), *BESIDE.get(family, ()))
    if family is Family.TORCH:
        import_module("kvassay.harness.attention.checks")
        from kvassay.harness.attention.check import CHECKS

        return tuple(CHECKS)
    if family is Family.RIG:
        from kvassay.harness.rig import conformance

        return tuple(check.circumstance for check in conformance.CHECKS)
    if family is Family.METRICS:
        from kvassay.harness.load.known.law import METRIC_LAW

        return tuple(METRIC_LAW)
    return ()


def _comparing(modules: tuple[str, ...]) -> Iterator[str]:
    """Functions that call what raises a violation, and do not only pass it on."""
    names = {name for _, name in raising()}
    for module in modules:
        tree = ast.parse(inspect.getsource(import_module(f"{HARNESS}{module}")))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name not in names:
                called = {_called(each) for each in ast.walk(node) if isinstance(each, ast.Call)}
                if called & names:
                    yield f"{module}.{node.name}"


def _called(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))
