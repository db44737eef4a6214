"""What a check is good for that finds nothing which no other finds, in a line each."""

from __future__ import annotations

NOT_NEEDED = "none: what it convicts, others convict as well"
REASONS: dict[str, str] = {
    "tables._check_copies": "none: a copy over cached blocks is told at the copy, and without it "
    "at the look-up that meets them",
}


def reason(check: str) -> str:
    """Why there is such a check."""
    return REASONS.get(check, NOT_NEEDED)
