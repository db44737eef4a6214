"""All checks, by name."""

from __future__ import annotations

from kvassay.harness.attention import oracle_check, probes, relations
from kvassay.harness.attention.check import CHECKS, Check

__all__ = ["find", "oracle_check", "probes", "relations"]


def find(name: str) -> Check:
    """The check of that name; raises `LookupError` with the known ones."""
    if name not in CHECKS:
        raise LookupError(f"no check {name!r}; expected one of {', '.join(CHECKS)}")
    return CHECKS[name]
