"""Qwen-Bailian's traces, as publicly documented: JSON lines with chats and 16-token block ids.

An id stands for the content of one block, wherever it is: a prefix is the sequence of ids up to a
block, not the block's own id. A row may come without ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kvassay.harness.traces.reading import Opener, Row, json_rows, open_plain
from kvassay.harness.traces.request import TraceRequest

BLOCK_TOKENS = 16
NO_PARENT = -1


def read(path: Path, opened: Opener = open_plain) -> Iterator[TraceRequest]:
    """The requests, in the order of the file."""
    for row in json_rows(path, opened):
        parent = row.get("parent_chat_id")
        if type(parent) is not int or parent < NO_PARENT:
            row.bad(f"parent_chat_id: expected an id, or {NO_PARENT} for none, got {parent!r}")
        tokens = row.whole("input_length")
        yield TraceRequest(
            input_tokens=tokens,
            output_tokens=row.whole("output_length"),
            arrival=row.number("timestamp"),
            blocks=_blocks(row, tokens),
            block_tokens=BLOCK_TOKENS,
            prefix_ids=False,
            session=str(row.whole("chat_id")),
            parent=None if parent == NO_PARENT else str(parent),
            turn=row.whole("turn"),
            kind=row.text("type"),
        )


def _blocks(row: Row, tokens: int) -> list[int] | None:
    if "hash_ids" not in row.fields:
        return None
    ids = row.ids("hash_ids")
    low, high = tokens // BLOCK_TOKENS, -(-tokens // BLOCK_TOKENS)
    if not low <= len(ids) <= high:
        row.bad(f"hash_ids: expected {low} to {high} for {tokens} tokens, got {len(ids)}")
    return ids
