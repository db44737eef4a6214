"""A server of an engine in processes of its own, for as long as a `with` block lasts.

The server and everything that it starts are one process group, which is ended as a whole, and
nothing else is; it ends, too, if this process is killed. It listens on loopback, on a port that was
free a moment before.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from tempfile import TemporaryFile
from typing import IO

from kvassay.harness.serving.keeper import kept

HOST = "127.0.0.1"
PATIENCE = 180.0
"""Seconds to become ready, on a slow machine."""
GRACE = 10.0
"""Seconds to end by itself."""
LAST = 2000
"""Characters of the log that are shown when it did not start."""


@contextmanager
def running(
    name: str, command: Sequence[str], url: str, environment: Mapping[str, str] | None = None
) -> Iterator[int]:
    """Yields its process group once ``url/health`` answers.

    `RuntimeError` with the end of its log if it ends, or is not ready in time.
    """
    with (
        TemporaryFile() as log,
        kept(command, env=environment, stdout=log, stderr=log) as server,
    ):
        try:
            _wait_until_ready(name, server, f"{url}/health", log)
            yield server.pid
        finally:
            _end(server)


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port


def _wait_until_ready(
    name: str, server: subprocess.Popen[bytes], health: str, log: IO[bytes]
) -> None:
    deadline = time.monotonic() + PATIENCE
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline and server.poll() is None:
        with suppress(OSError, urllib.error.URLError), opener.open(health, timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.05)
    how = "is not ready" if server.poll() is None else f"ended with {server.returncode}"
    raise RuntimeError(f"{name} {how}; the end of its log:\n{_end_of(log)}")


def _end_of(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read().decode(errors="replace")[-LAST:]


def _end(server: subprocess.Popen[bytes]) -> None:
    """The whole group: asked first, and not asked again."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(server.pid, sign)
        deadline = time.monotonic() + GRACE
        while time.monotonic() < deadline:
            server.poll()
            if not _alive(server.pid):
                return
            time.sleep(0.05)


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
