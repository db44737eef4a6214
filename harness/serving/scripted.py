"""A server that does as its script says, in memory on virtual time, or as HTTP on loopback.

The same scripts are played both ways. In memory the server is the client's transport: what it says
is there at the very time that the script names, on the clock of the event loop; with a
`VirtualLoop` nothing sleeps, and what a client should measure is known exactly. Over HTTP
(asyncio streams, chunked) the same bytes pass through sockets and the client's HTTP library.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from kvassay.harness.serving.script import Cut, Part, Script
from kvassay.harness.serving.transport import CutOff, Reply, Unreachable
from kvassay.harness.serving.waiting import until


@dataclass(frozen=True)
class Asked:
    """A request as it came to the server."""

    number: int
    """From 0 on, in the order of their coming."""
    path: str
    body: Mapping[str, Any]
    time: float
    """By the clock of the event loop."""


Answering = Callable[[Asked], Script]
"""What a request gets."""


class Scripted:
    """In memory: a `Transport` that is the server."""

    def __init__(self, answering: Answering, models: tuple[str, ...] = ("scripted",)) -> None:
        self.answering, self.models = answering, models
        self.asked: list[Asked] = []
        self.played: list[Part] = []
        """What was really said."""

    @asynccontextmanager
    async def post(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[Reply]:
        asked, script = self.take(path, body)
        await until(asked.time + script.head_at)
        yield Reply(script.status, self._body(script, asked.time))

    async def get(self, path: str) -> tuple[int, bytes]:
        return 200, listed(self.models)

    def take(self, path: str, body: Mapping[str, Any]) -> tuple[Asked, Script]:
        """A request has come: note it, and say what it gets. `Unreachable` if that is nothing."""
        asked = Asked(len(self.asked), path, body, asyncio.get_running_loop().time())
        self.asked.append(asked)
        script = self.answering(asked)
        if script.status == DOWN:
            raise Unreachable("connection refused")
        return asked, script

    async def _body(self, script: Script, taken: float) -> AsyncIterator[bytes]:
        if script.status != 200:
            yield problem(script)
            return
        for part, pieces in script.pieces():
            await until(taken + part.at)
            self.played.append(part)
            if isinstance(part, Cut):
                raise CutOff("connection reset")
            for piece in pieces:
                yield piece


DOWN = 0
"""A status for: nobody listens."""


def problem(script: Script) -> bytes:
    """The body of an answer that is no success."""
    return json.dumps({"error": {"message": script.problem, "code": script.status}}).encode()


def listed(models: tuple[str, ...]) -> bytes:
    """The body of ``/v1/models``."""
    return json.dumps({"object": "list", "data": [{"id": name} for name in models]}).encode()


class ScriptedHTTP:
    """Over HTTP on loopback: ``async with ScriptedHTTP(answering) as server: server.url``."""

    def __init__(self, answering: Answering, models: tuple[str, ...] = ("scripted",)) -> None:
        self.inside = Scripted(answering, models)
        self.url = ""
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> ScriptedHTTP:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=4096)
        host, port = self._server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.kill()
        await self._server.wait_closed()

    def kill(self) -> None:
        """As if the process died: nobody listens, and every connection is reset."""
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while (head := await self._head(reader)) is not None:
                await self._answer(*head, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, Unreachable):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _head(self, reader: asyncio.StreamReader) -> tuple[str, str, int] | None:
        """Method, path and length of the body; None if the client has gone."""
        line = await reader.readline()
        if not line:
            return None
        method, path, _ = line.decode().split(" ", 2)
        length = 0
        while (header := (await reader.readline()).decode().strip()) != "":
            name, _, value = header.partition(":")
            if name.lower() == "content-length":
                length = int(value)
        return method, path, length

    async def _answer(
        self,
        method: str,
        path: str,
        length: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        body = await reader.readexactly(length)
        if method == "GET":
            return await _whole(writer, 200, listed(self.inside.models))
        asked, script = self.inside.take(path, json.loads(body))
        await until(asked.time + script.head_at)
        if script.status != 200:
            return await _whole(writer, script.status, problem(script))
        writer.write(HEAD.format(status=200, how="Transfer-Encoding: chunked").encode())
        for part, pieces in script.pieces():
            await until(asked.time + part.at)
            if isinstance(part, Cut):
                writer.transport.abort()
                raise ConnectionResetError
            for piece in pieces:
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return None


HEAD = "HTTP/1.1 {status} -\r\nContent-Type: text/event-stream\r\n{how}\r\n\r\n"


async def _whole(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    how = f"Content-Length: {len(body)}"
    writer.write(HEAD.format(status=status, how=how).encode() + body)
    await writer.drain()
