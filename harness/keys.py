"""How the generator makes keys: from nothing, and above all out of earlier ones.

Wrong sharing shows only between keys that almost agree. So most keys are earlier ones that were
repeated, extended, cut at a block boundary or inside a block, changed in one token, recombined
(the same blocks under another prefix) or renamed (another salt, adapter or content).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from kvassay.harness.contract import CacheKey, Capability, Declaration, Span

REMEMBERED = 10
NAMES = (None, "a", "b")
"""Salts and adapters share their names, so that they can be confused."""
CONTENTS = ("x", "y")
BASES = (31, 31, 33, 257)
"""Bases of polynomial hashes in common use."""


class KeySource:
    """Draws keys for one run."""

    def __init__(self, rng: Random, block_size: int, declaration: Declaration) -> None:
        self.rng = rng
        self.block_size = block_size
        self.alphabet = rng.choice((2, 3, 50, 50))
        self.known: list[CacheKey] = []
        has = declaration.has
        self._salts = has(Capability.SALT)
        self._adapters = has(Capability.ADAPTER)
        self._spans = has(Capability.SPANS)
        ways: list[Callable[[CacheKey, int], CacheKey]] = [
            self._again,
            self._again,
            self.extended,
            self.extended,
            self._cut,
            self.changed,
            self.changed,
            self._recombined,
        ]
        if self._salts or self._adapters or self._spans:
            ways += [self._renamed, self._renamed]
        self._ways = ways

    def remember(self, key: CacheKey) -> None:
        """A key that was used; one of those that later keys are made of."""
        known = self.known
        if key in known:
            known.remove(key)
        known.append(key)
        if len(known) > REMEMBERED:
            del known[self.rng.randrange(len(known) // 2)]

    def draw(self, length: int) -> CacheKey:
        """A key; `length` tokens where it has to grow or is new."""
        if not self.known or self.rng.random() < 0.2:
            return self.fresh(length)
        return self.vary(self.rng.choice(self.known), length)

    def vary(self, key: CacheKey, length: int) -> CacheKey:
        """A key made out of `key`, in one of the ways that keys almost agree."""
        return self.rng.choice(self._ways)(key, length)

    def fresh(self, length: int) -> CacheKey:
        """A key that owes nothing to earlier ones (though a small alphabet makes them meet)."""
        key = CacheKey(self.tokens(length))
        return self._renamed(key, length) if self.rng.random() < 0.25 else key

    def tokens(self, count: int) -> tuple[int, ...]:
        """Random tokens."""
        rng, alphabet = self.rng, self.alphabet
        return tuple([rng.randrange(alphabet) for _ in range(max(1, count))])

    # -------------------------------------------------------------------------------- variations

    def _again(self, key: CacheKey, length: int) -> CacheKey:
        return key

    def extended(self, key: CacheKey, length: int = 0) -> CacheKey:
        """The key continued up to `length` tokens, or by a little where it is that long."""
        more = length - len(key.tokens)
        if more < 1:
            more = self.rng.choice((1, self.block_size, self.block_size + 1))
        return replace(key, tokens=(*key.tokens, *self.tokens(more)))

    def _cut(self, key: CacheKey, length: int) -> CacheKey:
        return cut(key, self._place(len(key.tokens)))

    def _place(self, length: int) -> int:
        """A length in [1, length], mostly at a block boundary or beside one."""
        if self.rng.random() < 0.3:
            return self.rng.randint(1, length)
        boundary = self.rng.randint(0, length // self.block_size) * self.block_size
        return min(length, max(1, boundary + self.rng.choice((-1, 0, 1))))

    def changed(self, key: CacheKey, length: int = 0) -> CacheKey:
        """One token differs: mostly the last or the first one of a block."""
        tokens = list(key.tokens)
        position = self._place(len(tokens)) - 1
        if position + 1 < len(tokens) and self.rng.random() < 0.3:
            # Two changes that cancel in a polynomial hash, whichever end weighs more (B154).
            more, less = self.rng.sample((position, position + 1), 2)
            tokens[more] += self.rng.choice(BASES) if tokens[less] else 1
            tokens[less] = max(0, tokens[less] - 1)
        else:
            tokens[position] += 1
        changed = replace(key, tokens=tuple(tokens))
        return self.extended(changed, length) if self.rng.random() < 0.3 else changed

    def _recombined(self, key: CacheKey, length: int) -> CacheKey:
        """Blocks of known keys under another prefix; a key that forgets its parent is seen here."""
        size, other = self.block_size, self.rng.choice(self.known)
        at = self.rng.randint(0, max(len(key.tokens), len(other.tokens)) // size) * size
        way = self.rng.randrange(3)
        if way == 0:
            tokens = (*key.tokens[:at], *other.tokens[at:])
        elif way == 1:
            tokens = (*key.tokens[:at], *other.tokens)
        else:
            tokens = tuple(other.tokens[at:])
        spans = key.spans if not other.spans and way == 0 else ()
        tokens = tokens or self.tokens(length)
        return cut(replace(key, tokens=tokens, spans=spans), len(tokens))

    def _renamed(self, key: CacheKey, length: int) -> CacheKey:
        """The same tokens in another namespace, or standing for another content."""
        salt, adapter, spans = key.salt, key.adapter, key.spans
        if self._salts and self._adapters and salt != adapter and self.rng.random() < 0.5:
            salt, adapter = adapter, salt
        elif self._salts and (not self._adapters or self.rng.random() < 0.5):
            salt = self.rng.choice(NAMES)
        elif self._adapters:
            adapter = self.rng.choice(NAMES)
        if self._spans and self.rng.random() < 0.6:
            spans = self._respanned(key)
        return replace(key, salt=salt, adapter=adapter, spans=spans)

    def _respanned(self, key: CacheKey) -> tuple[Span, ...]:
        """Another content at the same place, or one more span; the content tells its length."""
        if key.spans and self.rng.random() < 0.7:
            swapped = {"x": "y", "y": "x"}
            return tuple(
                replace(span, content=swapped[span.content[0]] + span.content[1:])
                for span in key.spans
            )
        length = self.rng.choice((1, 2, self.block_size))
        start = self._place(len(key.tokens)) - 1
        if start + length > len(key.tokens):
            return key.spans
        return (Span(start, length, f"{self.rng.choice(CONTENTS)}{length}"),)


def cut(key: CacheKey, length: int) -> CacheKey:
    """The first `length` tokens of a key; spans that no longer fit are left out."""
    tokens = tuple(key.tokens[:length])
    spans = tuple(span for span in key.spans if span.start + span.length <= length)
    return replace(key, tokens=tokens, spans=spans)


def longest(keys: Sequence[CacheKey]) -> CacheKey:
    """The key with the most tokens."""
    return max(keys, key=lambda key: len(key.tokens))
