"""The checkers of managers and indexes with some of their checks taken out.

A check is known by its invariant, or by its *place*: the function of the checker that compared. One
that is taken out finds nothing wrong, and the run goes on: so it is seen whether any other check
would have noticed. Only for processes that end afterwards: what is replaced is shared.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

from kvassay.harness import quiescence
from kvassay.harness.calling import Calling
from kvassay.harness.diagnosis import Diagnosis
from kvassay.harness.index.diagnosis import Telling
from kvassay.harness.mirror import Mirror
from kvassay.harness.violation import Violation


@contextmanager
def without(checks: frozenset[str]) -> Iterator[None]:
    """Nothing is convicted by these invariants, or at these places; violations note theirs."""
    with ExitStack() as stack:
        for owner, name in _raising():
            function = _plain(owner, name)
            muted: Any = _muted(function, checks)
            if isinstance(vars(owner)[name], staticmethod):
                muted = staticmethod(muted)
            stack.enter_context(patch.object(owner, name, muted))
        yield


def _raising() -> Iterator[tuple[Any, str]]:
    """Every function that raises a `Violation`."""
    yield Calling, "_fail"
    yield Mirror, "_fail"
    yield quiescence, "_demand"
    for diagnosis in (Diagnosis, Telling):
        for name, member in vars(diagnosis).items():
            if callable(member) and not name.startswith("__"):
                yield diagnosis, name


def _plain(owner: Any, name: str) -> Callable[..., Any]:
    member = vars(owner)[name]
    function: Callable[..., Any] = getattr(member, "__func__", member)
    return function


def _muted(function: Callable[..., Any], checks: frozenset[str]) -> Callable[..., Any]:
    @wraps(function)
    def muted(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except Violation as violation:
            if not violation.place:
                violation.place = sys._getframe(1).f_code.co_qualname
            if not checks & {violation.invariant, violation.place}:
                raise
            return None

    return muted
