"""A time limit that a busy machine does not shorten: processor time, within reason by the clock."""

from __future__ import annotations

import math
import time

PATIENCE = 4
"""How much longer than its processor time a limit may take by the clock."""


class Deadline:
    """Runs out after `seconds` of this process's own work."""

    def __init__(self, seconds: float = math.inf) -> None:
        self._work = time.process_time() + seconds
        self._clock = time.monotonic() + PATIENCE * seconds

    @property
    def passed(self) -> bool:
        """Whether the time is up."""
        return time.process_time() > self._work or time.monotonic() > self._clock
