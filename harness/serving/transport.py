"""What carries a request to a server and its bytes back, and what can go wrong on the way.

The client is the same over HTTP and in memory: only the transport differs. So what is tested on
virtual time, to the last bit, is the code that measures real servers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol


class ServingError(Exception):
    """The server did not do what was asked; the text says what came instead."""


class Unreachable(ServingError):
    """No answer: nobody listens, or the connection broke before one came."""


class CutOff(ServingError):
    """The stream ended before the server said why the request finished."""


@dataclass(frozen=True)
class Reply:
    """An answer whose body is still coming."""

    status: int
    body: AsyncIterator[bytes]
    """Pieces of any size. `CutOff` if the connection breaks."""


class Transport(Protocol):
    """One server."""

    def post(self, path: str, body: Mapping[str, Any]) -> AbstractAsyncContextManager[Reply]:
        """Send JSON; leaving the context gives the connection up. `Unreachable` without answer."""
        ...

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body. `Unreachable` without answer."""
        ...
