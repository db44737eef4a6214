"""The pool as an outsider sees it: who covers a block, and what was published from it.

A block's *tenancy* counts how often it was handed out as new. Whatever is said about its
content is said about one tenancy: after the next hand-out the old content is gone, whatever
the memory still holds.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvassay.reference.policy import Access


class Blocks:
    """Holders, tenancies and publications of the blocks of one pool."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.users: dict[int, int] = {}
        """Block -> number of live tables that hold it."""
        self.tenancy: dict[int, int] = {}
        """Block -> number of hand-outs so far; absent if never handed out."""
        self.published: dict[int, Access] = {}
        """Blocks with something published in their current tenancy."""
        self.idle_since: dict[int, int] = {}
        self.shared: set[int] = set()
        """Blocks that more than one request held in this tenancy."""
        self.since: dict[int, int] = {}
        """Block -> operation of its last hand-out."""
        self.touched: set[int] = set()
        """Blocks handed out since the last reset."""
        self.evicted = 0
        """Idle published blocks that `evict` reported as freed and that were not reused yet."""

    # ------------------------------------------------------------------------------- questions

    @property
    def num_used(self) -> int:
        """Size of the union of the live tables."""
        return len(self.users)

    def num_idle_published(self) -> int:
        """Idle blocks that may still be cached."""
        return sum(1 for block in self.published if block not in self.users)

    def surely_free(self, reusable: bool) -> int:
        """Blocks that a correct manager can hand out without evicting anything.

        Without reuse before a reset (`reusable` False) a block counts only once.
        """
        if not reusable:
            return self.num_blocks - len(self.touched)
        cached = max(0, self.num_idle_published() - self.evicted)
        return self.num_blocks - len(self.users) - cached

    # --------------------------------------------------------------------------------- changes

    def hand_out(self, block: int, now: int) -> None:
        """A new tenancy begins: nothing said about the content holds any longer."""
        self.tenancy[block] = self.tenancy.get(block, 0) + 1
        self.since[block] = now
        if self.published.pop(block, None) is not None:
            self.evicted = max(0, self.evicted - 1)
        self.shared.discard(block)
        self.touched.add(block)

    def hold(self, block: int) -> None:
        """One more live table holds the block."""
        count = self.users.get(block, 0) + 1
        self.users[block] = count
        if count > 1:
            self.shared.add(block)

    def drop(self, block: int, now: int) -> None:
        """One live table fewer holds the block."""
        count = self.users[block] - 1
        if count:
            self.users[block] = count
        else:
            del self.users[block]
            self.idle_since[block] = now

    def publish(self, block: int, now: int, depth: int) -> None:
        """Something in the block became visible to look-ups."""
        if block not in self.published:
            self.published[block] = Access(born=now, stamp=now, latest=now, depth=depth)

    def stamp(self, blocks: Iterable[int], now: int) -> None:
        """An access of the replacement policy."""
        for block in blocks:
            access = self.published.get(block)
            if access is not None:
                access.stamp = access.latest = now
                access.count += 1

    def may_stamp(self, blocks: Iterable[int], now: int) -> None:
        """What may have been an access, for all that an outsider can see."""
        for block in blocks:
            access = self.published.get(block)
            if access is not None:
                access.latest = now
                access.doubtful += 1

    def forget(self) -> None:
        """A reset: nothing is published any more and every block can be handed out afresh."""
        self.published.clear()
        self.touched.clear()
        self.evicted = 0
