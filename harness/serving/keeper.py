"""Runs a command for as long as somebody holds this process's standard input.

A server that is started for a measurement must not outlive it, however that ends: a process that is
killed closes its pipes, and nothing else can be relied upon. Keeper and command are one process
group, which is ended as a whole.

    python -m kvassay.harness.serving.keeper COMMAND ...
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

GRACE = 10.0
"""Seconds to end by itself."""


def kept(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a command in a process group of its own, whose id is that of the process returned.

    It ends with this process; `options` are those of `subprocess.Popen`.
    """
    keeper = [sys.executable, "-m", __name__, *command]
    return subprocess.Popen(keeper, stdin=subprocess.PIPE, start_new_session=True, **options)


def main(command: Sequence[str]) -> None:
    """Ends this process with the command's status, or everything once nobody holds the input."""
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=_follow, args=(server,), daemon=True).start()
    sys.stdin.buffer.read()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(os.getpgrp(), signal.SIGTERM)
    time.sleep(GRACE)  # shorter if the command ends before, and this process with it
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _follow(server: subprocess.Popen[bytes]) -> None:
    status = server.wait()
    os._exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main(sys.argv[1:])
