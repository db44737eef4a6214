"""Waiting for a time, by the clock of the event loop: real or virtual."""

from __future__ import annotations

import asyncio


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
