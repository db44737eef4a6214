"""What was found in engines: the pages of `results/findings`, one for each finding.

A page says what it is about in its first lines, ``# title`` and then ``- engine: vLLM``,
``- version: 0.32.0``, ``- kind: ...`` and so on, one field a line; the rest is its text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from kvassay.harness.report.section import Section, Table

FOLDER = "findings"
FIELDS = ("engine", "version", "kind")
FIELD = re.compile(r"[-*] +\W*(\w+)\W*?: *(.+)")
LINK = re.compile(r"\[([^]]+)\]\([^)]*\)")
UNSAID = "-"


def section(results: Path) -> Iterator[Section]:
    """Of all findings, if there are any."""
    paths = sorted((results / FOLDER).glob("*.md"))
    found = [_read(path) for path in paths if path.stem != "README"]
    if found:
        yield Section(
            "findings",
            "What was found in engines",
            "Each with the smallest scenario that shows it, and the command that replays it.",
            [Table("Findings", ("finding", *FIELDS, "page"), [row for row, _ in found])],
            notes=[(row[0], text) for row, text in found],
        )


def _read(path: Path) -> tuple[tuple[str, ...], str]:
    """A row of the table, and the text."""
    lines = path.read_text(encoding="utf-8").strip().splitlines()
    title = lines[0].lstrip("# ") if lines else path.stem
    said: dict[str, str] = {}
    for line in lines[1:]:
        field = FIELD.fullmatch(line.strip())
        if field and field[1].lower() in FIELDS:
            value = LINK.sub(r"\1", field[2]).strip("*` ")
            said.setdefault(field[1].lower(), value)
    cells = (said.get(name, UNSAID) for name in FIELDS)
    return (title, *cells, f"{FOLDER}/{path.name}"), "\n".join(lines[1:]).strip()
