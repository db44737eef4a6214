"""Draws the next operation from the state that the model knows.

Uniform random operations rarely meet: most admissions are refused and few hit. Here sizes are
drawn around what is free (need - 1, need, need + 1), keys are made out of earlier ones, and a
share of the time goes to *plays*: short plans that are known to corner managers (compute a
prefix twice before either commits, fork and write on both sides, truncate and diverge, evict
and look up who is missing), interleaved with everything else. Every run mixes differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Generic, TypeVar

from kvassay.harness.checker import Checker
from kvassay.harness.contract import CacheKey, Capability, Outcome
from kvassay.harness.keys import KeySource, cut
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
    Quiesce,
    Release,
    Reserve,
    Reset,
    Truncate,
)
from kvassay.reference.model import Live

Play = Iterator[Operation]
Choice = TypeVar("Choice")
MOST_LIVE = 6
OUTCOMES = (Outcome.FINISHED, Outcome.FINISHED, *Outcome)

FOCUS: dict[str, dict[str, float]] = {
    "allocator": {"fill": 3, "abort": 2, "chunked": 1.5, "query": 2},
    "cow": {"fork": 5, "diverge": 2, "partial": 3},
    "prefix": {"twice": 2, "rewrite": 2, "age": 3, "evict": 2, "unwritten": 2, "again": 2},
    "events": {"twice": 3, "age": 2, "evict": 1, "again": 2, "reset": 2},
}
"""Plays that each suite favours, as factors."""


class Mix(Generic[Choice]):
    """Swarm testing: every run leaves some kinds almost out and favours others."""

    def __init__(
        self, rng: Random, offered: dict[str, tuple[float, Choice]], factors: dict[str, float]
    ) -> None:
        self._rng = rng
        self._choices = [choice for _, choice in offered.values()]
        self._weights = [
            weight * factors.get(name, 1) * rng.choice((0.1, 0.5, 1, 1, 3))
            for name, (weight, _) in offered.items()
        ]

    def draw(self) -> Choice:
        """One of the choices, by weight."""
        return self._rng.choices(self._choices, self._weights)[0]


class Generator:
    """An endless supply of operations for one checker; `Quiesce` ends a run."""

    def __init__(self, rng: Random, checker: Checker, focus: str = "") -> None:
        self.rng = rng
        self.checker = checker
        self.model = checker.model
        self.size = checker.model.block_size
        self.keys = KeySource(rng, self.size, checker.declaration)
        self._count = 0
        self._free_names: list[str] = []
        self._playing: list[Play] = []
        self._alone = False
        """Whether the one play that is on goes on undisturbed."""
        self._moves = Mix(rng, self._all_moves(), {})
        self._plays = Mix(rng, self._all_plays(), FOCUS.get(focus, {}))
        self._appetite = rng.choice((0.3, 0.5, 0.8))

    # ---------------------------------------------------------------------------------- mixing

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

    def _all_plays(self) -> dict[str, tuple[float, Callable[[], Play]]]:
        has = self.checker.has
        plays: dict[str, tuple[float, Callable[[], Play]]] = {
            "fill": (1, self._play_fill),
            "abort": (1, self._play_abort),
        }
        offered = {
            "fork": (Capability.FORK, self._play_fork),
            "query": (Capability.QUERY, self._play_query),
            "chunked": (Capability.CHUNKED, self._play_chunked),
            "again": (Capability.PREFIX_CACHE, self._play_again),
            "twice": (Capability.PREFIX_CACHE, self._play_twice),
            "age": (Capability.PREFIX_CACHE, self._play_age),
            "partial": (Capability.PREFIX_CACHE, self._play_partial),
            "diverge": (Capability.PREFIX_CACHE, self._play_diverge),
            "recombine": (Capability.PREFIX_CACHE, self._play_recombine),
            "unwritten": (Capability.PREFIX_CACHE, self._play_unwritten),
            "rewrite": (Capability.TRUNCATE, self._play_rewrite),
            "evict": (Capability.EVICT, self._play_evict),
            "drafts": (Capability.DRAFTS, self._play_drafts),
            "reset": (Capability.RESET, self._play_reset),
        }
        for name, (capability, play) in offered.items():
            if has(capability):
                plays[name] = (1, play)
        return plays

    def next(self) -> Operation:
        """The next operation; it is legal in the present state, most of the time."""
        rng = self.rng
        for _ in range(20):
            if self._playing and (self._alone or rng.random() < 0.75):
                play = rng.choice(self._playing)
                operation = next(play, None)
                if operation is not None:
                    return operation
                self._playing.remove(play)
                self._alone = False
            elif len(self._playing) < 2 and rng.random() < self._appetite:
                self._playing.append(self._plays.draw()())
                self._alone = len(self._playing) == 1 and rng.random() < 0.5
            else:
                drawn = self._moves.draw()()
                if drawn is not None:
                    return drawn
        return Quiesce()

    # -------------------------------------------------------------------------------- what to draw

    def _name(self) -> str:
        if self._free_names and self.rng.random() < 0.3:
            return self._free_names.pop()
        self._count += 1
        return f"r{self._count}"

    def _room(self) -> int:
        """Blocks that no live request holds."""
        return self.model.num_blocks - self.model.blocks.num_used

    def _length(self) -> int:
        """Tokens of a prompt: small, or around what is free, at a block boundary or beside it."""
        rng, size = self.rng, self.size
        way = rng.random()
        room = max(1, self._room())
        if way < 0.4:
            return rng.randint(1, min(2, room) * size)
        if way < 0.7:
            blocks = rng.randint(1, min(3, room))
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
            drafts = rng.randint(1, len(tokens))
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

    # --------------------------------------------------------------------------------------- plays

    def _alive(self, name: str) -> bool:
        return name in self.model.live

    def _done(self, name: str) -> Play:
        """Write what has slots."""
        live = self.model.live.get(name)
        if live is not None and self.checker.commits and live.committed < live.length:
            yield Commit(name)

    def _served(self, key: CacheKey) -> Play:
        """One whole request: admitted, written, released."""
        admitted = self.admit(key)
        yield admitted
        yield from self._done(admitted.request)
        if self._alive(admitted.request):
            yield self.release(admitted.request, Outcome.FINISHED)

    def _seen(self, key: CacheKey) -> Play:
        """Look a key up in the cheapest way that there is, and let it go."""
        if self.checker.has(Capability.PEEK) and self.rng.random() < 0.3:
            yield Peek(key)
            return
        if self.checker.has(Capability.CHUNKED) and self.rng.random() < 0.5:
            name = self._name()
            yield Begin(name, key)
        else:
            admitted = self.admit(key)
            name = admitted.request
            yield admitted
            if self.rng.random() < 0.3:
                yield from self._done(name)
        if self._alive(name):
            yield self.release(name)

    def _some_released(self) -> Play:
        for name in list(self.model.live):
            if self._alive(name) and self.rng.random() < 0.8:
                yield self.release(name)

    def _cleared(self) -> Play:
        """Nobody is live and, where that can be had, nothing is cached: everything is known."""
        for name in list(self.model.live):
            if self._alive(name):
                yield self.release(name)
        if self.checker.has(Capability.RESET) and self.rng.random() < 0.6:
            yield Reset()

    def _one_block(self) -> CacheKey:
        """A new key whose first block, and no more, can be cached."""
        return self.keys.fresh(self.size + self.rng.choice((0, 0, self.size // 2)))

    def _play_fill(self) -> Play:
        """Take what is left to the last block, ask for one more, and let go."""
        admitted = self.admit(self.keys.fresh(self._exact(max(1, self._room()))))
        yield admitted
        yield from self._done(admitted.request)
        yield self.admit(self.keys.draw(self._exact(self._room() + 1)))
        other = self._one(lambda live: not live.pending and not live.drafts)
        if other is not None:
            yield self.append(other)
        for name in (other, admitted.request):
            if name is not None and self._alive(name):
                yield self.release(name)
        yield self.admit(self.keys.fresh(self._exact(max(1, self._room()))))

    def _play_abort(self) -> Play:
        """Leave at every step of the way, written or not, then use the blocks again."""
        admitted = self.admit(self._key())
        yield admitted
        live = self.model.live.get(admitted.request)
        if live is None:
            return
        if self.checker.commits and self.rng.random() < 0.6 and live.length > live.committed:
            yield Commit(admitted.request, self.rng.randint(live.committed + 1, live.length))
        if self._alive(admitted.request):
            yield self.release(admitted.request, self.rng.choice(tuple(Outcome)))
        yield from self._served(admitted.key)
        yield self.admit(self.keys.fresh(self._exact(max(1, self._room()))))

    def _play_fork(self) -> Play:
        """Fork inside a block and write on both sides, in either order."""
        name = self._one(self._forkable)
        if name is None or self.rng.random() < 0.5:
            admitted = self.admit(self.keys.draw(self.size * self.rng.randint(0, 1) + 1))
            name = admitted.request
            yield admitted
            yield from self._done(name)
        if not self._alive(name) or not self._forkable(self.model.live[name]):
            return
        children = tuple(self._name() for _ in range(self.rng.choice((1, 1, 2))))
        yield Fork(name, children)
        family = [name, *children]
        self.rng.shuffle(family)
        if self.rng.random() < 0.3 and self._alive(family[0]):
            yield self.release(family.pop(0))
        for member in family:
            if self._alive(member) and not self.model.live[member].drafts:
                yield self.append(member)
                if self.rng.random() < 0.7:
                    yield from self._done(member)
        if self.rng.random() < 0.5:
            yield self.admit(self.keys.fresh(self._exact(max(1, self._room()))))

    def _play_query(self) -> Play:
        key = self._key()
        yield Query(key)
        yield self.admit(key)

    def _play_chunked(self) -> Play:
        """Begin, let others press, then reserve piece by piece."""
        key = self.rng.choice(self.keys.known) if self.keys.known else self._key()
        key = self.keys._extended(key, 0) if self.rng.random() < 0.5 else key
        name = self._name()
        self.keys.remember(key)
        yield Begin(name, key)
        if self.rng.random() < 0.7:
            yield self.admit(self.keys.fresh(self._exact(max(1, self._room()))))
        while self._alive(name) and self.model.live[name].pending:
            live = self.model.live[name]
            before, left = live.length, len(live.tags) - live.length
            yield Reserve(name, min(left, self.rng.choice((1, self.size, left))))
            yield from self._done(name)
            if not self._alive(name) or self.model.live[name].length == before:
                break
        if self._alive(name) and self.rng.random() < 0.5:
            yield self.release(name)

    def _play_again(self) -> Play:
        """Serve a key, then the same again, longer, shorter and slightly different."""
        key = self._key()
        yield from self._served(key)
        for _ in range(self.rng.randint(1, 3)):
            yield from self._served(self.rng.choice(self.keys._ways)(key, self._length()))

    def _play_twice(self) -> Play:
        """The same prefix computed twice before either is published."""
        key = self.keys.draw(self.size * self.rng.randint(1, 2) + self.rng.randint(0, 1))
        yield from self._some_released()
        first = self.admit(key)
        yield first
        second = self.admit(self.keys._extended(key, 0) if self.rng.random() < 0.3 else key)
        yield second
        pair = [first.request, second.request]
        self.rng.shuffle(pair)
        for name in pair:
            yield from self._done(name)
        self.rng.shuffle(pair)
        if self._alive(pair[0]):
            yield self.release(pair[0])
        if self.rng.random() < 0.7:
            yield self.admit(self.keys.fresh(self._exact(max(1, self._room()))))
        if self._alive(pair[1]) and self.rng.random() < 0.6:
            yield self.release(pair[1])
        yield from self._seen(self.keys._extended(key, 0))

    def _play_age(self) -> Play:
        """Several cached keys, some used again; then evict one or two and see who is left."""
        yield from self._cleared()
        keys = [self._one_block() for _ in range(self.rng.choice((2, 2, 3)))]
        if self.rng.random() < 0.4:
            keys[0] = self.keys._extended(keys[0], 2 * self.size)
        for key in keys:
            yield from self._served(key)
        for key in keys[: self.rng.choice((0, 1, 1, 2))]:
            yield from self._served(self._probe(key))
        over = self.rng.choice((1, 1, 2))
        if self.checker.has(Capability.EVICT) and self.rng.random() < 0.4:
            yield Evict(over)
        else:
            blocks = min(self._room(), max(1, self.model.surely_free() + over))
            yield from self._served(self.keys.fresh(self._exact(blocks)))
        self.rng.shuffle(keys)
        for key in keys:
            yield from self._seen(self._probe(key))

    def _probe(self, key: CacheKey) -> CacheKey:
        """A look-up that can count all of a key, or its first blocks."""
        if self.rng.random() < 0.6:
            return self.keys._extended(key, len(key.tokens) + 1)
        return cut(key, self.rng.randint(1, len(key.tokens) // self.size or 1) * self.size + 1)

    def _play_evict(self) -> Play:
        """Evict a little of what is known to be cached, and look all of it up."""
        yield from self._cleared()
        room = max(1, self.model.surely_free() - 1)
        keys = [self._one_block() for _ in range(min(room, self.rng.choice((1, 2, 2, 3))))]
        if self.rng.random() < 0.4:
            keys[-1] = self.keys._extended(keys[-1], 2 * self.size)
        for key in keys:
            yield from self._served(key)
        if self.rng.random() < 0.2:
            yield self.admit(self._probe(keys[0]))
        yield Evict(self.rng.choice((1, 1, 1, 2, self.model.num_blocks)))
        for key in keys:
            yield from self._seen(self._probe(key))

    def _play_partial(self) -> Play:
        """Hits that end inside a block, whose rest is then written differently."""
        key = self.keys.draw(self.size + self.rng.randint(1, self.size))
        yield from self._served(key)
        changed = self.keys._changed(key, 0)
        for variant in (changed, key):
            admitted = self.admit(variant)
            yield admitted
            yield from self._done(admitted.request)
            if self._alive(admitted.request):
                yield self.append(admitted.request)

    def _play_diverge(self) -> Play:
        """Two live requests with one prefix and different continuations."""
        stem = self._key()
        yield from self._served(stem)
        for _ in range(2):
            admitted = self.admit(replace(stem, tokens=(*stem.tokens, *self.keys.tokens(2))))
            yield admitted
            yield from self._done(admitted.request)
        yield from self._seen(self._probe(stem))

    def _play_recombine(self) -> Play:
        """Blocks of one key under the prefix of another."""
        size = self.size
        pair = [self.keys.fresh(2 * size + self.rng.choice((0, 1))) for _ in range(2)]
        for key in pair:
            yield from self._served(key)
        one, other = pair
        tokens = (*other.tokens[:size], *one.tokens[size:], *self.keys.tokens(1))
        if self.rng.random() < 0.3:
            tokens = (*one.tokens[size:], *self.keys.tokens(1))
        yield from self._seen(replace(one, tokens=tokens, spans=()))

    def _play_unwritten(self) -> Play:
        """Look up what another request has not written yet."""
        admitted = self.admit(self.keys.fresh(self.size * self.rng.randint(1, 2) + 1))
        yield admitted
        live = self.model.live.get(admitted.request)
        if live is not None and self.checker.commits and self.rng.random() < 0.4:
            yield Commit(admitted.request, self.rng.randint(1, live.length))
        yield from self._seen(self.keys._extended(admitted.key, 0))
        if self._alive(admitted.request) and self.rng.random() < 0.5:
            yield self.release(admitted.request)
            yield from self._seen(self.keys._extended(admitted.key, 0))

    def _play_rewrite(self) -> Play:
        """Truncate into what was published, write something else, look the old key up."""
        key = self.keys.draw(self.size * self.rng.randint(1, 2) + self.rng.randint(0, 1))
        admitted = self.admit(key)
        name = admitted.request
        yield admitted
        yield from self._done(name)
        if self._alive(name) and self.model.live[name].length > 1:
            yield Truncate(name, self._cut_length(self.model.live[name].length))
        for _ in range(self.rng.randint(1, 2)):
            if self._alive(name) and not self.model.live[name].drafts:
                yield Append(name, self.keys.tokens(self.rng.choice((1, 1, self.size))))
                yield from self._done(name)
        if self._alive(name) and self.rng.random() < 0.6:
            yield self.release(name)
        yield from self._seen(self.keys._extended(key, 0))

    def _play_drafts(self) -> Play:
        """Drafts that fill a block, are rejected, and looked up all the same."""
        admitted = self.admit(self._key())
        name = admitted.request
        yield admitted
        yield from self._done(name)
        if not self._alive(name) or self.model.live[name].drafts:
            return
        drafted = self.keys.tokens(self.rng.choice((1, 2, self.size)))
        yield Append(name, drafted, len(drafted))
        if not self._alive(name):
            return
        key = self._so_far(name)
        if self.rng.random() < 0.7:
            yield from self._done(name)
        if self.rng.random() < 0.4:
            yield from self._seen(self.keys._extended(key, 0))
        if self._alive(name) and self.model.live[name].drafts:
            yield Accept(name, self.rng.randint(0, self.model.live[name].drafts))
        yield from self._seen(self.keys._extended(key, 0))

    def _play_reset(self) -> Play:
        """Reset between two uses of one key."""
        key = self._key()
        yield from self._served(key)
        for name in list(self.model.live):
            if self._alive(name):
                yield self.release(name)
        yield Reset()
        yield from self._served(key)
        yield from self._seen(self.keys._extended(key, 0))
