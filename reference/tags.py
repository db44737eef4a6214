"""Tags: the name of the KV that belongs in a slot, f(group, key, position).

Two tags are equal exactly when group, epoch, salt, adapter, all tokens up to the position and
the contents they stand for are equal. They are interned ids rather than hashes, so there are no
collisions to reason about: a tag is the node of a trie over everything the KV depends on.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvassay.harness.contract import CacheKey, Span

Element = int | tuple[int, str, int]
"""A token, or (token, content id, offset inside its span)."""


class TagBook:
    """Interns key prefixes; the tag of a position is the id of the prefix that ends there."""

    def __init__(self) -> None:
        self._ids: dict[tuple[object, object], int] = {}
        self._origin: list[tuple[object, object]] = []

    def _intern(self, key: tuple[object, object]) -> int:
        tag = self._ids.get(key)
        if tag is None:
            tag = self._ids[key] = len(self._origin)
            self._origin.append(key)
        return tag

    def root(self, key: CacheKey, epoch: int = 0, group: int = 0) -> int:
        """Tag before the first token of a key."""
        return self._intern((None, (group, epoch, key.salt, key.adapter)))

    def chain(self, parent: int, elements: Sequence[Element]) -> list[int]:
        """Tags of consecutive positions below `parent`."""
        ids, tags = self._ids, []
        for element in elements:
            pair = (parent, element)
            tag = ids.get(pair)
            parent = self._intern(pair) if tag is None else tag
            tags.append(parent)
        return tags

    def of_key(self, key: CacheKey, epoch: int = 0, group: int = 0) -> list[int]:
        """Tags of all positions of a key."""
        return self.chain(self.root(key, epoch, group), elements_of(key))

    def parent(self, tag: int) -> int | None:
        """Tag of the position before, None above a root."""
        above = self._origin[tag][0]
        return above if isinstance(above, int) else None

    def path(self, tag: int) -> tuple[object, list[Element]]:
        """The namespace (group, epoch, salt, adapter) and the elements that end in `tag`."""
        elements: list[Element] = []
        above, element = self._origin[tag]
        while above is not None:
            elements.append(element)  # type: ignore[arg-type]
            above, element = self._origin[above]  # type: ignore[call-overload]
        return element, elements[::-1]


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
