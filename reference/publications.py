"""What was published where: the set of block sets behind every key prefix.

One prefix may stand in several blocks (duplicates), so it maps to a set of *sites*, each a
block in one tenancy. A look-up **must** hit a prefix when every site ever published for it is
untouched and nothing happened since that could have made a correct manager evict. It **may**
hit what was published at some time and still holds the right tags; those are the device's business.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

Site = tuple[int, int]
"""A block and its tenancy."""


@dataclass(slots=True)
class Entry:
    """One hit unit of a key prefix, named by the tag of its last token."""

    start: int
    """Position of its first token."""
    known: int
    """Last operation at which it was surely resident."""
    sites: set[Site] = field(default_factory=set)
    """Where it was published since it was last computed from nothing."""
    past: set[Site] = field(default_factory=set)
    """Sites of before, all of them handed out again."""
    withdrawable: bool = False
    """A truncation cut into one of its sites: the manager may withdraw it at any time."""


class Publications:
    """Entries by tag, in units of `unit` tokens over blocks of `block_size`."""

    def __init__(self, unit: int, block_size: int) -> None:
        self.unit = unit
        self.block_size = block_size
        self.entries: dict[int, Entry] = {}
        self.pressure = 0
        """Last operation in which a correct manager may have had to evict."""
        self.refused = 0
        """Last refusal that had no right to evict."""
        self.withheld: set[int] = set()
        """Tags of tokens that a request gave up, or left with, before they were published."""
        self.duplicates = 0
        """Units that were published from a further block."""

    def publish(
        self,
        tags: Sequence[int],
        table: Sequence[int],
        tenancy: Mapping[int, int],
        start: int,
        stop: int,
        now: int,
    ) -> Iterator[tuple[int, int]]:
        """Enter the whole units of [start, stop); yields (block, logical index) of each site."""
        unit, size, entries = self.unit, self.block_size, self.entries
        first = start - start % unit
        for begin in range(first, stop - unit + 1, unit):
            tag = tags[begin + unit - 1]
            entry = entries.get(tag)
            if entry is None:
                entry = entries[tag] = Entry(begin, now)
            self._retire(entry, tenancy)
            entry.known = now
            for index in range(begin // size, (begin + unit - 1) // size + 1):
                block = table[index]
                site = (block, tenancy[block])
                if entry.sites and site not in entry.sites:
                    self.duplicates += 1
                entry.sites.add(site)
                yield block, index

    def allow(self, tag: int, start: int, now: int) -> None:
        """A unit may have been published, from blocks that nothing is known of any more."""
        if tag not in self.entries:
            self.entries[tag] = Entry(start, now, withdrawable=True)

    def _retire(self, entry: Entry, tenancy: Mapping[int, int]) -> None:
        """Sites that were handed out again before this publication say nothing about it.

        One that is handed out later may be the only one the manager kept: it stays in the set.
        """
        stale = {site for site in entry.sites if tenancy.get(site[0]) != site[1]}
        if stale:
            entry.sites -= stale
            entry.past |= stale
        if not entry.sites:
            entry.withdrawable = False

    def sure(self, entry: Entry, tenancy: Mapping[int, int]) -> bool:
        """Whether every correct manager still has it."""
        return (
            entry.known >= self.pressure and not entry.withdrawable and self.intact(entry, tenancy)
        )

    def intact(self, entry: Entry, tenancy: Mapping[int, int]) -> bool:
        """Whether no site of the entry was handed out again."""
        return all(tenancy.get(block) == count for block, count in entry.sites)

    def must_hit(self, tags: Sequence[int], limit: int, tenancy: Mapping[int, int]) -> int:
        """Leading tokens, at most `limit`, that are resident in any correct manager."""
        unit, entries, reach = self.unit, self.entries, 0
        for stop in range(unit, limit + 1, unit):
            entry = entries.get(tags[stop - 1])
            if entry is None or not self.sure(entry, tenancy):
                break
            reach = stop
        return reach

    def published(self, tags: Sequence[int], limit: int) -> int:
        """Leading tokens, at most `limit`, that were published at some time."""
        unit, entries, reach = self.unit, self.entries, 0
        for stop in range(unit, limit + 1, unit):
            if tags[stop - 1] not in entries:
                break
            reach = stop
        return reach

    def confirm(self, tags: Sequence[int], hit: int, now: int) -> None:
        """A look-up counted the first `hit` tokens: they are resident at this moment."""
        unit, entries = self.unit, self.entries
        for stop in range(unit, hit + 1, unit):
            entry = entries.get(tags[stop - 1])
            if entry is not None:
                entry.known = now

    def doubt(self, tags: Sequence[int], start: int, held: Collection[int]) -> None:
        """From `start` on, what stands in the blocks `held` may be withdrawn (truncation)."""
        unit, entries = self.unit, self.entries
        for stop in range(start - start % unit + unit, len(tags) + 1, unit):
            entry = entries.get(tags[stop - 1])
            if entry is not None and any(block in held for block, _ in entry.sites):
                entry.withdrawable = True
