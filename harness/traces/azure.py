"""Azure's LLM inference traces of 2023 (Splitwise): CSV with times and lengths, no ids.

Times have seven decimals and no zone: they are read in units of 100 ns, and count from the first
row. Lines end with CRLF, the last one without an end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from kvassay.harness.traces.reading import Opener, Row, csv_rows, open_plain
from kvassay.harness.traces.request import TraceRequest

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
TICKS = 10**7
"""Per second."""
_EPOCH = datetime(1970, 1, 1)
_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.(\d{1,7}))?")


def read(path: Path, opened: Opener = open_plain) -> Iterator[TraceRequest]:
    """The requests, in order of arrival."""
    first: int | None = None
    before = 0
    for row in csv_rows(path, COLUMNS, COLUMNS[1:], opened):
        ticks = _ticks(row)
        if first is None:
            first = before = ticks
        if ticks < before:
            row.bad("TIMESTAMP: expected no earlier time than in the row before")
        before = ticks
        yield TraceRequest(
            input_tokens=row.whole("ContextTokens", 1),
            output_tokens=row.whole("GeneratedTokens", 1),
            arrival=(ticks - first) / TICKS,
        )


def _ticks(row: Row) -> int:
    text = row.text("TIMESTAMP")
    found = _TIME.fullmatch(text)
    if found is None:
        row.bad(f"TIMESTAMP: expected YYYY-MM-DD hh:mm:ss.fffffff, got {text!r}")
    try:
        moment = datetime.fromisoformat(found[1])
    except ValueError as error:
        row.bad(f"TIMESTAMP: {error}, got {text!r}")
    since = moment - _EPOCH
    return (since.days * 86400 + since.seconds) * TICKS + int((found[2] or "0").ljust(7, "0"))
