"""RAGPulse's trace of a question answering service: prompts made of segments, in six files.

`0_trace` lists, for each request, the ids of its segments by kind; five further files say how many
tokens each has. Segments are reused whole, in any position. Their lengths add up to a few tokens
less than the prompt's. Times are strings of seconds; where they go back to an earlier one, a second
recording begins. Every file ends with an empty line.

The lengths of all segments are in memory (27,000 ints), the requests are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kvassay.harness.traces.reading import BadTrace, Opener, Row, json_rows, open_plain
from kvassay.harness.traces.request import Segment, TraceRequest

KINDS = {
    "sys_prompt": ("1_sys_prompt", "sys_prompt_id"),
    "passages_ids": ("2_passages", "passage_id"),
    "history": ("3_history", "history_id"),
    "web_search": ("5_web_search", "web_search_id"),
    "user_input": ("4_user_input", "user_input_id"),
}
"""Kind of segment, in the order of the row; its file, and the name of its id there."""
TRACE = "0_trace"


def read(path: Path, opened: Opener = open_plain) -> Iterator[TraceRequest]:
    """The requests of ``..0_trace.jsonl[.gz]``; the five others are looked for beside it."""
    if TRACE not in path.name:
        raise BadTrace(path, 1, f"expected a file named like {TRACE}.jsonl beside its five tables")
    lengths = _lengths(path)
    before, recording = 0.0, 0
    for row in json_rows(path, opened):
        time = _seconds(row)
        recording += time < before
        before = time
        segments = tuple(_segments(row, lengths))
        tokens = row.whole("input_length", 1)
        known = sum(segment.tokens for segment in segments)
        if known > tokens:
            row.bad(f"input_length: expected at least the segments' {known} tokens, got {tokens}")
        yield TraceRequest(
            input_tokens=tokens,
            output_tokens=row.whole("output_length"),
            arrival=time,
            recording=recording,
            segments=segments,
            session=row.text("session_id"),
        )


def _seconds(row: Row) -> float:
    text = row.text("timestamp")
    if not (text.isascii() and text.isdigit()):
        row.bad(f"timestamp: expected a string of whole seconds, got {text!r}")
    return float(text)


def _segments(row: Row, lengths: dict[str, dict[int, int]]) -> Iterator[Segment]:
    ids = row.within(row.get("hash_ids"), "hash_ids")
    for kind, known in lengths.items():
        for id in ids.ids(kind):
            if id not in known:
                row.bad(f"{kind}: segment {id} is not in {KINDS[kind][0]}")
            yield Segment(id, known[id], kind)


def _lengths(path: Path) -> dict[str, dict[int, int]]:
    """Tokens by segment id, of each kind."""
    found: dict[str, dict[int, int]] = {}
    for kind, (name, key) in KINDS.items():
        table = path.with_name(path.name.replace(TRACE, name))
        found[kind] = {}
        for row in json_rows(table):
            id = row.whole(key)
            if id in found[kind]:
                row.bad(f"{key}: {id} is there twice")
            found[kind][id] = row.whole("token_length")
    return found
