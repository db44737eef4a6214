"""The checkers of managers and indexes with some of their checks taken out.

A check is known by its invariant, or by its *place*: the function of the checker that compared, as
``hits._check_missed``. One that is taken out finds nothing wrong, and the run goes on: so it is
seen whether any other check would have noticed. Only for processes that end afterwards: what is
replaced is shared.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import FrameType
from typing import Any
from unittest.mock import patch

from kvassay.harness import diagnosis, quiescence
from kvassay.harness.calling import Calling
from kvassay.harness.diagnosis import Diagnosis
from kvassay.harness.index.diagnosis import Telling
from kvassay.harness.mirror import Mirror
from kvassay.harness.violation import Violation

HARNESS = "kvassay.harness."


@contextmanager
def without(checks: frozenset[str]) -> Iterator[None]:
    """Nothing is convicted by these invariants, or at these places; violations note theirs."""
    with ExitStack() as stack:
        for owner, name in raising():
            function = _plain(owner, name)
            muted: Any = _muted(function, checks)
            if isinstance(vars(owner)[name], staticmethod):
                muted = staticmethod(muted)
            stack.enter_context(patch.object(owner, name, muted))
        yield


def raising() -> Iterator[tuple[Any, str]]:
    """Every function that raises a `Violation` for others: owner and name."""
    yield Calling, "_fail"
    yield Mirror, "_fail"
    yield quiescence, "_demand"
    for owner in (Diagnosis, Telling):
        for name, member in vars(owner).items():
            if inspect.isfunction(member) and "raise Violation(" in inspect.getsource(member):
                yield owner, name


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
                violation.place = _place(sys._getframe(1))
            if not checks & {violation.invariant, violation.place}:
                raise
            return None

    return muted


def _place(frame: FrameType) -> str:
    """Module and name of who asked; what only gives the thing a name is passed over."""
    while frame.f_globals["__name__"] in (__name__, diagnosis.__name__) and frame.f_back:
        frame = frame.f_back
    return f"{frame.f_globals['__name__'].removeprefix(HARNESS)}.{frame.f_code.co_name}"
