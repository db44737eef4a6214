"""vLLM's own HTTP server in processes of its own, for as long as a `with` block lasts.

The server and everything that it starts are one process group, which is ended as a whole, and
nothing else is; it ends, too, if this process is killed. It listens on loopback, on a port that was
free a moment before.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from kvassay.harness.serving.keeper import kept

HOST = "127.0.0.1"
NAME = "random-llama"
MODULE = "vllm.entrypoints.launchers.api_server.entry"
"""What ``vllm serve`` runs; the command itself asks for a distribution named vllm, and CPU builds
are named otherwise."""
PATIENCE = 180.0
"""Seconds to become ready, on a slow machine."""
GRACE = 10.0
"""Seconds to end by itself."""
LAST = 2000
"""Characters of the log that are shown when it did not start."""


@dataclass(frozen=True)
class Served:
    """A server that is ready."""

    url: str
    """Without a path: ``http://127.0.0.1:PORT``."""
    model: str
    """The name that requests give."""
    pid: int
    """Of the server, and the id of its process group."""


@contextmanager
def serving(
    *,
    model: Path | None = None,
    prefix_caching: bool = True,
    block_size: int = 32,
    num_blocks: int = 2048,
    threads: int | None = None,
    arguments: tuple[str, ...] = (),
) -> Iterator[Served]:
    """A server for the model in a folder (default: `vllm_engine.default_model`).

    `RuntimeError` with the end of its log if it ends, or is not ready in time. `arguments` are
    further ones of its command line. With `threads`, steps take so many, on
    no core of their own: vLLM would put every server of a machine on the same ones.
    """
    if model is None:
        from kvassay.impls.engines.vllm_engine import default_model

        model = default_model()
    port = _free_port()
    caching = "--enable-prefix-caching" if prefix_caching else "--no-enable-prefix-caching"
    command = [
        *(sys.executable, "-m", MODULE, "--model", str(model), "--served-model-name", NAME),
        *("--host", HOST, "--port", str(port), "--skip-tokenizer-init", "--enforce-eager"),
        *("--dtype", "float32", "--block-size", str(block_size), caching),
        *("--num-gpu-blocks-override", str(num_blocks + 1), "--max-num-batched-tokens", "2048"),
        *("--enable-prompt-tokens-details", "--disable-log-stats", *arguments),
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    environment.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
    environment.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
    if threads is not None:
        environment |= {"OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with (
        TemporaryFile() as log,
        kept(command, env=environment, stdout=log, stderr=log) as server,
    ):
        try:
            url = f"http://{HOST}:{port}"
            _wait_until_ready(server, f"{url}/health", log)
            yield Served(url, NAME, server.pid)
        finally:
            _end(server)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port


def _wait_until_ready(server: subprocess.Popen[bytes], health: str, log: IO[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline and server.poll() is None:
        with suppress(OSError, urllib.error.URLError), opener.open(health, timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.2)
    how = "is not ready" if server.poll() is None else f"ended with {server.returncode}"
    raise RuntimeError(f"vLLM's server {how}; the end of its log:\n{_end_of(log)}")


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
