"""Waiting for a time, by the clock of the event loop: real or virtual."""

from __future__ import annotations

import asyncio
import time

from kvassay.harness.serving.virtual_time import VirtualLoop

COARSE = 0.002
"""Seconds by which a real loop's timer can be late: it counts in milliseconds, and rounds up."""


async def until(when: float) -> None:
    """Sleep to a time of the event loop's clock, and wake at that very time if it is virtual."""
    loop = asyncio.get_running_loop()
    if when <= loop.time():
        return
    there = asyncio.Event()
    timer = loop.call_at(when, there.set)
    try:
        await there.wait()
    finally:
        timer.cancel()


async def exactly(when: float) -> None:
    """The same to a quarter of a millisecond: a thread sleeps the last bit, and wakes the loop.

    For one sleeper at a time: threads are few. The loop must be asyncio's own, as its clock is
    taken to be the system's monotonic one.
    """
    if isinstance(asyncio.get_running_loop(), VirtualLoop):
        await until(when)
        return
    await until(when - COARSE)
    if when <= time.monotonic():
        return
    await asyncio.to_thread(_sleep, when)


def _sleep(until: float) -> None:
    left = until - time.monotonic()
    if left > 0:
        time.sleep(left)
