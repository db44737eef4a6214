"""The executable specification of a prefix index: token values in, token values out.

A dict from prefixes to values, nothing more: a prefix is named by its tag (see `tags`), so that
salt, adapter, contents and the number of resets are part of it. There is no tree in here, and so
there are no edges to split: what an index does with its edges must not show.

Nothing is left to chance either. `insert` never evicts and `evict` tells what it freed, so what
must match and what may match are the same. What an outsider cannot know is

* whether a lock reaches further than its match, to where the prefixes branch next;
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
from kvassay.reference.tags import TagBook, elements_of

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
    KEPT = "kept by the caller: the index had that prefix, or it does not fill a page"
    REFUSED = "refused by the index"
    FREED = "freed by evict"
    FORGOTTEN = "forgotten in a reset"


@dataclass(slots=True)
class Offer:
    """One value and the position that it was offered for."""

    tag: int
    fate: Fate


@dataclass(frozen=True, slots=True)
class WrongLeaf:
    """Prefix `gone` was evicted although prefix `stayed` was due before it (both are tags)."""

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
    """Tag -> value, for every position that is stored."""
    above: dict[int, int] = field(default_factory=dict)
    """Tag of a stored position -> tag of the one before it (the namespace, for the first)."""
    below: dict[int, set[int]] = field(default_factory=dict)
    """Tag of a stored position, or a namespace -> tags of the stored positions after it."""
    offers: dict[int, Offer] = field(default_factory=dict)
    """Value -> what became of it, for every value ever offered."""
    covers: Counter[int] = field(default_factory=Counter)
    """Tag -> locks that cover it; only what is covered has an entry."""
    ends: Counter[int] = field(default_factory=Counter)
    """Tag -> locks that end with it."""
    accesses: dict[int, Access] = field(default_factory=dict)
    unsure: set[int] = field(default_factory=set)
    """Tags of stored positions whose last access may have been later than is known."""
    splits: set[int] = field(default_factory=set)
    """Tags behind which an access ended while more was stored: an edge may have been split."""
    spaces: dict[int, int] = field(default_factory=dict)
    """Tag of the first position of a key -> namespace."""
    epoch: int = 0
    now: int = 0

    # -------------------------------------------------------------------------------- questions

    def tags_of(self, key: CacheKey) -> list[int]:
        """Tags of all positions of a key, as of the last reset."""
        root = self.book.root(key, self.epoch)
        tags = self.book.chain(root, elements_of(key))
        self.spaces[tags[0]] = root
        return tags

    def floor(self, length: int) -> int:
        """The length in whole pages."""
        return length - length % self.page_size

    def resident(self, tags: Sequence[int]) -> int:
        """How many leading tokens of a key are stored; always whole pages."""
        count = 0
        for tag in tags:
            if tag not in self.values:
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
        """Tags that may share an edge with the end of a lock."""
        onward = {tag for end in self.ends for tag in self._edge_below(end)}
        return onward.difference(self.covers) if onward else onward

    def _edge_below(self, tag: int) -> list[int]:
        """Stored positions after `tag`, up to where they branch: they may be on its edge."""
        edge: list[int] = []
        below = self.below.get(tag, set())
        while len(below) == 1:
            edge += below
            below = self.below.get(edge[-1], set())
        return edge

    def unreachable(self, freed: Collection[int]) -> int | None:
        """A stored position whose prefix would be gone if `freed` were."""
        for tag in freed:
            for child in self.below.get(tag, ()):
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
        for tag in sorted(freed, key=lambda each: self.accesses[each].depth):
            above = self.above[tag]
            alone = len(self.below[above]) == 1
            lengths[tag] = lengths.get(above, 0) + 1 if alone else 1
        return max(lengths.values(), default=0)

    def wrong_leaf(self, freed: Collection[int]) -> tuple[WrongLeaf | None, bool]:
        """Whether the declared policy would have evicted something else.

        Also tells whether there was anything to compare.
        """
        order = self.declaration.order
        if order is Order.NONE or not freed:
            return None, False
        earliest = self._due(order, {tag: access.stamp for tag, access in self.accesses.items()})
        latest = earliest
        if self.unsure:
            latest = self._due(order, {tag: entry.latest for tag, entry in self.accesses.items()})
        gone = [(due, tag) for tag in freed if (due := earliest[tag]) is not None]
        stayed = [(due, tag) for tag, due in latest.items() if due is not None and tag not in freed]
        if not gone or not stayed:
            return None, False
        last, first = max(gone), min(stayed)
        wrong = WrongLeaf(last[1], first[1]) if last[0] > first[0] else None
        return wrong, True

    def _due(self, order: Order, stamps: Mapping[int, int]) -> dict[int, Rank | None]:
        """When each position is due, if `stamps` are the accesses; None if a lock may hold it."""
        locked = self.covers.keys() | self.maybe_locked()
        ranks = {
            tag: None if tag in locked else rank(order, replace(access, stamp=stamps[tag]))
            for tag, access in self.accesses.items()
        }
        by_depth = sorted(ranks, key=lambda tag: -self.accesses[tag].depth)
        return leaf_ranks(ranks, self.below, by_depth)

    # ----------------------------------------------------------------------------- observations

    def match(self, tags: Sequence[int], length: int) -> None:
        """A key was looked up, and its first `length` tokens were found."""
        self._note_split(tags, length)
        self._access("match", tags[:length])

    def insert(self, tags: Sequence[int], values: Sequence[int], there: int) -> None:
        """A key was stored whose first `there` tokens were there already."""
        self._note_split(tags, there)
        self._access("insert", tags[:there])
        stop = self.floor(len(tags))
        above = tags[there - 1] if there else self.spaces[tags[0]]
        for position in range(there, stop):
            tag = tags[position]
            self.values[tag] = values[position]
            self.above[tag] = above
            self.below.setdefault(above, set()).add(tag)
            self.accesses[tag] = Access(self.now, self.now, self.now, count=1, depth=position)
            above = tag
        for position, (tag, value) in enumerate(zip(tags, values, strict=True)):
            stored = there <= position < stop
            self.offers[value] = Offer(tag, Fate.STORED if stored else Fate.KEPT)

    def refuse(self, tags: Sequence[int], values: Sequence[int]) -> None:
        """An insert was refused: it may have been an access of what was there, and no more."""
        there = self.resident(tags)
        self._note_split(tags, there)
        self._may_access(tags[:there])
        for tag, value in zip(tags, values, strict=True):
            self.offers[value] = Offer(tag, Fate.REFUSED)

    def lock(self, tags: Sequence[int]) -> None:
        """The prefix is protected once more."""
        self.covers.update(tags)
        self.ends[tags[-1]] += 1
        self._access("lock", tags)

    def unlock(self, tags: Sequence[int]) -> None:
        """One lock of the prefix is gone."""
        for counter, given_back in ((self.covers, tags), (self.ends, tags[-1:])):
            for tag in given_back:
                counter[tag] -= 1
                if not counter[tag]:
                    del counter[tag]
        self._access("unlock", tags)

    def evict(self, freed: Iterable[int]) -> None:
        """These positions are stored no more."""
        for tag in freed:
            self.offers[self.values.pop(tag)].fate = Fate.FREED
            self.below[self.above.pop(tag)].discard(tag)
            del self.accesses[tag]
            self.unsure.discard(tag)

    def reset(self) -> None:
        """Everything is forgotten; keys belong to a new epoch."""
        for value in self.values.values():
            self.offers[value].fate = Fate.FORGOTTEN
        for forgotten in (self.values, self.above, self.below, self.accesses, self.unsure):
            forgotten.clear()
        self.epoch += 1

    def _access(self, kind: str, tags: Sequence[int]) -> None:
        """An operation that may count as an access of a prefix."""
        if not tags or not ACCESSES[kind] & self.declaration.stamps:
            return
        if self.declaration.granularity is Granularity.LEAF:
            self._may_access(self._edge_below(tags[-1]))
        for tag in tags:
            access = self.accesses[tag]
            access.stamp = access.latest = self.now
            access.count += 1
        self.unsure.difference_update(tags)

    def _may_access(self, tags: Sequence[int]) -> None:
        for tag in tags:
            self.accesses[tag].latest = self.now
        self.unsure.update(tags)

    def _note_split(self, tags: Sequence[int], length: int) -> None:
        if length and self.below.get(tags[length - 1]):
            self.splits.add(tags[length - 1])
