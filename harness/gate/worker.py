"""One side of a gate in a process of its own: its own interpreter, path and memory.

    python -m kvassay.harness.gate.worker IMPL NAME

JSON lines, as over the bridge (`harness.far`): ``open`` says what this is, ``time`` takes a sample,
``count`` plays the fixed stream. What the implementation prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from kvassay.harness.environment import capture
from kvassay.harness.gate.counting import counters
from kvassay.harness.gate.timing import NotTimed, Timer, timer
from kvassay.harness.recording import subject_of
from kvassay.harness.registry import Registration, find


class Worker:
    """Answers messages about one implementation."""

    def __init__(self, registration: Registration) -> None:
        self._registration = registration
        self._timer: Timer | None = None

    def open(self, message: dict[str, Any]) -> dict[str, Any]:
        """What it is, and where."""
        return {
            "subject": subject_of(self._registration).model_dump(),
            "environment": capture(seed="0").model_dump(),
            "origin": str(self._registration.origin or "unknown"),
        }

    def time(self, message: dict[str, Any]) -> dict[str, Any]:
        """One sample, in seconds by name; None for a kind that is not timed."""
        try:
            if self._timer is None:
                self._timer = timer(self._registration)
            return {"seconds": self._timer.sample(int(message["number"]))}
        except NotTimed as error:
            return {"seconds": None, "why": str(error)}

    def count(self, message: dict[str, Any]) -> dict[str, Any]:
        """The counters."""
        return {"counters": counters(self._registration)}

    def answer(self, line: str) -> dict[str, Any]:
        """One message's reply; an exception becomes an ``error``."""
        message = json.loads(line)
        known: dict[str, Callable[[dict[str, Any]], dict[str, Any]]]
        known = {"open": self.open, "time": self.time, "count": self.count}
        try:
            return {"id": message["id"], **known[message["op"]](message)}
        except Exception as error:
            return {"id": message["id"], "error": f"{type(error).__name__}: {error}"}


def chosen(reference: str, name: str) -> Registration:
    """The registration of that name, or the only one; `LookupError` for none or several."""
    every = find(reference)
    found = [one for one in every if name in ("", one.name)]
    if len(found) != 1:
        wanted = f"one called {name!r}" if name else "one alone, or a name"
        names = ", ".join(one.name for one in every)
        raise LookupError(f"{reference}: expected {wanted}; there are {names}")
    return found[0]


def main(arguments: list[str]) -> int:
    """Until stdin ends."""
    reference, name = arguments
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        worker = Worker(chosen(reference, name))
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    for line in sys.stdin:
        replies.write(json.dumps(worker.answer(line)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
