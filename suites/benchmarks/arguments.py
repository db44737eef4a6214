"""What several benchmarks take from the command line."""

from __future__ import annotations

import argparse
from typing import Any

from kvassay.harness.registry import Registration, Unavailable


def positive(text: str) -> int:
    """A whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {value}")
    return value


def served_by(entry: Registration) -> Any:
    """What starts an engine's HTTP server; `Unavailable` if it has none."""
    serving = getattr(entry.factory, "serving", None)
    if serving is None:
        raise Unavailable(f"{entry.name} cannot be asked over HTTP: its factory has no `serving`")
    return serving
