"""What a trial has met: a check that never looked is not a check that passed."""

from __future__ import annotations

from enum import StrEnum


class Met(StrEnum):
    """States of clients, servers and loads."""

    TOKENS = "tokens"
    ROLE = "chunk that only says a role"
    COMMENT = "comment to keep alive"
    LATE_HEAD = "answer that begins late"
    NO_TOKEN = "complete without a token"
    WAITED = "wait in the client"
    SEVERAL = "several tokens in a chunk"
    UNTOLD = "text without token ids"
    SPLIT = "split of the time to the first token"
    STAMPS = "stamps compared"
    DURING_STALL = "arrival while the server answers nothing"
    DRAWN = "arrivals drawn"
    HIT = "hit"
    WARM = "server that is warm from an earlier run"
    FORGOTTEN = "cache that forgot"
    SILENT = "server that tells no cached tokens"
    REFUSED = "request refused"
    ERROR = "error in a stream"
    ABORTED = "request aborted by the server"
    TRUNCATED = "stream that ends early"
    CUT = "connection that breaks"
    GAVE_UP = "client's patience at an end"
    WARM_UP = "warm-up"
    OBJECTIVES = "objectives met and missed"
    PREEMPTED = "preemptions known and unknown"
