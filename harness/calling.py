"""Calling an implementation under test: what it raises, told apart; what is wrong, raised."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NoReturn

from kvassay.harness.contract import is_out_of_blocks
from kvassay.harness.violation import Anomaly, Crash, Violation

REFUSED = object()
"""What `_call` returns when the implementation is out of blocks."""


def at_most(answer: Iterable[Any], number: int) -> list[Any]:
    """The first entries of an answer, one more than there may be: it need not have an end."""
    return list(islice(answer, number + 1))


class Calling:
    """What every checker does to call and to convict."""

    def _call(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call the implementation; REFUSED when it is out of blocks, `Crash` on other errors."""
        try:
            return method(*arguments, **named)
        except (Exception, SystemExit, GeneratorExit) as error:
            if is_out_of_blocks(error):
                return REFUSED
            raise Crash(f"{type(error).__name__}: {error}") from error

    def _call_plain(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method that has no right to refuse."""
        answer = self._call(method, *arguments)
        if answer is REFUSED:
            raise Crash(f"{method.__name__} raised OutOfBlocks, which it may not")
        return answer

    def _fail(self, invariant: str, anomaly: Anomaly, expected: str, got: str) -> NoReturn:
        raise Violation(invariant, anomaly, expected, got)
