"""Single operations, drawn from the state that the model knows.

Sizes are drawn around what is free (need - 1, need, need + 1) and at block boundaries; keys are
made out of earlier ones; appended tokens often follow a known key, so that requests meet again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Protocol

from kvassay.harness.contract import CacheKey, Capability, Declaration, Outcome
from kvassay.harness.keys import KeySource
from kvassay.harness.scenario import (
    Accept,
    Admit,
    Append,
    Begin,
    Commit,
    Drain,
    Evict,
    Fork,
    Operation,
    Peek,
    Query,
    Release,
    Reserve,
    Reset,
    Truncate,
)
from kvassay.reference.model import CacheModel, Live

MOST_LIVE = 6
OUTCOMES = (Outcome.FINISHED, Outcome.FINISHED, *Outcome)


class Driver(Protocol):
    """Whoever runs the operations, a checker for one: where matters stand, and what is offered."""

    model: CacheModel
    declaration: Declaration
    commits: bool

    def has(self, *capabilities: Capability) -> bool: ...


class Moves:
    """Draws operations for one checker."""

    def __init__(self, rng: Random, checker: Driver) -> None:
        self.rng = rng
        self.checker = checker
        self.model = checker.model
        self.size = checker.model.block_size
        self.keys = KeySource(rng, self.size, checker.declaration)
        self._count = 0
        self._free_names: list[str] = []

    def _all_moves(self) -> dict[str, tuple[float, Callable[[], Operation | None]]]:
        has = self.checker.has
        moves: dict[str, tuple[float, Callable[[], Operation | None]]] = {
            "admit": (4, self._admit),
            "append": (3, self._append),
            "release": (3, self._release),
        }
        if self.checker.commits:
            moves["commit"] = (5, self._commit)
        offered = {
            "fork": (Capability.FORK, 1.5, self._fork),
            "truncate": (Capability.TRUNCATE, 1, self._truncate),
            "evict": (Capability.EVICT, 0.7, self._evict),
            "reset": (Capability.RESET, 0.2, Reset),
            "drain": (Capability.DRAIN, 0.1, Drain),
            "begin": (Capability.CHUNKED, 1.5, self._begin),
            "reserve": (Capability.CHUNKED, 2, self._reserve),
            "query": (Capability.QUERY, 0.5, self._query),
            "peek": (Capability.PEEK, 0.7, self._peek),
            "accept": (Capability.DRAFTS, 2, self._accept),
        }
        for name, (capability, weight, move) in offered.items():
            if has(capability):
                moves[name] = (weight, move)
        return moves

    # -------------------------------------------------------------------------------- what to draw

    def _name(self) -> str:
        if self._free_names and self.rng.random() < 0.3:
            return self._free_names.pop()
        self._count += 1
        return f"r{self._count}"

    def _room(self) -> int:
        """Blocks that no live request holds, for each of the tables of a further one."""
        return self.model.unheld() // self.model.tables

    def _length(self) -> int:
        """Tokens of a prompt: small, or around what is free, at a block boundary or beside it."""
        rng, size = self.rng, self.size
        way = rng.random()
        room = max(1, self._room())
        dropped = self.checker.declaration.drop  # of every hit: so much more has to be there
        if way < 0.4:
            return rng.randint(1, min(2 + dropped, room) * size)
        if way < 0.7:
            blocks = rng.randint(1, min(3 + dropped, room))
        else:
            blocks = max(1, room + rng.choice((-1, -1, 0, 0, 0, 1)))
        return max(1, blocks * size + rng.choice((-1, 0, 0, 1, 1 - size)))

    def _exact(self, blocks: int) -> int:
        """Tokens that take exactly `blocks` blocks."""
        return max(1, blocks * self.size - self.rng.choice((0, 0, self.size - 1)))

    def _key(self) -> CacheKey:
        return self.keys.draw(self._length())

    def _one(self, wanted: Callable[[Live], bool] = lambda live: True) -> str | None:
        names = [name for name, live in self.model.live.items() if wanted(live)]
        return self.rng.choice(names) if names else None

    def _so_far(self, name: str) -> CacheKey:
        """The key of a live request, what was appended included."""
        live = self.model.live[name]
        _, elements = self.model.book.path(live.tags[-1])
        tokens = tuple(e if isinstance(e, int) else e[0] for e in elements)
        return replace(live.key, tokens=tokens)

    # --------------------------------------------------------------------------------------- moves

    def _admit(self) -> Operation | None:
        if self._crowded():
            return self._release()
        return self.admit(self._key())

    def _crowded(self) -> bool:
        """Too many live requests, or (mostly) no block left for another."""
        full = self._room() < 1 and self.rng.random() < 0.85
        return full or len(self.model.live) >= MOST_LIVE

    def admit(self, key: CacheKey) -> Admit:
        """Admit a key under some name, and remember it."""
        self.keys.remember(key)
        return Admit(self._name(), key)

    def _begin(self) -> Operation | None:
        if self._crowded():
            return self._release()
        key = self._key()
        self.keys.remember(key)
        return Begin(self._name(), key)

    def _reserve(self) -> Operation | None:
        name = self._one(lambda live: live.pending)
        if name is None:
            return None
        live = self.model.live[name]
        left = len(live.tags) - live.length
        return Reserve(name, left if self.rng.random() < 0.6 else self.rng.randint(1, left))

    def _append(self) -> Operation | None:
        name = self._one(lambda live: not live.pending and not live.drafts)
        return None if name is None else self.append(name)

    def append(self, name: str) -> Append:
        """Tokens that often follow a known key, so that requests meet again."""
        rng, live = self.rng, self.model.live[name]
        size = self.size
        to_boundary = size - live.length % size
        count = rng.choice((1, 1, 1, to_boundary, to_boundary + 1, size))
        if self._room() < 1 and rng.random() < 0.7:
            count = to_boundary % size or 1
        elif rng.random() < 0.1:
            count = max(1, (self._room() + rng.choice((0, 1))) * size)
        tokens = self._continuation(name, count) or self.keys.tokens(count)
        drafts = 0
        if self.checker.has(Capability.DRAFTS) and rng.random() < 0.3:
            # What is rejected may leave as many blocks more as are declared, and no others.
            most = self.checker.declaration.lookahead * size or len(tokens)
            drafts = rng.randint(1, min(most, len(tokens)))
        return Append(name, tokens, drafts)

    def _continuation(self, name: str, count: int) -> tuple[int, ...]:
        live = self.model.live[name]
        if self.rng.random() < 0.5:
            return ()
        for key in self.keys.known:
            tags = len(key.tokens) > live.length and self.model.tags_of(key)
            if tags and tags[live.length - 1] == live.tags[live.length - 1]:
                return tuple(key.tokens[live.length : live.length + count])
        return ()

    def _commit(self) -> Operation | None:
        name = self._one(lambda live: live.committed < live.length)
        if name is None:
            return None
        live = self.model.live[name]
        if self.rng.random() < 0.75:
            return Commit(name)
        return Commit(name, self.rng.randint(live.committed + 1, live.length))

    def _release(self) -> Operation | None:
        name = self._one()
        return None if name is None else self.release(name)

    def release(self, name: str, outcome: Outcome | None = None) -> Release:
        """Let a request go, remembering what it had become."""
        live = self.model.live[name]
        if not live.pending and live.length > len(live.key.tokens):
            self.keys.remember(self._so_far(name))
        self._free_names.append(name)
        return Release(name, outcome or self.rng.choice(OUTCOMES))

    def _fork(self) -> Operation | None:
        if len(self.model.live) >= MOST_LIVE:
            return None
        name = self._one(self._forkable)
        if name is None:
            return None
        return Fork(name, tuple(self._name() for _ in range(self.rng.choice((1, 1, 1, 2, 3)))))

    @staticmethod
    def _forkable(live: Live) -> bool:
        return not live.pending and not live.drafts and live.committed == live.length

    def _truncate(self) -> Operation | None:
        name = self._one(lambda live: not live.pending and live.length > 1)
        if name is None:
            return None
        return Truncate(name, self._cut_length(self.model.live[name].length))

    def _cut_length(self, length: int) -> int:
        rng, size = self.rng, self.size
        boundary = rng.randint(0, length // size) * size
        wanted = rng.choice((length - 1, boundary, boundary - 1, boundary + 1))
        return min(length, max(1, wanted))

    def _evict(self) -> Operation:
        return Evict(self.rng.choice((1, 1, 2, 3, self.model.num_blocks)))

    def _query(self) -> Operation | None:
        return Query(self._key())

    def _peek(self) -> Operation | None:
        return Peek(self._key())

    def _accept(self) -> Operation | None:
        name = self._one(lambda live: live.drafts > 0)
        if name is None:
            return None
        return Accept(name, self.rng.randint(0, self.model.live[name].drafts))
