"""Vidur's processed length traces (arXiv summarization): CSV with lengths alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kvassay.harness.traces.reading import Opener, csv_rows, open_plain
from kvassay.harness.traces.request import TraceRequest

COLUMNS = ("num_prefill_tokens", "num_decode_tokens", "num_total_tokens")


def read(path: Path, opened: Opener = open_plain) -> Iterator[TraceRequest]:
    """The requests, in the order of the file, which means nothing."""
    for row in csv_rows(path, COLUMNS, COLUMNS, opened):
        prompt, output, total = (row.whole(name, 1) for name in COLUMNS)
        if total != prompt + output:
            row.bad(f"num_total_tokens: expected {prompt} + {output}, got {total}")
        yield TraceRequest(input_tokens=prompt, output_tokens=output)
