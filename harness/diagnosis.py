"""From a wrong slot, block or number to the invariant that it breaks.

The rules are those of the law ("which invariant convicts"). A wrong tag in a hit: never written
since the slot was handed out, P4; its block handed out again since publication, P5; unchanged
since but another key's, P2; overwritten by its owner, P4. In a request's own table: a sharer's
later tag, C1; a copy that lacks the source's content, C2; a stranger's tag, A2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from kvassay.harness.contract import TORN
from kvassay.harness.device import FRESH, NO_KV, ShadowDevice
from kvassay.harness.stored_device import StoredDevice
from kvassay.harness.violation import Anomaly, Violation
from kvassay.reference.eviction import Tenant, WrongVictim
from kvassay.reference.model import CacheModel, Live
from kvassay.reference.publications import Entry
from kvassay.reference.tags import Element, Namespace

NOT_ITS_OWN = (Anomaly.HOLE, Anomaly.UNWRITTEN, Anomaly.WRONG_KEY)
"""What a block shows that was never published for the key."""


class Diagnosis:
    """Names what went wrong; every method raises a `Violation` or finds nothing."""

    def __init__(self, model: CacheModel, device: ShadowDevice) -> None:
        self.model = model
        self.device = device
        self.splits: set[int] = set()
        """Tags at which a later key left the path of an earlier one."""

    # ------------------------------------------------------------------------------ a wrong hit

    def wrong_hit(
        self, name: str, live: Live, position: int, *, elsewhere: bool = False
    ) -> NoReturn:
        """A token counted as a hit is not what a legal schedule would have written.

        `elsewhere`: another layer group has all that was counted. Then a block that nobody
        published is no wrong answer of the look-up: this group was not asked.
        """
        model = self.model
        block = live.table[position // model.block_size]
        got = self.device.read(live.table, position)
        invariant, anomaly = self._judge_hit(live, position, block, got)
        if elsewhere and anomaly in NOT_ITS_OWN and block not in model.blocks.published:
            invariant, anomaly = "P1", Anomaly.PHANTOM_HIT
        raise Violation(
            invariant,
            anomaly,
            f"position {position} of {name} (hit of {live.hit} tokens) to hold "
            f"{self.describe(live.tags[position])}",
            f"block {block} holds {self.describe(got)}",
        )

    def _judge_hit(
        self, live: Live, position: int, block: int, got: int | None
    ) -> tuple[str, Anomaly]:
        blocks = self.model.blocks
        if self._ought_to_be_copied(live, position, block):
            return "C2", Anomaly.LOST_COPY
        if block not in blocks.tenancy:
            return "P1", Anomaly.PHANTOM_HIT
        if got in NO_KV and blocks.since[block] == self.model.now:
            return "C2", Anomaly.LOST_COPY
        if (got is None or got in NO_KV) and self._being_written(live, position, block):
            return "P4", Anomaly.UNWRITTEN
        if got is not None and got not in NO_KV:
            if self._another_epoch(got, live.tags[position]):
                return "P5", Anomaly.STALE_HIT
            if self._another_namespace(got, live.tags[position]):
                return "P2", Anomaly.WRONG_KEY
        entry = self._entry(live.tags, position)
        sites = entry.sites | entry.past if entry else set()
        tenancies = {tenancy for site, tenancy in sites if site == block}
        if blocks.tenancy[block] in tenancies:
            return "P4", Anomaly.OVERWRITTEN
        if tenancies:
            return "P5", Anomaly.STALE_HIT
        if got in live.tags[position:] or (entry is not None and self._right_later(live, position)):
            return "P3", Anomaly.HOLE
        if got is None or got in NO_KV:
            return "P4", Anomaly.UNWRITTEN
        return "P2", Anomaly.WRONG_KEY

    def _ought_to_be_copied(self, live: Live, position: int, block: int) -> bool:
        """Whether a hit ends inside a block that was nobody's, and an engine copies by itself."""
        blocks, size = self.model.blocks, self.model.block_size
        nobodys = blocks.users.get(block, 0) <= 1 and block not in blocks.published
        ends_inside = live.hit % size > 0 and position // size == live.hit // size
        return isinstance(self.device, StoredDevice) and nobodys and ends_inside

    def _being_written(self, live: Live, position: int, block: int) -> bool:
        """Whether a live request has this very slot for this very token, but no KV in it yet."""
        index = position // self.model.block_size
        return any(
            other is not live
            and other.first <= index < len(other.table)
            and other.table[index] == block
            and other.tags[: position + 1] == live.tags[: position + 1]
            for other in self.model.readers().values()
        )

    def _entry(self, tags: Sequence[int], position: int) -> Entry | None:
        unit = self.model.unit
        stop = position - position % unit + unit
        return self.model.publications.entries.get(tags[stop - 1]) if stop <= len(tags) else None

    def _right_later(self, live: Live, position: int) -> bool:
        """Whether blocks of the hit behind the wrong one are right: the match went on."""
        size = self.model.block_size
        start = (position // size + 1) * size
        return any(
            self.device.read(live.table, later) == live.tags[later]
            for later in range(start, live.hit)
        )

    def _another_epoch(self, got: int, wanted: int) -> bool:
        """The same key, but from before a reset."""
        theirs, their_elements = self.model.book.path(got)
        ours, our_elements = self.model.book.path(wanted)
        same_key = theirs._replace(epoch=ours.epoch) == ours and their_elements == our_elements
        return same_key and theirs.epoch != ours.epoch

    def _another_namespace(self, got: int, wanted: int) -> bool:
        """The same tokens, but another salt, adapter or content."""
        theirs, their_elements = self.model.book.path(got)
        ours, our_elements = self.model.book.path(wanted)
        return (theirs, their_elements) != (ours, our_elements) and plain(their_elements) == plain(
            our_elements
        )

    # ----------------------------------------------------------------------- a wrong slot or block

    def wrong_slot(self, name: str, live: Live, position: int) -> NoReturn:
        """A readable slot of a live request changed under it."""
        model = self.model
        index = position // model.block_size
        block = live.table[index]
        got = self.device.read(live.table, position)
        writer = self._writer(live, block, position, got)
        overwritten = isinstance(self.device, StoredDevice) and self.device.overwritten(
            live.table, position
        )
        if (got is None or got in NO_KV) and not overwritten:
            invariant, anomaly = "C2", Anomaly.LOST_COPY
        elif writer is not None and self._sharers(live, model.readers()[writer], index):
            invariant, anomaly = "C1", Anomaly.SHARER_WRITE
        elif writer is None and model.blocks.since.get(block) == model.now:
            invariant, anomaly = "C2", Anomaly.LOST_COPY
        else:
            invariant, anomaly = "A2", Anomaly.FOREIGN_WRITE
        lost = overwritten and got == FRESH
        held = "what nobody wrote into it, over what was" if lost else self.describe(got)
        by = f", written by {writer}" if writer else ""
        raise Violation(
            invariant,
            anomaly,
            f"position {position} of {name} to hold {self.describe(live.tags[position])}",
            f"block {block} holds {held}{by}",
        )

    def _writer(self, live: Live, block: int, position: int, got: int | None) -> str | None:
        offset = position % self.model.block_size
        for name, other in self.model.readers().items():
            place = other.place_of(block)
            if other is live or place is None:
                continue
            there = place * self.model.block_size + offset
            if there < len(other.tags) and other.tags[there] == got:
                return name
        return None

    def _sharers(self, one: Live, other: Live, index: int) -> bool:
        """Whether both came to this block by sharing a prefix, not by a double hand-out."""
        low = index * self.model.block_size
        same_place = len(other.table) > index and other.table[index] == one.table[index]
        return (same_place and one.tags[: low + 1] == other.tags[: low + 1]) or (
            same_place and low > 0 and one.tags[low - 1] == other.tags[low - 1]
        )

    def covered(self, name: str, block: int, shared: Sequence[int]) -> NoReturn:
        """A block was handed out as new although somebody covers it."""
        model = self.model
        known = {who: live.place_of(block) for who, live in model.readers().items()}
        places = {who: place for who, place in known.items() if place is not None}
        holders = {who: model.readers()[who] for who in places}
        if any(live.pending and who != name for who, live in holders.items()):
            invariant, anomaly = "P7", Anomaly.PIN_IGNORED
        elif block not in model.blocks.published and any(
            live.cut == places[who] for who, live in holders.items()
        ):
            invariant, anomaly = "A6", Anomaly.PARTIAL_PAGE
        elif block in model.blocks.shared:
            invariant, anomaly = "A3", Anomaly.PREMATURE_REUSE
        else:
            invariant, anomaly = "A2", Anomaly.DOUBLE_HAND_OUT
        owners = (
            ", ".join(f"{who} (logical block {places[who]})" for who in holders)
            or f"the hit of {name} itself"
        )
        raise Violation(
            invariant,
            anomaly,
            f"new blocks for {name} that nothing covers",
            f"block {block}, which belongs to {owners}",
        )

    def repeated_block(self, name: str, table: Sequence[int]) -> NoReturn:
        """One block stands at two places of a table."""
        twice = next(block for block in table if list(table).count(block) > 1)
        raise Violation(
            "A2",
            Anomaly.DOUBLE_HAND_OUT,
            f"distinct blocks in the table of {name}",
            f"block {twice} twice in {list(table)}",
        )

    # -------------------------------------------------------------------------------- eviction

    def wrong_victim(self, wrong: WrongVictim | None) -> None:
        """P10: the declared policy would have chosen another block."""
        if wrong is None:
            return
        declared = self.model.declaration
        raise Violation(
            "P10",
            Anomaly.WRONG_VICTIM,
            f"block {wrong.stayed} evicted before block {wrong.gone} "
            f"(order={declared.order}, tie={declared.tie})",
            f"block {wrong.gone} evicted {self.model.now - wrong.time} operations ago, "
            f"block {wrong.stayed} still cached",
        )

    def over_evicted(self, tags: Sequence[int], hit: int) -> None:
        """P9, P10: after `evict`, what a look-up misses was freed, and was no more than reported.

        Only the first missing block is sure to be gone; those behind it may be out of reach.
        """
        model = self.model
        moments = model.watch.moments
        moment = moments[-1] if moments else None
        if moment is None or moment.allowance is None:
            return
        if moment.time != model.publications.pressure:
            return
        missing = self._missing(tags, hit, moment.time, moment.pressure_before)
        missing = [tenant for tenant in missing if tenant in moment.idle]
        if not missing:
            return
        self.wrong_victim(model.watch.went(missing[0][0]))
        moment.missing.add(missing[0])
        if len(moment.missing) > moment.allowance:
            raise Violation(
                "P9",
                Anomaly.EVICT_AMOUNT,
                f"at most the {moment.allowance} blocks missing that evict reported as freed",
                f"blocks {sorted(block for block, _ in moment.missing)} are missing",
            )

    def _missing(self, tags: Sequence[int], hit: int, time: int, before: int) -> list[Tenant]:
        """Sites behind the hit that were surely resident before the eviction at `time`."""
        model, publications = self.model, self.model.publications
        unit = model.unit
        found: list[Tenant] = []
        limit = len(tags) - model.declaration.reserve
        first = hit + model.declaration.drop * unit + unit
        for stop in range(first, limit + 1, unit):
            entry = publications.entries.get(tags[stop - 1])
            if entry is None or not before <= entry.known < time or len(entry.sites) != 1:
                break
            if entry.withdrawable:
                break
            if not publications.intact(entry, model.blocks.tenancy):
                break
            found += entry.sites
        return list(dict.fromkeys(found))

    def missed_hit(self, tags: Sequence[int], hit: int, must: int) -> NoReturn:
        """P12; P6 where a tree loses a prefix at a split, A4 where a refusal may have cost it."""
        publications = self.model.publications
        missing = self._entry(tags, hit)
        if missing is not None and missing.known < publications.refused:
            invariant, anomaly = "A4", Anomaly.REFUSAL_DAMAGE
        elif isinstance(self.model.declaration.unit, int) and hit and tags[hit - 1] in self.splits:
            invariant, anomaly = "P6", Anomaly.SPLIT
        else:
            invariant, anomaly = "P12", Anomaly.MISSED_HIT
        raise Violation(
            invariant,
            anomaly,
            f"at least {must} of {len(tags)} tokens hit: all of them were published, and nothing "
            "since could have evicted them",
            f"{hit}",
        )

    # ---------------------------------------------------------------------------------- in words

    def describe(self, tag: int | None) -> str:
        """A tag in words."""
        if tag is None:
            return "nothing (no such block)"
        if tag == FRESH:
            return "nothing written since it was handed out"
        if tag == TORN:
            return "different things in its parts (keys, values, layers)"
        return in_words(*self.model.book.path(tag))


def in_words(namespace: Namespace, elements: Sequence[Element]) -> str:
    """What a tag names, for a message."""
    parts = [f"token {elements[-1]} after {_short(elements[:-1])}"]
    parts += [f"salt {namespace.salt!r}"] if namespace.salt is not None else []
    parts += [f"adapter {namespace.adapter!r}"] if namespace.adapter is not None else []
    parts += [f"epoch {namespace.epoch}"] if namespace.epoch else []
    parts += [f"layer group {namespace.group}"] if namespace.group else []
    return ", ".join(parts)


def plain(elements: Sequence[Element]) -> list[int]:
    """The tokens of a prefix, without the contents that they stand for."""
    return [element if isinstance(element, int) else element[0] for element in elements]


def _short(elements: Sequence[object], most: int = 8) -> str:
    if len(elements) <= most:
        return str(list(elements))
    return f"[... {', '.join(str(element) for element in elements[-most:])}]"
