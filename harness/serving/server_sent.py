"""Server-sent events: from pieces of bytes to the data of events.

Pieces end anywhere, also inside a character. Comments (keep-alive) are no events, and neither is
what the stream ends in the middle of.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator

DONE = "[DONE]"
"""The data of the last event of an OpenAI-compatible stream."""


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
    """The data of all events, each with the time at which the piece that completes it came.

    So events that come together have one time, however long it takes to read them.
    """
    decoder = Decoder()
    async for piece in pieces:
        now = clock()
        for data in decoder.feed(piece):
            yield now, data
