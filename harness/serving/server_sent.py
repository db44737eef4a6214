"""Server-sent events: from pieces of bytes to the data of events.

Pieces end anywhere, also inside a character. Comments (keep-alive) are no events, and neither is
what the stream ends in the middle of.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator

DONE = "[DONE]"
"""The data of the last event of an OpenAI-compatible stream."""


class Coming:
    """A clock that stands still as long as the event loop does not turn.

    What a library hands on without waiting was read from the connection before: it came together
    with what was handed on last, however long the library took in between.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._turned, self._now = True, 0.0

    def __call__(self) -> float:
        """When what was just handed on came."""
        if self._turned:
            self._now, self._turned = self._clock(), False
            asyncio.get_running_loop().call_soon(self._turn)
        return self._now

    def _turn(self) -> None:
        self._turned = True


class Decoder:
    """Takes pieces, gives the data of events that they complete."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> Iterator[str]:
        """The events that end in this piece."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for raw in lines:
            line = raw.removesuffix(b"\r").decode("utf-8", errors="replace")
            if not line:
                if self._data:
                    yield "\n".join(self._data)
                self._data = []
            elif line.startswith("data:"):
                self._data.append(line.removeprefix("data:").removeprefix(" "))


async def events(
    pieces: AsyncIterator[bytes], clock: Callable[[], float]
) -> AsyncGenerator[tuple[float, str], None]:
    """The data of all events, each with the time at which the piece that completes it came."""
    decoder, coming = Decoder(), Coming(clock)
    async for piece in pieces:
        now = coming()
        for data in decoder.feed(piece):
            yield now, data
