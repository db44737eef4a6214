"""What a timeline says when it is read: chunks that carry tokens, and how many tokens came.

A chunk is not a token. A role, a comment, a usage report or an empty text carries none; a chunk of
text without ids carries an unknown number, unless the server's own count says that it was one each.
"""

from __future__ import annotations

from kvassay.harness.contract import TokenEvent
from kvassay.harness.metrics.timeline import UNSEEN, Timeline


def chunks(one: Timeline) -> list[TokenEvent]:
    """The chunks that carry tokens."""
    return [event for event in one.events if event.tokens]


def ids_are_known(one: Timeline) -> bool:
    """Whether every chunk told the ids of its tokens."""
    return not any(UNSEEN in event.tokens for event in one.events)


def output_tokens(one: Timeline) -> int | None:
    """How many came: by their ids, else as the server says; None if neither is known."""
    if ids_are_known(one):
        return sum(len(event.tokens) for event in one.events)
    return one.output_tokens


def one_token_each(one: Timeline) -> bool | None:
    """Whether each chunk that carries tokens carries one; None if that is not known."""
    found, count = chunks(one), output_tokens(one)
    return None if count is None else count == len(found)


def cached_tokens(one: Timeline) -> int | None:
    """Prompt tokens that the server says it took from its cache: the last that it said."""
    said = [event.cached_tokens for event in one.events if event.cached_tokens is not None]
    return said[-1] if said else None
