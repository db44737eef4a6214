"""What a pair has met: counted when the kernel has attended to it, not when it has happened."""

from __future__ import annotations

from enum import StrEnum


class Met(StrEnum):
    """States that were attended to."""

    DECODE = "decode row attended"
    CHUNK = "chunk behind a context attended"
    PROMPT = "prompt from its first token attended"
    MIXED = "decode rows and chunks in one batch"
    EDGE = "sequence up to a block boundary attended"
    BEYOND = "sequence one past a block boundary attended"
    HIT = "hit attended"
    NEAR_KEY = "nearly equal key attended"
    STALE_KEY = "key of recycled blocks attended"
    UNWRITTEN_KEY = "key that another was writing attended"
    UNPUBLISHED_KEY = "key that another has not published attended"
    REUSED = "block attended after its reuse"
    EVICTED = "evicted, then reused, attended"
    FORKED_WRITE = "fork, then write, attended"
    COPIED = "copied block attended"
    REWRITTEN = "truncated, then rewritten, attended"
    REJECTED = "attended after drafts were rejected"
    REFUSED = "attended after a refusal"
    STALE_TAIL = "another's KV past the end"
    NAN_TAIL = "NaN past the end"
    ZERO_TAIL = "cleared slots past the end"
    LOUD_TAIL = "large numbers past the end"
