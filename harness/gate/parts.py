"""What a gate compares, and how often: told by the command's help, and so imports nothing."""

from __future__ import annotations

PARTS = ("verdicts", "counters", "times")
ROUNDS = 24
"""By default; see `results/gate.md` for what so many can see."""
