"""The model of a manager with layer groups and windows: one request is a strand in each group.

A layer group has block tables of its own; all groups share the pool, and a block belongs to one
group at a time. A strand is to the model what a request is without groups: its tags name the
group, so what is published, shared, handed out and looked up is kept apart by itself.

In a group with a window of W tokens the query at position q sees the keys of [q - W + 1, q]. With
the KV of n tokens written, the next query stands at n: what lies below ``low = max(0, n - W + 1)``
is seen by nobody any more. What holds in each group:

* [low, n) is *readable*; blocks with a position in [low, length) are *needed*, and held for sure;
* a block wholly below `low` has been *passed*. Its entry is null, or anything: whether the manager
  still holds what it shows is not known, so it counts neither as held nor as free;
* what was published in a passed block may have been dropped, and what lies behind it in any group
  with it, as it can be out of reach then: it may be hit, and never must.

A hit of h tokens is resident in a group if [low(h), h) is. It *must* be counted where the whole
prefix is surely resident in every group: of managers that hit by the window alone, and of those
that ask for more, none can miss it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from kvassay.harness.contract import (
    CacheKey,
    Declaration,
    Granularity,
    GroupSpec,
    Order,
    Outcome,
    Publish,
)
from kvassay.reference.model import CacheModel, Live
from kvassay.reference.publications import Site

NOWHERE = -1
"""Stands in for the block of a position that has none."""


class Strand(Live):
    """One request in one layer group."""

    request: Request

    def __init__(self, key: CacheKey, tags: list[int], window: int | None) -> None:
        super().__init__(key, tags)
        self.window = window
        self.low = 0
        self.first = 0
        """Logical block in which `low` lies: the first that is needed."""
        self.held: list[int] = []
        """Blocks that are needed, and hence held."""
        self.behind: set[Site] = set()
        """What entries before `first` show; held or not."""
        self.sites: list[Site | None] = []
        """Logical block -> the last block that it was seen in, with its tenancy."""

    @property
    def overtaken(self) -> bool:
        """Whether the window has passed blocks that count as held."""
        return self.first > len(self.table) - len(self.held)

    def reach(self, num_tokens: int) -> int:
        """First position that the query at position `num_tokens` sees."""
        return 0 if self.window is None else max(0, num_tokens - self.window + 1)


class Request(Live):
    """One live request: what is true of it in every group, and a strand for each.

    `tags` are those of the first group, `table` is all tables in a row.
    """

    def __init__(self, strands: Sequence[Strand]) -> None:
        super().__init__(strands[0].key, strands[0].tags)
        self.strands = tuple(strands)
        for strand in strands:
            strand.request = self

    @property
    def passed(self) -> bool:
        """Whether a window has passed a block of it."""
        return any(strand.first for strand in self.strands)

    def sync(self, block_size: int) -> None:
        """Tell the strands how far the request has come, and what its windows have passed."""
        for strand in self.strands:
            strand.length, strand.committed = self.length, self.committed
            strand.hit, strand.drafts, strand.forked = self.hit, self.drafts, self.forked
            strand.low = strand.reach(max(self.committed, self.hit))
            strand.first = strand.low // block_size


def strands_of(live: Live) -> tuple[Strand, ...]:
    """The strands of a request of a `GroupModel`."""
    assert isinstance(live, Request)
    return live.strands


class GroupModel(CacheModel):
    """What an outsider knows about a cache manager with `groups`; victims are not judged."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        declaration: Declaration,
        groups: Sequence[GroupSpec],
    ) -> None:
        unordered = replace(declaration, order=Order.NONE, stamps=frozenset())
        super().__init__(num_blocks, block_size, unordered)
        self.groups = tuple(groups)
        self.tables = len(groups)
        self.null = frozenset(declaration.reserved_ids)

    # ------------------------------------------------------------------------------- questions

    def enter(self, key: CacheKey) -> Request:
        """A request for this key, which holds nothing yet."""
        return Request(
            [
                Strand(key, self.book.of_key(key, self.epoch, number), spec.window)
                for number, spec in enumerate(self.groups)
            ]
        )

    def child(self, parent: Live) -> Request:
        """What a fork starts with, its tables apart."""
        strands = [Strand(one.key, list(one.tags), one.window) for one in strands_of(parent)]
        child = Request(strands)
        child.length, child.committed = parent.length, parent.committed
        for strand, origin in zip(strands, strands_of(parent), strict=True):
            strand.published, strand.sites = origin.published, list(origin.sites)
        return child

    def readers(self) -> Mapping[str, Live]:
        """Every request in every group."""
        return {
            f"{name} in group {spec.name}": strand
            for name, live in self.live.items()
            for spec, strand in zip(self.groups, strands_of(live), strict=True)
        }

    def maybe_held(self) -> set[int]:
        """Blocks that are held by nobody for sure, but shown where a window has passed."""
        tenancy, users = self.blocks.tenancy, self.blocks.users
        return {
            block
            for live in self.live.values()
            for strand in strands_of(live)
            for block, count in strand.behind
            if block not in users and tenancy.get(block) == count
        }

    def shown_behind(self) -> Counter[int]:
        """Block -> in how many tables it is shown where a window has passed."""
        strands = (strand for live in self.live.values() for strand in strands_of(live))
        return Counter(block for strand in strands for block, _ in strand.behind)

    def admission_need(self, num_tokens: int) -> int:
        """Blocks that the admission of so many tokens may take at most."""
        return self.tables * self.blocks_for(num_tokens)

    def append_need(self, live: Live, count: int) -> int:
        """Blocks that `count` more slots may take, in all groups together."""
        return sum(CacheModel.append_need(self, strand, count) for strand in strands_of(live))

    def unheld(self) -> int:
        """Blocks that surely no live request holds."""
        return super().unheld() - len(self.maybe_held())

    def surely_free(self) -> int:
        """Blocks that can be handed out without evicting anything."""
        unpublished = self.maybe_held() - self.blocks.published.keys()
        return max(0, super().surely_free() - len(unpublished))

    def pressed_by(self, need: int, admission: bool = False) -> bool:
        """Whether an operation that takes `need` blocks may make a correct manager evict."""
        further = (self.tables - 1) * self.declaration.lookahead
        return need > 0 and super().pressed_by(need + further, admission)

    def surely_found(self, tag: int) -> bool:
        """Whether all that leads to `tag` is sure in every group; else it may be out of reach."""
        namespace, elements = self.book.path(tag)
        key = CacheKey((), namespace.salt, namespace.adapter)
        for number in range(self.tables):
            tags = self.book.chain(self.book.root(key, namespace.epoch, number), elements)
            reach = self.publications.must_hit(tags, len(tags), self.blocks.tenancy)
            if reach < len(tags):
                return False
        return True

    def most_evicted(self, asked: int) -> int:
        """Blocks that evict(`asked`) may free at most; a leaf may have blocks in every group."""
        most = super().most_evicted(asked)
        leaf = self.declaration.granularity is Granularity.LEAF
        return asked - 1 + (most - asked + 1) * self.tables if leaf else most

    def must_hit(self, live: Live) -> int:
        """Tokens that a look-up must count at least: all of them surely there in every group."""
        if not self.caches:
            return 0
        limit, tenancy = len(live.tags) - self.declaration.reserve, self.blocks.tenancy
        resident = min(
            self.publications.must_hit(strand.tags, limit, tenancy) for strand in strands_of(live)
        )
        return self.law(len(live.tags), resident)

    def published(self, live: Live, hit: int) -> tuple[Sequence[int], int]:
        """The same in the group in which it is least, and the tags of that group."""
        found = [(strand.tags, self._published(strand, hit)) for strand in strands_of(live)]
        return min(found, key=lambda one: one[1])

    def _published(self, strand: Strand, hit: int) -> int:
        """Leading tokens, at most `hit`, of which all that its next query sees was published."""
        low, unit, entries = strand.reach(hit), self.unit, self.publications.entries
        for stop in range(unit, hit + 1, unit):
            if stop > low and strand.tags[stop - 1] not in entries:
                return stop - unit
        return hit

    # ----------------------------------------------------------------------------- observations

    def extend(self, live: Live, tokens: Sequence[int]) -> None:
        """The request's key goes on with `tokens`, which have slots."""
        for strand in strands_of(live):
            strand.tags += self.book.chain(strand.tags[-1], tokens)
        live.length += len(tokens)

    def settle(self, strand: Strand, table: list[int], fresh: Sequence[int]) -> int:
        """A strand's table is now `table`, of which `fresh` were handed out.

        Returns how many blocks its window has passed since it was settled last.
        """
        blocks, first = self.blocks, strand.first
        held = table[first:]
        for block in strand.held:
            blocks.drop(block, self.now)
        for block in fresh:
            blocks.hand_out(block, self.now)
        for block in held:
            blocks.hold(block)
        passed = self._passed(strand) if strand.table else 0
        for index in range(first, min(len(strand.table), len(table))):
            if table[index] != strand.table[index]:
                strand.published = min(strand.published, index * self.block_size)
                break
        strand.held, strand.table = held, table
        self._note_sites(strand)
        return passed

    def _passed(self, strand: Strand) -> int:
        """Doubt what was published in the blocks that are needed no longer, and behind them."""
        before = len(strand.table) - len(strand.held)
        if strand.first > before:
            for each in strand.request.strands:
                held = [site[0] for site in each.sites[before:] if site is not None]
                self.publications.doubt(each.tags, before * self.block_size, held)
        return max(0, strand.first - before)

    def _note_sites(self, strand: Strand) -> None:
        tenancy, sites, table = self.blocks.tenancy, strand.sites, strand.table
        sites += [None] * (len(table) - len(sites))
        del sites[len(table) :]
        strand.behind = set()
        for index, block in enumerate(table):
            known = sites[index]
            if index >= strand.first:
                sites[index] = (block, tenancy.get(block, 0))
            elif block not in self.null:
                if known is None or known[0] != block:
                    known = sites[index] = (block, tenancy.get(block, 0))
                strand.behind.add(known)

    def publish(self, live: Live) -> None:
        """What is written becomes visible to look-ups, in every group."""
        if not self.caches:
            return
        for strand in strands_of(live):
            strand.committed = live.committed
            stop = live.committed - live.committed % self.unit
            start = strand.published - strand.published % self.unit
            table = [NOWHERE if site is None else site[0] for site in strand.sites]
            for begin in range(start, stop - self.unit + 1, self.unit):
                self._publish_unit(strand, table, begin)
            strand.published = max(strand.published, stop)

    def _publish_unit(self, strand: Strand, table: Sequence[int], begin: int) -> None:
        """One unit; where its blocks were passed and are others' by now, it may be known or not."""
        tags, tenancy, unit = strand.tags, self.blocks.tenancy, self.unit
        stop = begin + unit
        indices = range(begin // self.block_size, (stop - 1) // self.block_size + 1)
        sites = [strand.sites[index] for index in indices]
        if not all(site and tenancy.get(site[0]) == site[1] for site in sites):
            self.publications.allow(tags[stop - 1], begin, self.now)
            return
        for block, index in self.publications.publish(tags, table, tenancy, begin, stop, self.now):
            self.blocks.publish(block, self.now, index)
            self.blocks.published[block].tag = tags[stop - 1]
            self._doubt_where_cut(strand, block, index)
        if strand.request.passed:
            self.publications.doubt(tags[:stop], begin, table)

    def confirm(self, live: Live) -> None:
        """What the request's next query sees of its hit is resident."""
        for strand in strands_of(live):
            strand.published = live.published
            low = strand.reach(live.hit)
            for stop in range(self.unit, self.still_cached(strand, live.hit) + 1, self.unit):
                entry = self.publications.entries.get(strand.tags[stop - 1])
                if stop > low and entry is not None:
                    entry.known = self.now

    def reserve_stamp(self, live: Live) -> None:
        """No accesses are noted: victims are not judged over groups."""

    def refused(self, tags: Sequence[int]) -> None:
        """No accesses are noted: victims are not judged over groups."""

    def leave(self, name: str, outcome: Outcome) -> None:
        """The request is gone from every group."""
        live, declared = self.live.pop(name), self.declaration
        if declared.publish is Publish.RELEASE and outcome in declared.publish_on:
            self.publish(live)
        for strand in strands_of(live):
            self.publications.withheld.update(strand.tags[strand.published :])
            for block in strand.held:
                self.blocks.drop(block, self.now)


def needed_twice(strands: Sequence[Strand]) -> Iterator[int]:
    """Blocks that a request needs at two places, of one group or of two."""
    seen: set[int] = set()
    for strand in strands:
        for block in strand.held:
            if block in seen:
                yield block
            seen.add(block)
