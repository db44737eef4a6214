"""The transport over HTTP, with httpx.

A pool of httpx looks through all its connections whenever one is wanted, so a thousand streams in
one pool cost a thousand times a thousand looks: they are spread over several pools. No proxy of the
environment is used unless asked for: it would be measured, too.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any

from kvassay.harness.serving.transport import CutOff, Reply, Unreachable

WANTED = "talking to a server needs httpx: pip install httpx"
POOLS = 32
CONNECT_LIMIT = 30.0
"""Seconds to get a connection; what comes after is for the caller to limit."""


class NoHttpx(ImportError):
    """httpx is not installed; the text says how to install it."""


def _httpx() -> Any:
    try:
        import httpx
    except ImportError:
        raise NoHttpx(WANTED) from None
    return httpx


class HTTP:
    """One server, by its URL: ``async with HTTP("http://localhost:8000") as transport``.

    Raises `NoHttpx` without httpx, `ValueError` for what is no URL of HTTP.
    """

    def __init__(
        self, url: str, *, headers: Mapping[str, str] | None = None, trust_env: bool = False
    ) -> None:
        self._httpx = httpx = _httpx()
        base = url.rstrip("/").removesuffix("/v1")
        if not base.startswith(("http://", "https://")):
            raise ValueError(f"url: expected http://... or https://..., got {url!r}")
        verify = httpx.create_ssl_context() if base.startswith("https") else False
        self.url = without_password(base)
        self._clients = [
            httpx.AsyncClient(
                base_url=base,
                headers={"Accept-Encoding": "identity", **(headers or {})},
                timeout=httpx.Timeout(None, connect=CONNECT_LIMIT),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
                trust_env=trust_env,
                verify=verify,
            )
            for _ in range(POOLS)
        ]
        self._next = itertools.cycle(self._clients)

    async def __aenter__(self) -> HTTP:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for client in self._clients:
            await client.aclose()

    @asynccontextmanager
    async def post(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[Reply]:
        client = next(self._next)
        request = client.build_request("POST", path, json=body)
        try:
            answer = await client.send(request, stream=True)
        except self._httpx.HTTPError as error:
            raise Unreachable(f"{self.url}: {_told(error)}") from None
        try:
            yield Reply(answer.status_code, self._body(answer))
        finally:
            await answer.aclose()

    async def _body(self, answer: Any) -> AsyncIterator[bytes]:
        try:
            async for piece in answer.aiter_bytes():
                yield piece
        except self._httpx.HTTPError as error:
            raise CutOff(_told(error)) from None

    async def get(self, path: str) -> tuple[int, bytes]:
        try:
            answer = await next(self._next).get(path)
        except self._httpx.HTTPError as error:
            raise Unreachable(f"{self.url}: {_told(error)}") from None
        return answer.status_code, answer.content


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
    return str(error) or type(error).__name__
