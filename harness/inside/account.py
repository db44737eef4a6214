"""What one request's KV must be: known from its caller, never from the engine that is watched.

Tokens that were computed before the caller had them (asynchronous scheduling, drafts) are taken on
trust until it has; if it then gets others, what was computed for them is wrong KV from there on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvassay.harness.contract import CacheKey
from kvassay.harness.inside.batch import Ints
from kvassay.harness.inside.memory import Names
from kvassay.reference.tags import TagBook

NOWHERE = -1


class Account:
    """One request: its tokens, their tags, and where it is known to have them."""

    def __init__(self, name: str, serial: int, key: CacheKey, book: TagBook, groups: int) -> None:
        self.name, self.serial, self.key = name, serial, key
        self.prompt = len(key.tokens)
        self.tokens: list[int] = []
        self.known = 0
        """Leading tokens that the caller has given or got."""
        self.reads = 0
        self.due = 0
        """Reads of a layer group that a pass has announced, and that nobody saw yet."""
        self.row: int | None = None
        self.residency: int | None = None
        self._book = book
        self._root = book.root(key)
        self._tags: Names = np.empty(self.prompt + 32, dtype=np.int64)
        self._held = [np.full(self.prompt + 32, NOWHERE, dtype=np.int64) for _ in range(groups)]
        self._extend(list(key.tokens))
        self.known = len(self.tokens)

    @property
    def tags(self) -> Names:
        """[tokens] the tag of each."""
        return self._tags[: len(self.tokens)]

    def held(self, group: int) -> Names:
        """[tokens] slot in which each was written or found since the admission, or `NOWHERE`."""
        return self._held[group][: len(self.tokens)]

    def received(self, tokens: Sequence[int]) -> None:
        """The caller got these."""
        for token in tokens:
            if self.known < len(self.tokens) and self.tokens[self.known] != token:
                del self.tokens[self.known :]
            if self.known == len(self.tokens):
                self._extend([token])
            self.known += 1

    def admitted_again(self) -> None:
        """It has lost its blocks: nothing is known of where its KV is."""
        for held in self._held:
            held[:] = NOWHERE

    def computed(self, start: int, tokens: Sequence[int]) -> int:
        """These are computed now, from a position on; how many of them no caller has given or got.

        All tokens before `start` must have been computed.
        """
        for held in self._held:
            held[start:] = NOWHERE
        stop = start + len(tokens)
        fresh = max(0, stop - max(start, self.known))
        if fresh:
            first = max(start, self.known)
            del self.tokens[first:]
            self._extend(tokens[first - start :])
        return fresh

    def names_of(self, start: int, tokens: Sequence[int]) -> Names:
        """[tokens] tags of what is computed, be it what should be computed or not."""
        stop = start + len(tokens)
        wanted = self.tokens[start:stop]
        if wanted == list(tokens):
            return self._tags[start:stop]
        same = next(at for at, token in enumerate(tokens) if wanted[at] != token)
        parent = int(self._tags[start + same - 1]) if start + same else self._root
        wrong = self._book.chain(parent, list(tokens[same:]))
        return np.concatenate([self._tags[start : start + same], np.array(wrong, dtype=np.int64)])

    def hold(self, group: int, start: int, slots: Ints) -> None:
        """What is read from these slots is its own."""
        self._held[group][start : start + len(slots)] = slots

    def _extend(self, tokens: Sequence[int]) -> None:
        start, stop = len(self.tokens), len(self.tokens) + len(tokens)
        if stop > len(self._tags):
            more = stop - len(self._tags) + len(self._tags)
            self._tags = np.concatenate([self._tags, np.empty(more, dtype=np.int64)])
            room = np.full(more, NOWHERE, dtype=np.int64)
            self._held = [np.concatenate([held, room]) for held in self._held]
        parent = int(self._tags[start - 1]) if start else self._root
        self._tags[start:stop] = self._book.chain(parent, tokens)
        self.tokens.extend(tokens)
