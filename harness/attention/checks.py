"""All checks, by name."""

from __future__ import annotations

import kvassay.harness.attention.oracle_check
import kvassay.harness.attention.probes
import kvassay.harness.attention.relations  # noqa: F401
from kvassay.harness.attention.check import CHECKS, Check


def find(name: str) -> Check:
    """The check of that name; raises `LookupError` with the known ones."""
    if name not in CHECKS:
        raise LookupError(f"no check {name!r}; expected one of {', '.join(CHECKS)}")
    return CHECKS[name]
