"""llama.cpp's server as a whole, over HTTP on loopback: token ids in, tokens out.

The server is a program that somebody has built, and the adapter starts it: it ends with the
adapter, and with this process however that ends. Each request is a stream of ``/completion`` that a
thread reads; whoever leaves early closes its connection, which is how the server is told.

It runs as it does by default: all slots share one pool of cells (``--kv-unified``), of which a
context is rounded up to 256; that is the block here, although cells are taken one by one. Weights,
keys and values are float32, without flash attention.

The vocabulary is of words: a token that ends inside a character is left out of a stream (see
`results/findings/llama-cpp-streams-without-unfinished-characters.md`). Importing this file starts
nothing.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

from kvassay.harness.contract import (
    Capability,
    Declaration,
    Engine,
    GenerationRequest,
    TokenEvent,
)
from kvassay.harness.program import Program
from kvassay.harness.registry import implementation
from kvassay.impls.engines.gguf_model import write_plain_gguf
from kvassay.impls.engines.mailbox import Item, Mailbox
from kvassay.impls.engines.server_process import HOST, free_port, running

PROGRAM = Program("llama-server", "KVASSAY_LLAMA_SERVER")
INSTALL = "pip install gguf safetensors; llama-server is a target of llama.cpp's CMake project"
ENDS = {"eos": "stop", "limit": "length"}
"""By the server's word for the end of an answer."""


@implementation(
    "llama-cpp-engine",
    kind=Engine,
    # Cells are found again one by one.
    declaration=Declaration(capabilities=frozenset({Capability.PREFIX_CACHE}), unit=1),
    package="gguf",
    install=INSTALL,
    program=PROGRAM,
)
class LlamaCppEngine:
    """A server and the connections to it.

    `model` is a folder; `num_blocks` blocks of 256 cells are shared by `slots` requests at a time,
    others wait; `step_tokens` is the most that a step computes. `arguments` are further ones of its
    command line. `RuntimeError` with the end of its log if it does not start.
    """

    block_size = 256

    def __init__(
        self,
        *,
        model: Path,
        num_blocks: int = 64,
        step_tokens: int | None = None,
        slots: int = 4,
        arguments: Sequence[str] = (),
    ) -> None:
        self._port, step = free_port(), str(step_tokens or 512)
        command = [
            *(PROGRAM.path or PROGRAM.name, "-m", str(write_plain_gguf(model))),
            *("--host", HOST, "--port", str(self._port), "--offline", "--no-warmup"),
            *("-t", "1", "-tb", "1", "-fa", "off", "-ctk", "f32", "-ctv", "f32"),
            *("-c", str(num_blocks * self.block_size), "-np", str(slots), "--kv-unified"),
            *("-b", step, "-ub", step, "--no-context-shift", *arguments),
        ]
        self._server = ExitStack()
        url = f"http://{HOST}:{self._port}"
        self._server.enter_context(running("llama.cpp's server", command, url, {**os.environ}))

    async def stream(self, request: GenerationRequest) -> AsyncIterator[TokenEvent]:
        """An event for each token; leaving early closes the connection.

        `ValueError` for what the server refuses, `RuntimeError` for what it fails with.
        """
        mailbox = Mailbox()
        answer = _Answer(self._port, request, mailbox.deliver)
        answer.start()
        try:
            async for event in mailbox.events():
                yield event
        finally:
            if not mailbox.ended:
                answer.leave()

    def close(self) -> None:
        """End the server; what is unfinished fails."""
        self._server.close()


class _Answer(threading.Thread):
    """Reads the stream of one request."""

    def __init__(
        self, port: int, request: GenerationRequest, deliver: Callable[[Item], None]
    ) -> None:
        super().__init__(name=f"llama-server-{request.request}", daemon=True)
        self._connection = HTTPConnection(HOST, port)
        self._request, self._deliver = request, deliver
        self._socket: socket.socket | None = None
        self._left = threading.Event()

    def run(self) -> None:
        try:
            for event in self._events():
                self._deliver(event)
            raise RuntimeError("the server ended the stream before the answer's end")
        except BaseException as error:  # nobody reads it behind the answer's end
            self._deliver(error)
        finally:
            self._connection.close()

    def leave(self) -> None:
        """Nobody reads any more: tell the server."""
        self._left.set()
        if self._socket is not None:
            with suppress(OSError):  # not connected any more
                self._socket.shutdown(socket.SHUT_RDWR)

    def _events(self) -> Iterator[TokenEvent]:
        self._connection.connect()
        self._socket = self._connection.sock
        if self._left.is_set():
            return
        self._connection.request(
            "POST", "/completion", json.dumps(_body(self._request)), {"Content-Type": "text/json"}
        )
        with self._connection.getresponse() as answer:
            if answer.status != 200:
                error = ValueError if 400 <= answer.status < 500 else RuntimeError
                raise error(f"{answer.status}: {_message(json.loads(answer.read()))}")
            for told in _told(answer):
                if "error" in told:
                    raise RuntimeError(_message(told))
                yield _event(self._request.request, told)


def _body(request: GenerationRequest) -> dict[str, Any]:
    return {
        "prompt": list(request.prompt),
        "n_predict": request.max_tokens,
        "temperature": -1.0,
        "n_probs": 1 if request.options.get("logprobs") else 0,
        "cache_prompt": True,
        "return_tokens": True,
        "stream": True,
    }


def _told(answer: HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in answer:
        if line.startswith(b"data: {"):
            yield json.loads(line.removeprefix(b"data: "))


def _message(told: dict[str, Any]) -> str:
    return str(told["error"].get("message", told["error"]))


def _event(name: str, told: dict[str, Any]) -> TokenEvent:
    probabilities = told.get("completion_probabilities")
    return TokenEvent(
        request=name,
        tokens=tuple(told.get("tokens", ())),
        time=time.monotonic(),
        finish_reason=ENDS.get(told["stop_type"], told["stop_type"]) if told["stop"] else None,
        cached_tokens=told.get("timings", {}).get("cache_n"),
        logprobs=tuple(each["logprob"] for each in probabilities) if probabilities else None,
    )
