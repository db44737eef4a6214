"""A section of the page: words, charts, tables, and longer texts that open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """One table."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Section:
    """What is told under one heading."""

    id: str
    heading: str
    about: str
    tables: Sequence[Table]
    images: Sequence[tuple[str, str]] = ()
    """Charts: a data URL and what it shows."""
    notes: Sequence[tuple[str, str]] = ()
    """Longer texts: a title and the text, as it stands."""
