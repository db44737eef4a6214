"""What stands on an edge of the radix tree: one number per token, in a compact array.

An element is whatever the KV at a position depends on beside the elements before it, as an unsigned
number of 64 bits: edges are compared as memory, and no token is an object of its own. For a text
token that is the token. Inside a multimodal span the token is a placeholder, equal for all
contents; there the element has its highest bit set, and says which content, and the offset in it:

    1 | number of (content, span length, token): 35 bits | offset in the span: 28 bits

No hash is involved: `Contents` numbers what it meets. Salt and adapter apply to the whole prompt:
they are no elements but choose the root, the *space*. As a tuple of two they cannot be mistaken for
each other either.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

from kvassay.harness.contract import CacheKey, Span
from kvassay.impls.inputs import field_of, token_array, whole

Elements: TypeAlias = "array[int]"
Space: TypeAlias = tuple[str | None, str | None]

CONTENT = 1 << 63
"""The bit that tells the element of a content from a token."""
_OFFSET_BITS = 28
_LONGEST_SPAN = 1 << _OFFSET_BITS
_FEW = 64
"""Contents that may be out of use before anybody looks."""


class Content(NamedTuple):
    """What an element of a span stands for, but for the offset."""

    content: str
    length: int
    token: int


class Contents:
    """The contents that have a number.

    `keep` forgets those that are out of use. It is due whenever their number has doubled, so that
    its cost stays in proportion to what has come.
    """

    __slots__ = ("_by_number", "_count", "_limit", "_numbers")

    def __init__(self) -> None:
        self._by_number: dict[int, Content] = {}
        self._numbers: dict[Content, int] = {}
        self._count = 0  # numbers given so far
        self._limit = _FEW

    @property
    def crowded(self) -> bool:
        """Whether `keep` is due."""
        return len(self._numbers) > self._limit

    def first_element(self, content: Content) -> int:
        """The element at offset 0; those at higher offsets follow it."""
        number = self._numbers.get(content)
        if number is None:
            number, self._count = self._count, self._count + 1
            self._numbers[content], self._by_number[number] = number, content
        return CONTENT | number << _OFFSET_BITS

    def meaning(self, element: int) -> tuple[Content, int]:
        """Content and offset of an element that has the bit `CONTENT`."""
        return self._by_number[_number(element)], element & (_LONGEST_SPAN - 1)

    def keep(self, runs: Iterable[Elements]) -> None:
        """Forget every content that none of `runs` has an element of."""
        used = {_number(each) for each in chain.from_iterable(runs) if each >= CONTENT}
        self._by_number = {number: self._by_number[number] for number in used}
        self._numbers = {content: number for number, content in self._by_number.items()}
        self._limit = max(_FEW, 2 * len(used))

    def tokens_of(self, elements: Sequence[int]) -> tuple[int, ...]:
        """The tokens alone."""
        return tuple(self.meaning(each)[0].token if each >= CONTENT else each for each in elements)

    def spans_of(self, elements: Sequence[int]) -> tuple[Span, ...]:
        """Spans that touch the elements; starts are relative to the first of them.

        A span that was truncated, so that other elements follow it too early, ends there.
        """
        spans: list[Span] = []
        reached = 0  # end of the positions known to lie in the last span
        for position, each in enumerate(elements):
            if each >= CONTENT:
                content, offset = self.meaning(each)
                span = Span(position - offset, content.length, content.content)
                if not spans or spans[-1] != span:
                    spans.append(span)
                reached = position + 1
            elif spans and reached == position:
                last = spans[-1]
                spans[-1] = Span(last.start, position - last.start, last.content)
        return tuple(spans)


def _number(element: int) -> int:
    return (element ^ CONTENT) >> _OFFSET_BITS


def space_of(key: CacheKey) -> Space:
    """The root below which the key's KV may be shared."""
    try:
        salt, adapter = key.salt, key.adapter
    except AttributeError:
        salt, adapter = field_of(key, "salt"), field_of(key, "adapter")
    for name, value in (("salt", salt), ("adapter", adapter)):
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{name}: expected a str or None, got {value!r}")
    return salt, adapter


def elements_of(key: CacheKey, contents: Contents) -> Elements:
    """The key's tokens as edge elements; `ValueError` if tokens or spans are malformed."""
    elements = token_array(field_of(key, "tokens"))
    spans = field_of(key, "spans")
    if not isinstance(spans, Sequence):
        raise ValueError(f"spans: expected a sequence of Span, got {spans!r}")
    if spans:
        _check(spans, len(elements))
    for span in spans:
        token = first = -1
        for offset in range(span.length):
            position = span.start + offset
            if elements[position] != token:  # one placeholder for all of the span, mostly
                token = elements[position]
                first = contents.first_element(Content(span.content, span.length, token))
            elements[position] = first + offset
    return elements


def _check(spans: Sequence[Span], num_tokens: int) -> None:
    end = 0
    for span in spans:
        start = whole(field_of(span, "start"), "span start", end, num_tokens - 1)
        longest = min(num_tokens - start, _LONGEST_SPAN)
        end = start + whole(field_of(span, "length"), "span length", 1, longest)
        content = field_of(span, "content")
        if not isinstance(content, str):
            raise ValueError(f"span content: expected a str, got {content!r}")


def common(left: Elements, right: Elements) -> int:
    """Length of the common prefix; halving leaves the comparison to C, however long the edge."""
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while low + 1 < high:  # equal before `low`, and not all before `high`
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low
