"""kv-cache-tester's agentic coding traces: one conversation per line, 64-token block ids.

Ids can be compared within a conversation only, so each conversation's are moved past those of the
ones before. Only full blocks have one. A sub-agent stands among the requests of its conversation as
an entry with requests of its own, whose times count from its start; ids are shared with it.

A request's arrival counts from the start of its conversation (`session`), not of the file.
Contexts shrink where a conversation was compacted, and a request may have generated nothing.
Durations may be missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kvassay.harness.traces.reading import Opener, Row, json_rows, open_plain
from kvassay.harness.traces.request import TraceRequest

BLOCK_TOKENS = 64
TYPES = ("n", "s")
SCOPE = "local"


def read(path: Path, opened: Opener = open_plain) -> Iterator[TraceRequest]:
    """The requests, one conversation after another, sub-agents' where they were started."""
    beyond = 0
    for row in json_rows(path, opened):
        if row.whole("block_size", 1) != BLOCK_TOKENS:
            row.bad(f"block_size: expected {BLOCK_TOKENS}, got {row.get('block_size')}")
        if row.get("hash_id_scope") != SCOPE:
            row.bad(f"hash_id_scope: expected {SCOPE!r}, got {row.get('hash_id_scope')!r}")
        session = row.text("id")
        largest = beyond - 1
        for request, start, kind in _requests(row):
            one = _request(request, start, session, kind, beyond)
            largest = max(largest, max(one.blocks or (), default=0))
            yield one
        beyond = largest + 1


def _requests(row: Row) -> Iterator[tuple[Row, float, str]]:
    """The requests of a conversation with the moment from which their times count."""
    for entry in row.listed("requests"):
        inner = row.within(entry, "requests")
        if inner.get("type") != "subagent":
            yield inner, 0.0, "agent"
            continue
        start = inner.number("t")
        for request in inner.listed("requests"):
            yield row.within(request, "requests"), start, "subagent"


def _request(row: Row, start: float, session: str, kind: str, beyond: int) -> TraceRequest:
    if row.get("type") not in TYPES:
        row.bad(f"type: expected one of {', '.join(TYPES)}, got {row.get('type')!r}")
    tokens = row.whole("in", 1)
    ids = row.ids("hash_ids")
    if len(ids) != tokens // BLOCK_TOKENS:
        expected = tokens // BLOCK_TOKENS
        row.bad(f"hash_ids: expected {expected} for {tokens} tokens, got {len(ids)}")
    return TraceRequest(
        input_tokens=tokens,
        output_tokens=row.whole("out"),
        arrival=start + row.number("t"),
        blocks=[beyond + id for id in ids],
        block_tokens=BLOCK_TOKENS,
        session=session,
        kind=kind,
        think_time=row.number("think_time") if "think_time" in row.fields else None,
        api_time=row.number("api_time") if "api_time" in row.fields else None,
    )
