"""Virtual time: exact, ordered, at once, and no hang where everybody waits."""

from __future__ import annotations

import asyncio
import time

import pytest

from kvassay.harness.serving.virtual_time import Deadlock, play
from kvassay.harness.serving.waiting import until


def test_sleepers_wake_in_order_at_the_very_time_and_nobody_sleeps() -> None:
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, when: float) -> None:
        await until(when)
        woken.append((name, asyncio.get_running_loop().time()))

    async def all_of_them() -> None:
        times = [0.1 + 0.2, 0.3, 86400.0 * 365, 1 / 3, 1e-12]
        await asyncio.gather(*(sleeper(str(when), when) for when in times))

    began = time.monotonic()
    play(all_of_them())
    assert time.monotonic() - began < 5
    assert woken == [(str(t), t) for t in (1e-12, 0.3, 0.1 + 0.2, 1 / 3, 86400.0 * 365)]


def test_a_time_that_is_past_is_now() -> None:
    async def late() -> float:
        await until(2.0)
        await until(1.0)
        return asyncio.get_running_loop().time()

    assert play(late()) == 2.0


def test_a_limit_ends_a_wait() -> None:
    async def patient() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.get_running_loop().create_future()
        return asyncio.get_running_loop().time()

    assert play(patient()) == 30.0


def test_waiting_for_nothing_is_said() -> None:
    async def forever() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock, match="at 0 s everything waits"):
        play(forever())
