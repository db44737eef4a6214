"""A server in a process of its own whose times are known: what both tools should measure is, too.

It computes nothing and waits, so that a busy machine hardly shows. Asked for the model `PLAIN` it
streams a token in each chunk; asked for `EMPTY_FIRST` it sends a chunk without a token before, as
servers do that announce a role or an empty text.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from kvassay.harness.serving.script import Role, Script, plain
from kvassay.harness.serving.scripted import Asked, ScriptedHTTP

PLAIN, EMPTY_FIRST = "scripted", "scripted-empty-first"
FIRST, GAP, EMPTY = 0.2, 0.01, 0.1
"""Seconds from the request to the first token, from token to token, and to the empty chunk."""


@dataclass(frozen=True)
class Served:
    """It is ready."""

    url: str
    model: str = PLAIN


def answer(asked: Asked) -> Script:
    """What a request gets."""
    tokens, prompt = int(asked.body["max_tokens"]), len(asked.body["prompt"])
    script = plain(FIRST, (GAP,) * (tokens - 1), prompt=prompt)
    if asked.body["model"] != EMPTY_FIRST:
        return script
    return replace(script, parts=(Role(EMPTY), *script.parts))


@contextmanager
def scripted() -> Iterator[Served]:
    """It runs for as long as the block; `RuntimeError` if it does not start."""
    command = [sys.executable, "-m", __name__]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            if not url:
                raise RuntimeError("the scripted server did not start")
            yield Served(url)
        finally:
            process.terminate()


async def _serve() -> None:
    async with ScriptedHTTP(answer, (PLAIN, EMPTY_FIRST)) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve())
