"""What is kept ends with its owner, even one that is killed; before that it lives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from kvassay.harness.serving.keeper import kept

OWNER = """
import sys
from kvassay.harness.serving.keeper import kept
server = kept([sys.executable, "-c", "import time; time.sleep(120)"])
print(server.pid, flush=True)
server.wait()
"""


def alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def ended(group: int, patience: float = 20.0) -> bool:
    deadline = time.monotonic() + patience
    while alive(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(group)


def test_who_is_killed_leaves_nothing_behind() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        group = int(owner.stdout.readline())
        time.sleep(0.5)
        assert alive(group)
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        assert ended(group)


@pytest.mark.parametrize(
    ("code", "status"), [("raise SystemExit(3)", 3), ("import os; os.abort()", 134)]
)
def test_a_command_that_ends_tells_its_status(code: str, status: int) -> None:
    with kept([sys.executable, "-c", code]) as server:
        assert server.wait(20) == status
