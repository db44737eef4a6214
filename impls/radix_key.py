"""What stands on an edge of the radix tree: one element per token.

An element is whatever the KV at a position depends on beside the elements before it. For a text
token that is the token, an int. Inside a multimodal span the token is a placeholder, equal for
all contents, so the element is the tuple (token, content, offset in the span, span length). An int
never equals a tuple, so text and contents cannot be mistaken for each other.

Salt and adapter apply to the whole prompt: they are no elements but choose the root, the *space*.
As a tuple of two they cannot be mistaken for each other either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from kvassay.harness.contract import CacheKey, Span
from kvassay.impls.inputs import field_of, token_list, whole

Element: TypeAlias = "int | tuple[int, str, int, int]"
Space: TypeAlias = tuple[str | None, str | None]


def space_of(key: CacheKey) -> Space:
    """The root below which the key's KV may be shared."""
    return _name(key, "salt"), _name(key, "adapter")


def elements_of(key: CacheKey) -> list[Element]:
    """The key's tokens as edge elements; `ValueError` if tokens or spans are malformed."""
    elements: list[Any] = token_list(field_of(key, "tokens"))
    spans = field_of(key, "spans")
    if not isinstance(spans, Sequence):
        raise ValueError(f"spans: expected a sequence of Span, got {spans!r}")
    end = 0
    for span in spans:
        start = whole(field_of(span, "start"), "span start", end, len(elements) - 1)
        length = whole(field_of(span, "length"), "span length", 1, len(elements) - start)
        content = field_of(span, "content")
        if not isinstance(content, str):
            raise ValueError(f"span content: expected a str, got {content!r}")
        end = start + length
        for position in range(start, end):
            elements[position] = (elements[position], content, position - start, length)
    return elements


def tokens_of(elements: Sequence[Element]) -> tuple[int, ...]:
    """The tokens alone."""
    return tuple(item[0] if isinstance(item, tuple) else item for item in elements)


def spans_of(elements: Sequence[Element]) -> tuple[Span, ...]:
    """Spans that touch the elements; starts are relative to the first of them.

    A span that was truncated, so that other elements follow it too early, ends there.
    """
    spans: list[Span] = []
    reached = 0  # end of the positions known to lie in the last span
    for position, item in enumerate(elements):
        if isinstance(item, tuple):
            _, content, offset, length = item
            span = Span(position - offset, length, content)
            if not spans or spans[-1] != span:
                spans.append(span)
            reached = position + 1
        elif spans and reached == position:
            last = spans[-1]
            spans[-1] = Span(last.start, position - last.start, last.content)
    return tuple(spans)


def _name(key: CacheKey, field: str) -> str | None:
    name = field_of(key, field)
    if name is not None and not isinstance(name, str):
        raise ValueError(f"{field}: expected a str or None, got {name!r}")
    return name
