"""The executable specification of a prefix index: token values in, token values out.

A dict from places to values, nothing more. A *place* names the page that holds a position, with
all that comes before it, and the offset in that page: two pages that begin alike have nothing in
common. The page is named by the tag of its last token (see `tags`), so that salt, adapter,
contents and the number of resets are part of it. There is no tree in here, and so there are no
edges to split: what an index does with its edges must not show.

Nothing is left to chance either. `insert` never evicts and `evict` tells what it freed, so what
must match and what may match are the same. What an outsider cannot know is

* whether a lock reaches further than its match, to where the prefixes branched next;
* whether a refused insert was an access;
* with granularity `leaf`, whether an access of a part of a leaf is one of the whole leaf.

An access is what the declared stamps say: a match counts with `hit` or `lookup`, an insert with
`commit`, a lock with `reserve`, an unlock with `release`. It counts for the prefix that was found
or stored, and for nothing below it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from kvassay.harness.contract import CacheKey, Declaration, Granularity, Order, Stamp
from kvassay.reference.policy import Access, Rank, leaf_ranks, rank
from kvassay.reference.tags import Element, Namespace, TagBook, elements_of

ACCESSES: dict[str, frozenset[Stamp]] = {
    "match": frozenset({Stamp.HIT, Stamp.LOOKUP}),
    "insert": frozenset({Stamp.COMMIT}),
    "lock": frozenset({Stamp.RESERVE}),
    "unlock": frozenset({Stamp.RELEASE}),
}
"""Which stamps make an operation an access."""


class Fate(Enum):
    """What became of a value that was offered to the index."""

    STORED = "stored"
    DUPLICATE = "kept by the caller, as the index had that prefix"
    TAIL = "kept by the caller, as it does not fill a page"
    REFUSED = "refused by the index"
    FREED = "freed by evict"
    FORGOTTEN = "forgotten in a reset"


@dataclass(slots=True)
class Offer:
    """One value and the position that it was offered for."""

    place: int
    fate: Fate


@dataclass(frozen=True, slots=True)
class WrongLeaf:
    """Prefix `gone` was evicted although prefix `stayed` was due before it (both are places)."""

    gone: int
    stayed: int


@dataclass
class IndexModel:
    """What an outsider knows about an index of pages of `page_size` tokens."""

    page_size: int
    capacity: int | None
    declaration: Declaration
    book: TagBook = field(default_factory=TagBook)
    values: dict[int, int] = field(default_factory=dict)
    """Place -> value, for every position that is stored."""
    above: dict[int, int] = field(default_factory=dict)
    """Place of a stored position -> place of the one before it (the namespace, for the first)."""
    below: dict[int, set[int]] = field(default_factory=dict)
    """Place of a stored position, or a namespace -> places of the stored positions after it."""
    offers: dict[int, Offer] = field(default_factory=dict)
    """Value -> what became of it, for every value ever offered."""
    covers: Counter[int] = field(default_factory=Counter)
    """Place -> locks that cover it; only what is covered has an entry."""
    beyond: Counter[int] = field(default_factory=Counter)
    """Place -> locks that may reach it, as it may have been on the edge where they end."""
    once_locked: set[int] = field(default_factory=set)
    """Stored places that are or were locked, or may have been."""
    accesses: dict[int, Access] = field(default_factory=dict)
    unsure: set[int] = field(default_factory=set)
    """Places of stored positions whose last access may have been later than is known."""
    splits: set[int] = field(default_factory=set)
    """Places behind which an access ended while more was stored: an edge may have been split."""
    spaces: dict[int, int] = field(default_factory=dict)
    """Place of the first position of a key -> namespace."""
    tokens: dict[int, int] = field(default_factory=dict)
    """Place -> token, for every position of every key so far."""
    epoch: int = 0
    now: int = 0

    # -------------------------------------------------------------------------------- questions

    def places_of(self, key: CacheKey) -> list[int]:
        """Places of all positions of a key, as of the last reset."""
        size = self.page_size
        root = self.book.root(key, self.epoch)
        tags = self.book.chain(root, elements_of(key))
        ends = [*tags[size - 1 :: size], *tags[self.floor(len(tags)) :][-1:]]
        places = [ends[at // size] * size + at % size for at in range(len(tags))]
        self.spaces[places[0]] = -1 - root
        self.tokens.update(zip(places, key.tokens, strict=True))
        return places

    def prefix_of(self, place: int) -> tuple[Namespace, list[Element]]:
        """What a place names: a namespace, and the elements up to this position."""
        end, offset = divmod(place, self.page_size)
        space, elements = self.book.path(end)
        start = self.floor(len(elements) - 1)
        return space, elements[: start + offset + 1]

    def floor(self, length: int) -> int:
        """The length in whole pages."""
        return length - length % self.page_size

    def resident(self, places: Sequence[int]) -> int:
        """How many leading tokens of a key are stored; always whole pages."""
        count = 0
        for place in places:
            if place not in self.values:
                break
            count += 1
        return count

    def fits(self, num_tokens: int) -> bool:
        """Whether so many further tokens may be stored."""
        return self.capacity is None or len(self.values) + num_tokens <= self.capacity

    def evictable(self) -> int:
        """Tokens that no lock covers."""
        return len(self.values) - len(self.covers)

    def surely_evictable(self) -> int:
        """Tokens that no lock can reach, whatever the edges are."""
        return self.evictable() - len(self.maybe_locked())

    def maybe_locked(self) -> set[int]:
        """Places that no lock covers, but one may reach."""
        return self.beyond.keys() - self.covers.keys()

    def _edge_below(self, place: int) -> list[int]:
        """Stored positions after `place`, up to where they branch: they may be on its edge."""
        edge: list[int] = []
        below = self.below.get(place, set())
        while len(below) == 1:
            edge += below
            below = self.below.get(edge[-1], set())
        return edge

    def unreachable(self, freed: Collection[int]) -> int | None:
        """A stored position whose prefix would be gone if `freed` were."""
        for place in freed:
            for child in self.below.get(place, ()):
                if child not in freed:
                    return child
        return None

    def most_evicted(self, asked: int, freed: Collection[int]) -> int:
        """Tokens that evict(`asked`) may free at most, by the declared granularity."""
        granularity = self.declaration.granularity
        if granularity is Granularity.ALL:
            return len(self.values)
        if granularity is Granularity.LEAF:
            return max(asked, asked - 1 + self._longest_edge(freed))
        return -(-asked // self.page_size) * self.page_size

    def _longest_edge(self, freed: Collection[int]) -> int:
        """Tokens of the longest stretch of `freed` without a branch: no leaf can be longer."""
        lengths: dict[int, int] = {}
        for place in sorted(freed, key=lambda each: self.accesses[each].depth):
            above = self.above[place]
            alone = len(self.below[above]) == 1
            lengths[place] = lengths.get(above, 0) + 1 if alone else 1
        return max(lengths.values(), default=0)

    def wrong_leaf(self, freed: Collection[int]) -> tuple[WrongLeaf | None, bool]:
        """Whether the declared policy would have evicted something else.

        Also tells whether there was anything to compare.
        """
        order = self.declaration.order
        if order is Order.NONE or not freed:
            return None, False
        earliest = self._due(
            order, {place: access.stamp for place, access in self.accesses.items()}
        )
        latest = earliest
        if self.unsure:
            latest = self._due(
                order, {place: entry.latest for place, entry in self.accesses.items()}
            )
        gone = [(due, place) for place in freed if (due := earliest[place]) is not None]
        stayed = [
            (due, place) for place, due in latest.items() if due is not None and place not in freed
        ]
        if not gone or not stayed:
            return None, False
        last, first = max(gone), min(stayed)
        wrong = WrongLeaf(last[1], first[1]) if last[0] > first[0] else None
        return wrong, True

    def _due(self, order: Order, stamps: Mapping[int, int]) -> dict[int, Rank | None]:
        """When each position is due, if `stamps` are the accesses; None if a lock may hold it."""
        locked = self.covers.keys() | self.beyond.keys()
        ranks = {
            place: None if place in locked else rank(order, _at(access, stamps[place]))
            for place, access in self.accesses.items()
        }
        by_depth = sorted(ranks, key=lambda place: -self.accesses[place].depth)
        return leaf_ranks(ranks, self.below, by_depth)

    # ----------------------------------------------------------------------------- observations

    def match(self, places: Sequence[int], length: int) -> None:
        """A key was looked up, and its first `length` tokens were found."""
        self._note_split(places, length)
        self._access("match", places[:length])

    def insert(self, places: Sequence[int], values: Sequence[int], there: int) -> None:
        """A key was stored whose first `there` tokens were there already."""
        self._note_split(places, there)
        self._access("insert", places[:there])
        stop = self.floor(len(places))
        above = places[there - 1] if there else self.spaces[places[0]]
        for position in range(there, stop):
            place = places[position]
            self.values[place] = values[position]
            self.above[place] = above
            self.below.setdefault(above, set()).add(place)
            self.accesses[place] = Access(self.now, self.now, self.now, count=1, depth=position)
            above = place
        fates = [Fate.DUPLICATE] * there + [Fate.STORED] * (stop - there)
        fates += [Fate.TAIL] * (len(places) - stop)
        for place, value, fate in zip(places, values, fates, strict=True):
            self.offers[value] = Offer(place, fate)

    def refuse(self, places: Sequence[int], values: Sequence[int]) -> None:
        """An insert was refused: it may have been an access of what was there, and no more."""
        there = self.resident(places)
        self._note_split(places, there)
        self._may_access([*places[:there], *self._renewed_with(places[:there])])
        for place, value in zip(places, values, strict=True):
            self.offers[value] = Offer(place, Fate.REFUSED)

    def lock(self, places: Sequence[int]) -> list[int]:
        """The prefix is protected once more; returns how far beyond the lock may reach."""
        beyond = self._edge_below(places[-1])
        self.covers.update(places)
        self.beyond.update(beyond)
        self.once_locked.update(places, beyond)
        self._access("lock", places)
        return beyond

    def unlock(self, places: Sequence[int], beyond: Sequence[int]) -> None:
        """One lock of the prefix is gone, which may have reached what is `beyond`."""
        for counter, given_back in ((self.covers, places), (self.beyond, beyond)):
            for place in given_back:
                if counter[place] > 1:
                    counter[place] -= 1
                else:
                    counter.pop(place, None)
        self._access("unlock", places)

    def evict(self, freed: Iterable[int]) -> None:
        """These positions are stored no more."""
        for place in freed:
            self.offers[self.values.pop(place)].fate = Fate.FREED
            self.below[self.above.pop(place)].discard(place)
            del self.accesses[place]
            self.beyond.pop(place, None)
            self.once_locked.discard(place)
            self.unsure.discard(place)

    def reset(self) -> None:
        """Everything is forgotten; keys belong to a new epoch."""
        for value in self.values.values():
            self.offers[value].fate = Fate.FORGOTTEN
        for forgotten in (self.values, self.above, self.below, self.accesses):
            forgotten.clear()
        self.beyond.clear()
        self.once_locked.clear()
        self.unsure.clear()
        self.epoch += 1

    def _access(self, kind: str, places: Sequence[int]) -> None:
        """An operation that may count as an access of a prefix."""
        if not places or not ACCESSES[kind] & self.declaration.stamps:
            return
        self._may_access(self._renewed_with(places))
        for place in places:
            access = self.accesses[place]
            access.stamp = access.latest = self.now
            access.count += 1
        self.unsure.difference_update(places)

    def _renewed_with(self, places: Sequence[int]) -> list[int]:
        """What an access of a prefix may renew beyond it, where leaves are kept whole."""
        whole = self.declaration.granularity is Granularity.LEAF
        return self._edge_below(places[-1]) if whole and places else []

    def _may_access(self, places: Sequence[int]) -> None:
        for place in places:
            self.accesses[place].latest = self.now
        self.unsure.update(places)

    def _note_split(self, places: Sequence[int], length: int) -> None:
        if length and self.below.get(places[length - 1]):
            self.splits.add(places[length - 1])


def _at(access: Access, stamp: int) -> Access:
    """The same history, with another last access."""
    return access if access.stamp == stamp else replace(access, stamp=stamp)
