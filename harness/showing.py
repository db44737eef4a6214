"""Declarations as text, for tables and lists."""

from __future__ import annotations

from kvassay.harness.contract import Declaration


def declared_values(declaration: Declaration) -> dict[str, str]:
    """Every declared value that differs from its default; capabilities first."""
    default = Declaration()
    shown = {}
    for name in Declaration.__dataclass_fields__:
        value = getattr(declaration, name)
        if value == getattr(default, name):
            continue
        if isinstance(value, frozenset):
            value = ",".join(sorted(str(member) for member in value)) or "none"
        shown[name] = str(value)
    return shown
