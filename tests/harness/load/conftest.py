"""What tests of loads share: a scripted server on loopback, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from kvassay.harness.serving.scripted import Answering, ScriptedHTTP


class Background:
    """A server that answers while the test's own thread is busy."""

    def __init__(self, answering: Answering) -> None:
        self.server = ScriptedHTTP(answering)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with self.server:
            self._ready.set()
            await self._over.wait()

    @property
    def url(self) -> str:
        return self.server.url

    def kill(self) -> None:
        """As if its process died."""
        self._loop.call_soon_threadsafe(self.server.kill)

    def stop(self) -> None:
        """Take it down."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)


@pytest.fixture
def serving() -> Iterator[Callable[[Answering], Background]]:
    """Starts servers, and stops them after the test."""
    started: list[Background] = []

    def start(answering: Answering) -> Background:
        started.append(Background(answering))
        return started[-1]

    yield start
    for one in started:
        one.stop()
