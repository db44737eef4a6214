"""What a scripted server says and when: the known truth behind every number that a client reports.

A script is what one request gets. Its parts are bytes and silences with their times, in seconds
after the server took the request; `pieces` makes the bytes. What a client should have measured
follows from the script alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any


@dataclass(frozen=True)
class Part:
    """Something that happens `at` seconds after the request was taken."""

    at: float


@dataclass(frozen=True)
class Role(Part):
    """A chunk that only says who speaks."""


@dataclass(frozen=True)
class Comment(Part):
    """A line to keep the connection alive."""


@dataclass(frozen=True)
class Tokens(Part):
    """A chunk with these tokens; with their ids, or as text only."""

    ids: tuple[int, ...]
    told: bool = True
    """Whether the chunk says the ids, or has text only."""


@dataclass(frozen=True)
class Finish(Part):
    """Why the request finished, with the last tokens or without."""

    reason: str = "length"
    ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Usage(Part):
    """How many tokens there were; None is not said."""

    prompt: int
    output: int
    cached: int | None = None


@dataclass(frozen=True)
class Error(Part):
    """An error in the stream."""

    message: str = "the engine is dead"


@dataclass(frozen=True)
class Done(Part):
    """The mark at the end of a stream."""


@dataclass(frozen=True)
class Cut(Part):
    """The connection breaks."""


@dataclass(frozen=True)
class Silence(Part):
    """Nothing more comes before this time; without it the stream ends after the last part."""


@dataclass(frozen=True)
class Script:
    """What one request gets."""

    parts: tuple[Part, ...] = ()
    status: int = 200
    """Of the answer; the parts are of no account if it is not 200."""
    head_at: float = 0.0
    """When the answer begins."""
    problem: str = "bad request"
    """The body where the status is not 200."""
    chat: bool = False
    """Whether chunks are those of a chat."""
    torn: bool = False
    """Whether each part's bytes come in pieces that end anywhere."""
    told: dict[str, Any] = field(default_factory=dict)
    """More fields of every chunk."""

    def pieces(self) -> Iterator[tuple[Part, list[bytes]]]:
        """Parts with their bytes."""
        for part in self.parts:
            data = _data(part, self)
            cut = [len(data) // 3, len(data) // 3 + 1] if self.torn else []
            ends = [0, *cut, len(data)]
            yield part, [data[a:b] for a, b in pairwise(ends) if b > a]


def plain(
    first: float,
    gaps: Sequence[float] = (),
    *,
    start: int = 100,
    prompt: int = 8,
    cached: int | None = None,
) -> Script:
    """A stream as it should be: one token per chunk, the first at `first`, then after `gaps`."""
    times = [first]
    for gap in gaps:
        times.append(times[-1] + gap)
    chunks = [Tokens(at, (start + number,)) for number, at in enumerate(times)]
    end = times[-1]
    return Script((*chunks, Finish(end), Usage(end, prompt, len(chunks), cached), Done(end)))


def _data(part: Part, script: Script) -> bytes:
    match part:
        case Comment():
            return b": keep-alive\n\n"
        case Done():
            return b"data: [DONE]\n\n"
        case Error():
            return _event({"error": {"message": part.message, "code": 500}})
        case Usage():
            usage: dict[str, Any] = {
                "prompt_tokens": part.prompt,
                "completion_tokens": part.output,
                "total_tokens": part.prompt + part.output,
            }
            if part.cached is not None:
                usage["prompt_tokens_details"] = {"cached_tokens": part.cached}
            return _event({**script.told, "choices": [], "usage": usage})
        case Role() | Tokens() | Finish():
            return _event({**script.told, "choices": [_choice(part, script)]})
    return b""


def _choice(part: Role | Tokens | Finish, script: Script) -> dict[str, Any]:
    ids = () if isinstance(part, Role) else part.ids
    text = "".join(f" w{token}" for token in ids)
    choice: dict[str, Any] = {"index": 0, "finish_reason": None}
    if script.chat:
        role = {"role": "assistant"} if isinstance(part, Role) else {}
        choice["delta"] = {**role, "content": text}
    else:
        choice["text"] = text
    if ids and not (isinstance(part, Tokens) and not part.told):
        choice["token_ids"] = list(ids)
    if isinstance(part, Finish):
        choice["finish_reason"] = part.reason
    return choice


def _event(payload: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(payload)}\n\n".encode()
