"""vLLM's own HTTP server, for as long as a `with` block lasts: see `server_process`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvassay.impls.engines.server_process import HOST, free_port, running

NAME = "random-llama"
MODULE = "vllm.entrypoints.launchers.api_server.entry"
"""What ``vllm serve`` runs; the command itself asks for a distribution named vllm, and CPU builds
are named otherwise."""


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
    port = free_port()
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
    url = f"http://{HOST}:{port}"
    with running("vLLM's server", command, url, environment) as group:
        yield Served(url, NAME, group)
