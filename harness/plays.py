"""Plays: short plans that are known to corner cache managers.

Each is a generator of operations that looks at the state as it goes, so it can be interleaved
with others: compute a prefix twice before either commits, fork and write on both sides, truncate
and diverge, evict and look up who is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from kvassay.harness.contract import CacheKey, Capability, Outcome
from kvassay.harness.keys import cut
from kvassay.harness.moves import Moves
from kvassay.harness.scenario import (
    Accept,
    Append,
    Begin,
    Commit,
    Evict,
    Fork,
    Operation,
    Peek,
    Query,
    Reserve,
    Reset,
    Truncate,
)

Play = Iterator[Operation]


class Plays(Moves):
    """Draws plays for one checker."""

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

    # ------------------------------------------------------------------------------------- pieces

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
        key = self.keys.extended(key) if self.rng.random() < 0.5 else key
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
            yield from self._served(self.keys.vary(key, self._length()))

    def _play_twice(self) -> Play:
        """The same prefix computed twice before either is published."""
        key = self.keys.draw(self.size * self.rng.randint(1, 2) + self.rng.randint(0, 1))
        yield from self._some_released()
        first = self.admit(key)
        yield first
        second = self.admit(self.keys.extended(key) if self.rng.random() < 0.3 else key)
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
        yield from self._seen(self.keys.extended(key))

    def _play_age(self) -> Play:
        """Several cached keys, some used again; then evict one or two and see who is left."""
        yield from self._cleared()
        keys = [self._one_block() for _ in range(self.rng.choice((2, 2, 3)))]
        if self.rng.random() < 0.4:
            keys[0] = self.keys.extended(keys[0], 2 * self.size)
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
        if self.rng.random() < 0.4:
            yield from self._healed(self.rng.choice(keys))

    def _healed(self, key: CacheKey) -> Play:
        """Compute what is missing of a key once more; what lay behind it may come to light."""
        whole = self.keys.extended(key, len(key.tokens) + 1)
        yield from self._served(cut(whole, self.size + 1) if self.rng.random() < 0.5 else whole)
        yield from self._seen(whole)

    def _probe(self, key: CacheKey) -> CacheKey:
        """A look-up that can count all of a key, or its first blocks."""
        if self.rng.random() < 0.6:
            return self.keys.extended(key, len(key.tokens) + 1)
        return cut(key, self.rng.randint(1, len(key.tokens) // self.size or 1) * self.size + 1)

    def _play_evict(self) -> Play:
        """Evict a little of what is known to be cached, and look all of it up."""
        yield from self._cleared()
        room = max(1, self.model.surely_free() - 1)
        keys = [self._one_block() for _ in range(min(room, self.rng.choice((1, 2, 2, 3))))]
        if self.rng.random() < 0.4:
            keys[-1] = self.keys.extended(keys[-1], 2 * self.size)
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
        changed = self.keys.changed(key)
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
        yield from self._seen(self.keys.extended(admitted.key))
        if self._alive(admitted.request) and self.rng.random() < 0.5:
            yield self.release(admitted.request)
            yield from self._seen(self.keys.extended(admitted.key))

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
        yield from self._seen(self.keys.extended(key))

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
            yield from self._seen(self.keys.extended(key))
        if self._alive(name) and self.rng.random() < 0.3:
            yield self.release(name)
        if self._alive(name) and self.model.live[name].drafts:
            yield Accept(name, self.rng.randint(0, self.model.live[name].drafts))
        yield from self._seen(self.keys.extended(key))

    def _play_reset(self) -> Play:
        """Reset between two uses of one key."""
        key = self._key()
        yield from self._served(key)
        for name in list(self.model.live):
            if self._alive(name):
                yield self.release(name)
        yield Reset()
        yield from self._served(key)
        yield from self._seen(self.keys.extended(key))
