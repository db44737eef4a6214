"""Draws the next operation on an index from the state that the model knows.

Keys are made out of earlier ones, with lengths that fill a page, or are a token short of it or
past it. Amounts to evict are drawn around what is evictable. And most of the time goes to *plays*,
short plans that corner a tree: split an edge below a lock, evict at the brim, insert twice, use
half of an edge and see which half is evicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from kvassay.harness.contract import CacheKey, Capability
from kvassay.harness.generator import Interleaving, Mix
from kvassay.harness.index.checker import IndexChecker
from kvassay.harness.index.scenario import Evict, Insert, Lock, Match, Operation, Unlock
from kvassay.harness.keys import KeySource, cut
from kvassay.harness.scenario import Peek, Reset

Play = Iterator[Operation]
MOST_PAGES = 4
"""Pages of an ordinary key."""


class Drawing:
    """What moves and plays are made of."""

    def __init__(self, rng: Random, checker: IndexChecker) -> None:
        self.rng = rng
        self.checker = checker
        self.model = checker.model
        self.size = checker.model.page_size
        self.keys = KeySource(rng, self.size, checker.declaration)
        self._count = 0

    def _length(self) -> int:
        """Tokens of a key: whole pages, or a token beside; sometimes less than a page."""
        pages = self.rng.choice((0, 1, 1, 2, 2, 3, MOST_PAGES))
        return max(1, pages * self.size + self.rng.choice((-1, 0, 0, 0, 1)))

    def _pages(self, least: int, most: int) -> int:
        """Tokens of whole pages, and maybe a few more."""
        tail = self.rng.choice((0, 0, 0, 1, self.size - 1))
        return self.rng.randint(least, most) * self.size + tail

    def _room(self) -> int:
        """Tokens that may still be stored, or a usual length where there is no limit."""
        limit = self.model.capacity
        return MOST_PAGES * self.size if limit is None else limit - len(self.model.values)

    def _key(self) -> CacheKey:
        return self.keys.draw(self._length())

    def _name(self) -> str:
        self._count += 1
        return f"r{self._count}"

    def _insert(self, key: CacheKey) -> Insert:
        self.keys.remember(key)
        return Insert(key)

    def _evictable(self) -> int:
        return max(1, self.model.evictable())

    def _has(self, *capabilities: Capability) -> bool:
        return self.checker.has(*capabilities)


class Moves(Drawing):
    """Single operations."""

    def _all_moves(self) -> dict[str, tuple[float, Callable[[], Operation | None]]]:
        moves: dict[str, tuple[float, Callable[[], Operation | None]]] = {
            "match": (3, self._match_move),
            "insert": (4, self._insert_move),
        }
        offered = {
            "lock": (Capability.LOCK, 2, self._lock_move),
            "unlock": (Capability.LOCK, 2, self._unlock_move),
            "misuse": (Capability.VALIDATES_INPUT, 0.2, self._misuse_move),
            "evict": (Capability.EVICT, 1.5, self._evict_move),
            "reset": (Capability.RESET, 0.2, self._reset_move),
            "peek": (Capability.PEEK, 1, self._peek_move),
        }
        for name, (capability, weight, move) in offered.items():
            if self._has(capability):
                moves[name] = (weight, move)
        return moves

    def _match_move(self) -> Operation:
        return Match(self._name(), self._key())

    def _peek_move(self) -> Operation:
        return Peek(self._key())

    def _insert_move(self) -> Operation:
        """A key; where there is no room for it, mostly one that fits or room is made first."""
        key = self._key()
        if self._room() < self.size and self._has(Capability.EVICT) and self.rng.random() < 0.5:
            return Evict(self.rng.randint(1, MOST_PAGES * self.size))
        return self._insert(key)

    def _lock_move(self) -> Operation | None:
        names = [
            name
            for name, reader in self.checker.readers.items()
            if reader.places and (reader.locks or reader.since >= self.checker.changed)
        ]
        return Lock(self.rng.choice(names)) if names else self._match_move()

    def _unlock_move(self) -> Operation | None:
        names = self.checker.locked()
        return Unlock(self.rng.choice(names)) if names else None

    def _misuse_move(self) -> Operation | None:
        names = [name for name, reader in self.checker.readers.items() if reader.places]
        return Unlock(self.rng.choice(names)) if names and not self.checker.locked() else None

    def _evict_move(self) -> Operation:
        """Around what is evictable, around a page, or all and more."""
        evictable, size = self._evictable(), self.size
        around = self.rng.choice((1, size, 2 * size, evictable, evictable))
        return Evict(max(1, around + self.rng.choice((-1, 0, 0, 1, size))))

    def _reset_move(self) -> Operation | None:
        return None if self.checker.locked() else Reset()


class Plays(Moves):
    """Short plans."""

    def _all_plays(self) -> dict[str, tuple[float, Callable[[], Play]]]:
        plays: dict[str, tuple[float, Callable[[], Play]]] = {
            "split": (3, self._play_split),
            "again": (2, self._play_again),
            "twice": (1.5, self._play_twice),
            "near": (1.5, self._play_near),
            "brim": (1.5 if self.model.capacity is not None else 0.1, self._play_brim),
        }
        offered: dict[str, tuple[tuple[Capability, ...], float, Callable[[], Play]]] = {
            "locked": ((Capability.LOCK, Capability.EVICT), 4, self._play_locked),
            "shared": ((Capability.LOCK, Capability.EVICT), 2, self._play_shared),
            "age": ((Capability.EVICT,), 4, self._play_age),
            "gone": ((Capability.EVICT,), 2, self._play_gone),
            "misuse": ((Capability.LOCK, Capability.VALIDATES_INPUT), 0.5, self._play_misuse),
            "reset": ((Capability.RESET,), 1.5, self._play_reset),
        }
        for name, (capabilities, weight, play) in offered.items():
            if self._has(*capabilities):
                plays[name] = (weight, play)
        return plays

    # ---------------------------------------------------------------------------------- pieces

    def _stem(self, least: int = 2) -> CacheKey:
        """A key of a few pages, so that there is an edge to split."""
        key = self.keys.draw(self._pages(least, MOST_PAGES))
        missing = least * self.size - len(key.tokens)
        return key if missing <= 0 else self.keys.extended(key, self._pages(least, MOST_PAGES))

    def _shorter(self, key: CacheKey) -> CacheKey:
        """A part of the key that ends inside it, at a page or beside."""
        page = self.rng.randint(1, max(1, len(key.tokens) // self.size - 1))
        return cut(key, max(1, page * self.size + self.rng.choice((0, 0, 1, self.size - 1))))

    def _leaving(self, key: CacheKey) -> CacheKey:
        """A key that leaves this one at a page, or inside one."""
        stem = self._shorter(key)
        tokens = tuple(token + 1 for token in self.keys.tokens(self._pages(1, 2)))
        return CacheKey((*stem.tokens, *tokens), key.salt, key.adapter, stem.spans)

    def _probe(self, key: CacheKey) -> Operation:
        if self._has(Capability.PEEK) and self.rng.random() < 0.4:
            return Peek(key)
        return Match(self._name(), key)

    def _splitter(self, key: CacheKey) -> Operation:
        """An operation that ends inside the edge of `key`."""
        if self.rng.random() < 0.5:
            return Match(self._name(), self._shorter(key))
        return self._insert(self._leaving(key))

    # ----------------------------------------------------------------------------------- plays

    def _play_split(self) -> Play:
        """Split an edge by a look-up or by a key that leaves it, and look all parts up."""
        key = self._stem()
        yield self._insert(key)
        for _ in range(self.rng.randint(1, 2)):
            yield self._splitter(key)
        yield self._probe(key)
        yield self._probe(self._leaving(key))

    def _play_again(self) -> Play:
        """Store a key, and look up the same, longer, shorter and slightly different ones."""
        key = self._key()
        yield self._insert(key)
        for _ in range(self.rng.randint(1, 3)):
            other = self.keys.vary(key, self._length())
            yield self._insert(other) if self.rng.random() < 0.4 else self._probe(other)

    def _play_twice(self) -> Play:
        """The same prefix inserted twice: the caller keeps the second values."""
        key = self._stem(1)
        yield self._insert(key)
        yield self._insert(self.keys.extended(key) if self.rng.random() < 0.5 else key)
        yield self._probe(key)
        if self._has(Capability.EVICT) and self.rng.random() < 0.5:
            yield Evict(self._evictable())

    def _play_near(self) -> Play:
        """The same tokens under another name, or behind another prefix."""
        key = self._stem(1)
        yield self._insert(key)
        other = self.keys.vary(key, self._length())
        yield self._insert(other)
        yield self._probe(key)
        tail = CacheKey(tuple(key.tokens[self.size :]) or key.tokens, key.salt, key.adapter)
        yield self._probe(self.rng.choice((other, tail)))

    def _play_brim(self) -> Play:
        """Fill up to the last page, ask for one more, and look up what was refused."""
        size = self.size
        yield self._insert(self.keys.fresh(max(1, self._room() // size * size)))
        over = max(1, self._room()) + self.rng.choice((0, 1, size))
        stem = self.rng.choice(self.keys.known) if self.keys.known else self._key()
        stem = cut(stem, max(1, self.model.floor(len(stem.tokens))))
        key = self.keys.extended(stem, len(stem.tokens) + over + size)
        yield Insert(key)
        yield self._probe(key)
        if self._has(Capability.EVICT):
            yield Evict(self.rng.choice((1, size, len(key.tokens))))
            yield self._insert(key)

    def _play_locked(self) -> Play:
        """Lock a path, split it, evict beside it, and unlock it."""
        key = self._stem()
        yield self._insert(key)
        name = self._name()
        held = self._shorter(key) if self.rng.random() < 0.3 else key
        yield Match(name, held)
        if self.rng.random() < 0.2:
            yield Match(self._name(), self._shorter(key))
        yield Lock(name)
        if self.rng.random() < 0.2:
            yield Lock(name)
        for _ in range(self.rng.choice((0, 1, 1, 2))):
            yield self._splitter(key)
        yield Evict(
            self._evictable() + self.rng.choice((-1, 0, 1, self.size, len(key.tokens))) or 1
        )
        yield self._probe(key)
        yield Unlock(name)
        yield Evict(self.rng.choice((1, self._evictable(), self._evictable() + 1)))

    def _play_shared(self) -> Play:
        """Two readers lock one path, or one the path of a part; one leaves, the other stays."""
        key = self._stem(1)
        yield self._insert(key)
        one, other = self._name(), self._name()
        yield Match(one, key)
        yield Match(other, self._shorter(key) if self.rng.random() < 0.5 else key)
        pair = [one, other]
        self.rng.shuffle(pair)
        for name in pair:
            yield Lock(name)
        if self.rng.random() < 0.4:
            yield self._splitter(key)
        self.rng.shuffle(pair)
        yield Unlock(pair[0])
        yield Evict(self._evictable() + len(key.tokens))
        yield self._probe(key)
        yield Unlock(pair[1])
        if self.rng.random() < 0.5:
            yield Evict(self._evictable())

    def _play_age(self) -> Play:
        """Several keys, some of them, or a part of one, used again; then evict a little."""
        keys = [self.keys.fresh(self._pages(1, 2)) for _ in range(self.rng.choice((2, 2, 3)))]
        for key in keys:
            yield self._insert(key)
        for key in keys[: self.rng.choice((0, 1, 1, 2))]:
            used = self._shorter(key) if self.rng.random() < 0.6 else key
            yield Match(self._name(), used)
        for _ in range(self.rng.choice((1, 1, 2))):
            yield Evict(self.rng.choice((1, self.size, 2 * self.size)))
        for key in keys:
            yield self._probe(key)

    def _play_gone(self) -> Play:
        """Evict, then look up what went and store it again."""
        key = self._stem(1)
        yield self._insert(key)
        yield self._evict_move()
        yield self._probe(key)
        yield self._insert(key)
        yield self._probe(key)

    def _play_misuse(self) -> Play:
        """One unlock too many; the next lock must be as good as ever."""
        key = self._stem(1)
        yield self._insert(key)
        name = self._name()
        yield Match(name, key)
        if self.rng.random() < 0.6:
            yield Lock(name)
            yield Unlock(name)
        yield Unlock(name)
        yield Match(name, key)
        yield Lock(name)
        yield Evict(self._evictable() + len(key.tokens))
        yield Unlock(name)

    def _play_reset(self) -> Play:
        """Reset between two uses of one key."""
        key = self._key()
        yield self._insert(key)
        for name in self.checker.locked():
            for _ in self.checker.readers[name].locks[:]:
                yield Unlock(name)
        yield Reset()
        yield self._probe(key)
        yield self._insert(key)
        yield self._probe(key)


class IndexGenerator(Plays):
    """An endless supply of operations for one checker."""

    def __init__(self, rng: Random, checker: IndexChecker) -> None:
        super().__init__(rng, checker)
        moves = Mix(rng, self._all_moves(), {})
        plays = Mix(rng, self._all_plays(), {})
        self._drawn: Interleaving[Operation] = Interleaving(rng, moves, plays)

    def next(self) -> Operation:
        """The next operation; it is legal in the present state, most of the time."""
        return self._drawn.next() or self._match_move()

    def last(self) -> Play:
        """What ends a run: every lock is given back, and everything evicted and forgotten."""
        for name in self.checker.locked():
            for _ in self.checker.readers[name].locks[:]:
                yield Unlock(name)
        yield Evict(self._evictable())
        yield Reset()
