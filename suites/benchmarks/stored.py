"""Pages that are made of stored records: of those of the last complete run, written or compared."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kvassay.harness.record import BadRecord, Record, read_all


def newest(records: Iterable[Record], suite: str) -> list[Record]:
    """The last complete run of a suite, in the order of its rows; empty without one.

    Records of one run have one environment, and say so: `complete`, and their `row`.
    """
    whole = [
        record
        for record in records
        if record.suite == suite and record.options.get("complete") == "yes"
    ]
    last = max((record.environment.time for record in whole), default=None)
    found = [record for record in whole if record.environment.time == last]
    return sorted(found, key=lambda record: int(record.options["row"]))


def stored(folder: Path, suite: str) -> list[Record]:
    """The last complete run in a folder; `BadRecord` without one."""
    found = newest(read_all([folder]), suite)
    if not found:
        raise BadRecord(f"{folder}: no complete run of {suite}")
    return found


def is_stored(text: str, page: Path) -> bool:
    """Whether a page is this text; says so."""
    same = page.is_file() and page.read_text(encoding="utf-8") == text
    print("the stored page is what comes out" if same else f"{page.name} is another")
    return same
