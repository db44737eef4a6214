"""Nobody wakes early; on a virtual clock nobody wakes late either."""

from __future__ import annotations

import asyncio

import pytest

from kvassay.harness.serving.virtual_time import play
from kvassay.harness.serving.waiting import COARSE, exactly, until

WAITS = (0.0, COARSE / 4, COARSE, 0.0137)


async def woken(wait: float, how: object) -> float:
    """How long after its time somebody wakes."""
    clock = asyncio.get_running_loop().time
    when = clock() + wait
    await how(when)  # type: ignore[operator]
    return clock() - when


@pytest.mark.parametrize("how", [until, exactly])
@pytest.mark.parametrize("wait", WAITS)
def test_nobody_wakes_early(wait: float, how: object) -> None:
    assert asyncio.run(woken(wait, how)) >= -1e-9


@pytest.mark.parametrize("how", [until, exactly])
@pytest.mark.parametrize("wait", WAITS)
def test_virtual_sleepers_wake_in_time(wait: float, how: object) -> None:
    assert play(woken(wait, how)) == 0.0


def test_a_sleeper_can_be_woken_for_other_news() -> None:
    async def interrupted() -> bool:
        sleeper = asyncio.create_task(exactly(asyncio.get_running_loop().time() + 600))
        await asyncio.sleep(0.01)
        sleeper.cancel()
        await asyncio.wait([sleeper])
        return sleeper.cancelled()

    assert asyncio.run(interrupted())
