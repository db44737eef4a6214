"""The executable specification of pool, block tables, copy-on-write and prefix cache.

It never predicts *which* block a manager takes: it observes tables and hits, and knows what
every correct manager must do with them: which prefix must hit, which operation must succeed,
how many blocks an operation may need, and which victim a declared policy must choose.
Plain dicts and sets; the time is the number of the operation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvassay.harness.contract import (
    CacheKey,
    Capability,
    Declaration,
    Granularity,
    Outcome,
    Placement,
    Publish,
    Reclaim,
    Stamp,
)
from kvassay.reference.blocks import Blocks
from kvassay.reference.eviction import EvictionWatch
from kvassay.reference.hit_law import hit_law
from kvassay.reference.publications import Publications
from kvassay.reference.tags import TagBook


class Live:
    """One live request: its key so far, and how far slots, KV and publication reach."""

    __slots__ = (
        "committed",
        "cut",
        "drafts",
        "forked",
        "hit",
        "key",
        "length",
        "published",
        "table",
        "tags",
    )

    low = 0
    """First position that can still be read: beyond 0 in a layer group with a window alone."""
    first = 0
    """Logical block in which it lies."""

    def __init__(self, key: CacheKey, tags: list[int]) -> None:
        self.key = key
        self.tags = tags
        """Tags of all known tokens: the prompt (reserved or not) and what was appended."""
        self.table: list[int] = []
        """Block table as last observed."""
        self.length = 0
        """Tokens that have slots."""
        self.committed = 0
        """Leading tokens whose KV is written."""
        self.hit = 0
        self.drafts = 0
        """Trailing tokens that are unverified."""
        self.published = 0
        """Position from which publication goes on."""
        self.cut: int | None = None
        """Logical index of a block that a truncation left partly covered."""
        self.forked: int | None = None
        """Length at which a fork gave it a copy of a partly covered block."""

    def place_of(self, block: int) -> int | None:
        """Logical block for which the request needs this block, if it does."""
        return next((i for i in range(self.first, len(self.table)) if self.table[i] == block), None)

    @property
    def pending(self) -> bool:
        """Whether part of the prompt has no slots yet (between begin and the last reserve)."""
        return self.length < len(self.tags)


class CacheModel:
    """What an outsider knows about a cache manager of `num_blocks` x `block_size`."""

    tables = 1
    """Block tables of one request: one for each layer group."""

    def __init__(self, num_blocks: int, block_size: int, declaration: Declaration) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.declaration = declaration
        self.unit = declaration.hit_unit(block_size)
        self.caches = declaration.has(Capability.PREFIX_CACHE)
        self.reusable = declaration.reclaim is Reclaim.RELEASE
        self.book = TagBook()
        self.blocks = Blocks(num_blocks)
        self.publications = Publications(self.unit, block_size)
        self.watch = EvictionWatch(declaration, self.blocks)
        self.live: dict[str, Live] = {}
        self.epoch = 0
        self.now = 0

    # ------------------------------------------------------------------------------- questions

    def tags_of(self, key: CacheKey) -> list[int]:
        """Tags of a key in the current epoch."""
        return self.book.of_key(key, self.epoch)

    def enter(self, key: CacheKey) -> Live:
        """A request for this key, which holds nothing yet."""
        return Live(key, self.tags_of(key))

    def readers(self) -> Mapping[str, Live]:
        """Whoever reads through a block table, by name."""
        return self.live

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that cover `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def admission_need(self, num_tokens: int) -> int:
        """Blocks that the admission of so many tokens may take at most."""
        return self.blocks_for(num_tokens)

    def begin_need(self) -> int:
        """Blocks that a look-up alone may take at most: copies, where a hit ends inside a block."""
        return self.tables if self.caches and self.unit % self.block_size else 0

    def unheld(self) -> int:
        """Blocks that surely no live request holds."""
        return self.num_blocks - self.blocks.num_used

    def law(self, length: int, resident: int) -> int:
        """The declared hit law."""
        declared = self.declaration
        return hit_law(
            length, resident, unit=self.unit, reserve=declared.reserve, drop=declared.drop
        )

    def must_hit(self, live: Live) -> int:
        """Tokens that a look-up of this request's key must count at least.

        0 as well when the look-up's own operation may have to evict what it looks for.
        """
        if not self.caches:
            return 0
        tags = live.tags
        limit = len(tags) - self.declaration.reserve
        resident = self.publications.must_hit(tags, limit, self.blocks.tenancy)
        return self.law(len(tags), resident)

    def published(self, live: Live, hit: int) -> tuple[Sequence[int], int]:
        """Leading tokens of its key, at most `hit`, that were published, and its tags."""
        return live.tags, self.publications.published(live.tags, hit)

    def held_back(self, tags: Sequence[int], reach: int) -> bool:
        """Whether the unit behind `reach` has, or had, slots, and was not published from them."""
        stop = reach + self.unit
        if stop > len(tags):
            return False
        tag = tags[stop - 1]
        live = self.readers().values()
        return tag in self.publications.withheld or any(
            tag in other.tags[stop - 1 : other.length][:1] for other in live
        )

    def surely_free(self) -> int:
        """Blocks that can be handed out without evicting anything."""
        return self.blocks.surely_free(self.reusable)

    def pressed_by(self, need: int, admission: bool = False) -> bool:
        """Whether an operation that takes `need` blocks may make a correct manager evict."""
        declared = self.declaration
        extra = declared.lookahead + (declared.watermark if admission else 0)
        return need > 0 and need + extra > self.surely_free()

    def must_succeed(self, need: int, num_tokens: int, admission: bool = False) -> bool:
        """Whether no correct manager may refuse an operation that takes `need` blocks.

        `num_tokens` is the request's length afterwards.
        """
        declared = self.declaration
        if not self.reusable:
            return False
        if declared.placement is not Placement.ANY and self.live:
            return False  # there may be room, but not in one piece
        if declared.max_tokens is not None and num_tokens > declared.max_tokens:
            return False
        return need <= self.unheld() - (declared.watermark if admission else 0)

    def most_evicted(self, asked: int) -> int:
        """Blocks that evict(`asked`) may free at most."""
        granularity = self.declaration.granularity
        if granularity in (Granularity.BLOCK, Granularity.PAGE):
            return asked
        if granularity is Granularity.ALL:
            return self.num_blocks
        # The last leaf may free more than is wanted, but is no longer than the longest prefix.
        return asked - 1 + max((a.depth + 1 for a in self.blocks.published.values()), default=1)

    def surely_evictable(self) -> int:
        """Idle cached blocks that every correct manager can free on demand.

        Duplicates may be cached or not, what lies above a live request may be locked, and what
        a refusal cost is a matter of its own.
        """
        publications, blocks = self.publications, self.blocks
        above_live = {tag for live in self.readers().values() for tag in live.tags}
        found: set[int] = set()
        for tag, entry in publications.entries.items():
            if len(entry.sites) != 1 or tag in above_live or entry.known < publications.refused:
                continue
            ((block, _),) = entry.sites
            idle = block not in blocks.users
            if idle and publications.sure(entry, blocks.tenancy) and self.surely_found(tag):
                found.add(block)
        return len(found)

    def surely_found(self, tag: int) -> bool:
        """Whether no correct manager may have given up what is behind a sure entry."""
        return True

    def surely_cached(self, block: int) -> bool:
        """Whether the block was certainly cached before it was found to be handed out again.

        A duplicate may be plain free storage, and a truncated request's block withdrawn.
        """
        entry = self.publications.entries.get(self.blocks.published[block].tag)
        return entry is not None and len(entry.sites) == 1 and not entry.withdrawable

    def admissible(self) -> bool:
        """Whether the declared number of live requests leaves a place."""
        limit = self.declaration.max_requests
        return limit is None or len(self.live) < limit

    def append_need(self, live: Live, count: int) -> int:
        """Blocks that `count` more slots may take, a copy of the shared last block included."""
        growth = self.blocks_for(live.length + count) - self.blocks_for(live.length)
        return growth + self._may_copy_tail(live)

    def _may_copy_tail(self, live: Live) -> int:
        if live.length % self.block_size == 0 or not live.table:
            return 0
        tail = live.table[(live.length - 1) // self.block_size]
        return int(self.blocks.users[tail] > 1 or tail in self.blocks.published)

    # ----------------------------------------------------------------------------- observations

    def extend(self, live: Live, tokens: Sequence[int]) -> None:
        """The request's key goes on with `tokens`, which have slots."""
        live.tags += self.book.chain(live.tags[-1], tokens)
        live.length += len(tokens)

    def take_table(self, live: Live, table: list[int], fresh: Sequence[int]) -> None:
        """A request's table is now `table`, of which the blocks `fresh` were handed out."""
        blocks, now = self.blocks, self.now
        old = live.table
        for block in fresh:
            blocks.hand_out(block, now)
        for block in table:
            blocks.hold(block)
        left = [block for block in old if block not in table]
        for block in old:
            blocks.drop(block, now)
        if left and Stamp.RELEASE in self.declaration.stamps:
            blocks.stamp(left, now)
        for index, block in enumerate(old[: len(table)]):
            if table[index] != block:
                live.published = min(live.published, index * self.block_size)
                break
        live.table = table

    def publish(self, live: Live) -> None:
        """What is written and verified becomes visible to look-ups."""
        if not self.caches:
            return
        stop = min(live.committed, live.length - live.drafts)
        if stop <= live.published:
            return
        sites = self.publications.publish(
            live.tags, live.table, self.blocks.tenancy, live.published, stop, self.now
        )
        start = live.published
        size, stop = self.block_size, stop - stop % self.unit
        for block, index in sites:
            self.blocks.publish(block, self.now, index)
            self.blocks.published[block].tag = live.tags[min(stop, (index + 1) * size) - 1]
            self.watch.link(block, live.tags, index * self.block_size, self.block_size)
            self._doubt_where_cut(live, block, index)
        live.published = stop
        self._stamp(Stamp.COMMIT, live, stop)
        if Stamp.COMMIT in self.declaration.stamps:
            self._may_access(live.tags[:stop], start)

    def _doubt_where_cut(self, live: Live, block: int, index: int) -> None:
        """A sharer that was cut back inside a block may take back what is published from it now."""
        stop = (index + 1) * self.block_size
        for other in self.readers().values():
            if (
                other is not live
                and other.length < stop
                and other.table[index : index + 1] == [block]
            ):
                self.publications.doubt(live.tags, other.length, (block,))

    def still_cached(self, live: Live, hit: int) -> int:
        """Leading tokens of a hit that are cached for sure: what was copied may be gone since."""
        inside = hit % self.block_size
        copied = inside and self.blocks.since.get(live.table[hit // self.block_size]) == self.now
        return hit - inside if copied else hit

    def confirm(self, live: Live) -> None:
        """The request's hit is resident, and an access."""
        self.publications.confirm(live.tags, self.still_cached(live, live.hit), self.now)
        self._stamp(Stamp.HIT, live, live.hit)

    def reserve_stamp(self, live: Live) -> None:
        """Slots were reserved, which some policies count as an access of the prefix."""
        self._stamp(Stamp.RESERVE, live, live.length)

    def _stamp(self, kind: Stamp, live: Live, stop: int) -> None:
        if kind in self.declaration.stamps:
            path = live.table[: self.blocks_for(stop)]
            self.blocks.stamp(path, self.now)
            self.watch.may_renew(path, self.now)

    def refused(self, tags: Sequence[int]) -> None:
        """An admission was refused, after it had looked its key up."""
        if Stamp.LOOKUP in self.declaration.stamps:
            self._may_access(tags, 0)

    def _may_access(self, tags: Sequence[int], start: int) -> None:
        """Every block that may answer for this key from `start` on may have been accessed."""
        path: list[int] = []
        unit = self.unit
        for stop in range(start - start % unit + unit, len(tags) + 1, unit):
            entry = self.publications.entries.get(tags[stop - 1])
            if entry is None:
                break
            path += [block for block, _ in entry.sites]
        self.blocks.may_stamp(path, self.now)
        self.watch.may_renew(path, self.now)

    def truncate(self, live: Live, num_tokens: int) -> None:
        """The request's key ends after `num_tokens`; what was published beyond may go or stay."""
        self.publications.doubt(live.tags, num_tokens, live.table)
        self.publications.withheld.update(live.tags[max(num_tokens, live.published) :])
        del live.tags[num_tokens:]
        live.length = num_tokens
        live.committed = min(live.committed, num_tokens)
        live.published = min(live.published, num_tokens)
        live.hit = min(live.hit, num_tokens)
        partly = num_tokens % self.block_size != 0
        live.cut = num_tokens // self.block_size if partly else None

    def leave(self, name: str, outcome: Outcome) -> None:
        """The request is gone; with publish=release its KV is visible from now on."""
        live = self.live.pop(name)
        declared = self.declaration
        if declared.publish is Publish.RELEASE and outcome in declared.publish_on:
            self.publish(live)
        self.publications.withheld.update(live.tags[live.published :])
        if Stamp.RELEASE in declared.stamps:
            self.blocks.stamp(live.table, self.now)
            # A tree that learns at release renews its own copy of what was computed twice.
            self._may_access(live.tags[: live.committed], 0)
        for block in live.table:
            self.blocks.drop(block, self.now)

    def press(self) -> None:
        """This operation may have made a correct manager evict."""
        self.publications.pressure = self.now

    def reset(self) -> None:
        """Nothing is cached any more; keys belong to a new epoch."""
        self.epoch += 1
        self.blocks.forget()
        self.watch.forget()
        self.press()
