"""BurstGPT's traces, as publicly documented: CSV with times in s and lengths, no ids.

A request without response tokens is one that failed. Further columns are left alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from kvassay.harness.traces.reading import Opener, Row, csv_rows, open_plain
from kvassay.harness.traces.request import TraceRequest

LENGTHS = ("Request tokens", "Response tokens", "Total tokens")
COLUMNS = ("Timestamp", "Model", *LENGTHS, "Log Type")


def read(path: Path, opened: Opener = open_plain) -> Iterator[TraceRequest]:
    """The requests, failed ones included, in the order of the file."""
    for row in csv_rows(path, COLUMNS, LENGTHS, opened):
        prompt, output, total = (row.whole(name) for name in LENGTHS)
        if total != prompt + output:
            row.bad(f"Total tokens: expected {prompt} + {output}, got {total}")
        yield TraceRequest(
            input_tokens=prompt,
            output_tokens=output,
            arrival=_seconds(row),
            kind=row.text("Log Type").strip(),
            failed=not output,
        )


def _seconds(row: Row) -> float:
    text = row.text("Timestamp")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds) or seconds < 0:
        row.bad(f"Timestamp: expected seconds >= 0, got {text!r}")
    return seconds
