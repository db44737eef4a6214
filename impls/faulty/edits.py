"""What faults planted in a source have in common: a text in it, replaced where it stands once."""

from __future__ import annotations


def replaced_once(source: str, old: str, new: str, *, where: str) -> str:
    """The source with its only `old` replaced; `ValueError`, naming `where`, if it has not one."""
    found = source.count(old)
    if found != 1:
        raise ValueError(f"{where}: expected {old!r} once, found it {found} times")
    return source.replace(old, new)
