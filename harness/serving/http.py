"""The transport over HTTP, with aiohttp.

What the client computes for a chunk is time that every other chunk waits, and on a small machine
the server, too: hence a library that parses in C. No proxy of the environment is used unless asked
for: it would be measured, too.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from kvassay.harness.serving.transport import CutOff, Reply, Unreachable

WANTED = "talking to a server needs aiohttp: pip install aiohttp"
CONNECT_LIMIT = 30.0
"""Seconds to get a connection; what comes after is for the caller to limit."""
KEPT = 3.0
"""Seconds that an idle connection is kept: fewer than servers do, who close it on a request else
(uvicorn after 5)."""


class NoAiohttp(ImportError):
    """aiohttp is not installed; the text says how to install it."""


def _aiohttp() -> Any:
    try:
        import aiohttp
    except ImportError:
        raise NoAiohttp(WANTED) from None
    return aiohttp


class HTTP:
    """One server, by its URL: ``async with HTTP("http://localhost:8000") as transport``.

    Raises `NoAiohttp` without aiohttp, `ValueError` for what is no URL of HTTP.
    """

    def __init__(
        self, url: str, *, headers: Mapping[str, str] | None = None, trust_env: bool = False
    ) -> None:
        self._aiohttp = _aiohttp()
        self._base = url.rstrip("/").removesuffix("/v1")
        if not _is_http(self._base):
            raise ValueError(f"url: expected http://... or https://..., got {url!r}")
        self.url = without_password(self._base)
        self._headers = {"Accept-Encoding": "identity", **(headers or {})}
        self._trust_env = trust_env

    async def __aenter__(self) -> HTTP:
        library = self._aiohttp
        self._session = library.ClientSession(
            headers=self._headers,
            connector=library.TCPConnector(limit=0, keepalive_timeout=KEPT),
            timeout=library.ClientTimeout(total=None, sock_connect=CONNECT_LIMIT),
            trust_env=self._trust_env,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._session.close()

    @asynccontextmanager
    async def post(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[Reply]:
        # A stream of bytes, as aiohttp warns of large bodies that are not.
        data = io.BytesIO(json.dumps(body).encode())
        headers = {"Content-Type": "application/json"}
        try:
            answer = await self._session.post(self._base + path, data=data, headers=headers)
        except self._broken as error:
            raise Unreachable(f"{self.url}: {_told(error)}") from None
        try:
            yield Reply(answer.status, self._body(answer))
        finally:
            answer.close()  # of no effect on a connection whose answer was read to its end

    async def _body(self, answer: Any) -> AsyncIterator[bytes]:
        try:
            async for piece in answer.content.iter_any():
                yield piece
        except self._broken as error:
            raise CutOff(_told(error)) from None

    async def get(self, path: str) -> tuple[int, bytes]:
        try:
            async with self._session.get(self._base + path) as answer:
                return answer.status, await answer.read()
        except self._broken as error:
            raise Unreachable(f"{self.url}: {_told(error)}") from None

    @property
    def _broken(self) -> tuple[type[Exception], ...]:
        """What the library raises for a connection that fails."""
        return self._aiohttp.ClientError, OSError


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # no such port
        return False


def without_password(url: str) -> str:
    """A URL as it may be shown."""
    return re.sub("//[^/@]*@", "//", url)


def allow_many_sockets() -> None:
    """Raise the number of files that this process may open as far as it may: streams are files."""
    try:
        import resource
    except ImportError:  # not on Windows, which has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _told(error: Exception) -> str:
    return without_password(str(error) or type(error).__name__)
