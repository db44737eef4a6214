"""An event loop whose time passes only when everything waits: it jumps to the next timer.

Coroutines that sleep and use the loop's clock run at once and as they would in time, in the same
order on every machine; stamps are exact, to the last bit. If nothing is ready and no timer is set,
everybody waits for what cannot come, and that is `Deadlock`, not a hang.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(RuntimeError):
    """Everything waits, and for no time."""


class _Jumping(selectors.DefaultSelector):
    """Never waits; tells the loop how long it would have."""

    pass_time: Callable[[float | None], None]

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if not found and timeout != 0:
            self.pass_time(timeout)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """Starts at time 0."""

    def __init__(self) -> None:
        selector = _Jumping()
        super().__init__(selector)
        selector.pass_time = self._pass_time
        self._set(0.0)

    def time(self) -> float:
        """Virtual seconds."""
        return self._virtual

    def _pass_time(self, timeout: float | None) -> None:
        if timeout is None:
            raise Deadlock(f"at {self._virtual:g} s everything waits, and no timer is set")
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        # The timer's own number: adding the timeout could miss it by a bit.
        self._set(max(self._virtual, timers[0].when()))

    def _set(self, now: float) -> None:
        self._virtual = now
        # What is due is what is due now, not what is due a nanosecond later.
        self._clock_resolution = math.ulp(now)


def play(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end on a virtual clock of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)
