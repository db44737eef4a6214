"""Tags: the name of the KV that belongs in a slot, f(group, key, position).

Two tags are equal exactly when group, epoch, salt, adapter, all tokens up to the position and
the contents they stand for are equal. They are interned ids rather than hashes, so there are no
collisions to reason about: a tag is the node of a trie over everything the KV depends on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvassay.harness.contract import CacheKey, Span

Element = int | tuple[int, str, int]
"""A token, or (token, content id, offset inside its span)."""


class Namespace(NamedTuple):
    """What separates keys with equal tokens."""

    group: int
    epoch: int
    salt: str | None
    adapter: str | None


class TagBook:
    """Interns key prefixes; the tag of a position is the id of the prefix that ends there."""

    def __init__(self) -> None:
        self._ids: dict[tuple[int, Element], int] = {}
        self._roots: dict[Namespace, int] = {}
        self._origin: list[tuple[int, Element] | Namespace] = []

    def _new(self, origin: tuple[int, Element] | Namespace) -> int:
        self._origin.append(origin)
        return len(self._origin) - 1

    def root(self, key: CacheKey, epoch: int = 0, group: int = 0) -> int:
        """Tag before the first token of a key."""
        namespace = Namespace(group, epoch, key.salt, key.adapter)
        tag = self._roots.get(namespace)
        if tag is None:
            tag = self._roots[namespace] = self._new(namespace)
        return tag

    def chain(self, parent: int, elements: Sequence[Element]) -> list[int]:
        """Tags of consecutive positions below `parent`."""
        ids, tags = self._ids, []
        for element in elements:
            pair = (parent, element)
            tag = ids.get(pair)
            if tag is None:
                tag = ids[pair] = self._new(pair)
            tags.append(tag)
            parent = tag
        return tags

    def of_key(self, key: CacheKey, epoch: int = 0, group: int = 0) -> list[int]:
        """Tags of all positions of a key."""
        return self.chain(self.root(key, epoch, group), elements_of(key))

    def path(self, tag: int) -> tuple[Namespace, list[Element]]:
        """The namespace and the elements that end in `tag`."""
        elements: list[Element] = []
        origin = self._origin[tag]
        while not isinstance(origin, Namespace):
            above, element = origin
            elements.append(element)
            origin = self._origin[above]
        return origin, elements[::-1]


def elements_of(key: CacheKey) -> Sequence[Element]:
    """What each position of a key stands for."""
    if not key.spans:
        return key.tokens
    elements: list[Element] = list(key.tokens)
    for span in key.spans:
        for offset in range(span.length):
            position = span.start + offset
            elements[position] = (key.tokens[position], span.content, offset)
    return elements


def spans_fit(spans: Sequence[Span], length: int) -> bool:
    """Whether spans are in order, disjoint, non-empty and inside `length` tokens."""
    end = 0
    for span in spans:
        if span.length < 1 or span.start < end or span.start + span.length > length:
            return False
        end = span.start + span.length
    return True
