"""Mooncake's traces (FAST 2025): JSON lines with a time in ms, lengths and 512-token block ids.

An id stands for a block and all before it, and ids are numbered as they first appear. So within a
row they increase strictly, and each id has one parent; the last one stands for a partial block
unless the length is a multiple of 512. Only prompts have ids: what a request generates gets one
when it comes back in a later prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from operator import ge
from pathlib import Path

from kvassay.harness.traces.reading import Opener, Row, json_rows, open_plain
from kvassay.harness.traces.request import TraceRequest

BLOCK_TOKENS = 512


def read(path: Path, opened: Opener = open_plain) -> Iterator[TraceRequest]:
    """The requests, in order of arrival."""
    before = 0
    for row in json_rows(path, opened):
        time = row.whole("timestamp")
        if time < before:
            row.bad(f"timestamp: expected at least {before}, as in the row before, got {time}")
        before = time
        tokens = row.whole("input_length", 1)
        yield TraceRequest(
            input_tokens=tokens,
            output_tokens=row.whole("output_length", 1),
            arrival=time / 1000,
            blocks=_blocks(row, tokens),
            block_tokens=BLOCK_TOKENS,
        )


def _blocks(row: Row, tokens: int) -> list[int]:
    ids = row.ids("hash_ids")
    expected = -(-tokens // BLOCK_TOKENS)
    if len(ids) != expected:
        row.bad(f"hash_ids: expected {expected} for {tokens} tokens, got {len(ids)}")
    if any(map(ge, ids, ids[1:])):
        one, other = next(pair for pair in pairwise(ids) if pair[0] >= pair[1])
        row.bad(f"hash_ids: expected increasing ids, got {other} after {one}")
    return ids
