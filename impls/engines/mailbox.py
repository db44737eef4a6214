"""What an engine's own thread hands to the event loop of whoever asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from kvassay.harness.contract import TokenEvent

Item = TokenEvent | BaseException
"""An event, or what the request fails with."""


class Mailbox:
    """Of one request; made in the event loop that is to read it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[Item] = asyncio.Queue()
        self.ended = False
        """Whether the last event, or an error, was read."""

    def deliver(self, item: Item) -> None:
        """From any thread; nobody may be there any more."""
        with suppress(RuntimeError):  # the loop is closed: nobody listens
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, item)

    async def events(self) -> AsyncIterator[TokenEvent]:
        """As they come, up to the last; raises what the request fails with."""
        while not self.ended:
            item = await self._arrived.get()
            self.ended = isinstance(item, BaseException) or item.finish_reason is not None
            if isinstance(item, BaseException):
                raise item
            yield item
