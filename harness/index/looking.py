"""After every operation: the walk, if there is one, is compared with the model, and so are counts.

A node of a walk is known by its values, each of which the harness gave out once: so a walk needs
to say nothing of salts, adapters or contents to be checked against them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NoReturn

from kvassay.harness.calling import at_most
from kvassay.harness.contract import IndexCounters, Node
from kvassay.harness.evidence import Seen
from kvassay.harness.index.diagnosis import OF_FATE, Telling
from kvassay.harness.index.scenario import Evict, Operation
from kvassay.harness.violation import Anomaly
from kvassay.reference.index_model import Fate

MOST_NODES = 10_000
"""Nodes without values, such as roots, that a walk may have."""


class Looking(Telling):
    """The part of the checker that looks at everything (A4, P1, P2, P5-P9, P12)."""

    operation: Operation | None = None
    _refused = False
    """Whether this operation was refused."""

    def _look(self) -> None:
        nodes = self._check_walk() if self._walks else None
        if self._counters:
            counters = self._call_plain(self.tree.counters)
            self._check_counters(counters)
            if nodes is not None:
                self._check_sums(nodes, counters)

    # --------------------------------------------------------------------------------- the walk

    def _check_walk(self) -> list[Node]:
        most = MOST_NODES + len(self.model.values)
        nodes: list[Node] = at_most(self._call_plain(self.tree.walk), most)
        if len(nodes) > most:
            self._unsound("an end", f"{len(nodes)} nodes or more, {nodes[-1]} the last of them")
        by_id = {node.id: node for node in nodes}
        if len(by_id) < len(nodes):
            self._unsound("ids that differ", f"{[node.id for node in nodes]}")
        seen: set[int] = set()
        for node in nodes:
            path = self._check_node(node, by_id)
            if not seen.isdisjoint(path):
                self._unsound("each value in one node", f"one of {list(node.values)} twice")
            seen.update(path)
            if self._locks:
                self._check_locks(node, path)
        if len(seen) < len(self.model.values):
            self._hidden(next(place for place in self.model.values if place not in seen))
        self.evidence[Seen.WALKED] += 1
        return nodes

    def _unsound(self, expected: str, got: str) -> NoReturn:
        self._fail("P8", Anomaly.ACCOUNTING, f"a walk with {expected}", got)

    def _check_node(self, node: Node, by_id: Mapping[Hashable, Node]) -> list[int]:
        """Places of a node, whose tokens and values must be those of consecutive positions."""
        model = self.model
        if len(node.tokens) != len(node.values):
            self._unsound("as many tokens as values", f"{node}")
        above = self._end_above(node, by_id)
        places: list[int] = []
        for token, value in zip(node.tokens, node.values, strict=True):
            offer = model.offers.get(value)
            if offer is None or offer.fate is not Fate.STORED:
                self._stray(node, value)
            place = offer.place
            follows = model.above[place] == above if above is not None else self._is_first(place)
            if not follows or model.tokens[place] != token:
                self._misplaced(node, token, place)
            places.append(place)
            above = place
        return places

    def _end_above(self, node: Node, by_id: Mapping[Hashable, Node]) -> int | None:
        """Place of the last position above a node; None at the start of a prompt."""
        for _ in by_id:
            if node.parent is None:
                return None
            if node.parent not in by_id:
                self._unsound("parents that are nodes", f"{node}")
            node = by_id[node.parent]
            if node.values:
                offer = self.model.offers.get(node.values[-1])
                return -1 if offer is None else offer.place
        return None

    def _is_first(self, place: int) -> bool:
        return self.model.accesses[place].depth == 0

    def _stray(self, node: Node, value: int) -> NoReturn:
        """A node holds a value that the index does not own."""
        offer = self.model.offers.get(value)
        if offer is None:
            invariant, anomaly, what = "P5", Anomaly.PHANTOM_HIT, "was never inserted"
        elif self._refused:
            invariant, anomaly, what = "A4", Anomaly.REFUSAL_DAMAGE, offer.fate.value
        elif isinstance(self.operation, Evict) and offer.fate is Fate.FREED:
            invariant, anomaly, what = "P9", Anomaly.EVICT_AMOUNT, offer.fate.value
        else:
            invariant, anomaly = OF_FATE[offer.fate]
            what = offer.fate.value
        where = f"tokens {list(node.tokens)} with values {list(node.values)}"
        self._fail(invariant, anomaly, f"no value {value} in the walk: {what}", where)

    def _misplaced(self, node: Node, token: int, place: int) -> NoReturn:
        expected = f"value {self.model.values[place]} at {self._describe(place)}"
        got = f"at token {token} of a node with tokens {list(node.tokens)}"
        self._fail("P2", Anomaly.WRONG_KEY, expected, f"{got}, below {node.parent!r}")

    def _hidden(self, place: int) -> NoReturn:
        """Something is stored, and the walk does not have it."""
        model = self.model
        invariant, anomaly = "P12", Anomaly.MISSED_HIT
        if self._refused:
            invariant, anomaly = "A4", Anomaly.REFUSAL_DAMAGE
        elif isinstance(self.operation, Evict):
            invariant, anomaly = "P9", Anomaly.EVICT_AMOUNT
        elif model.above[place] in model.splits or place in model.splits:
            invariant, anomaly = "P6", Anomaly.SPLIT
        expected = f"value {model.values[place]} at {self._describe(place)} in the walk"
        self._fail(invariant, anomaly, f"{expected}: evict has not reported it", "no such value")

    # ------------------------------------------------------------------------------------- locks

    def _check_locks(self, node: Node, path: Sequence[int]) -> None:
        """P7: a node on a locked path says so, and no other does."""
        covered = any(place in self.model.covers for place in path)
        if node.locks < 0:
            self._fail("P8", Anomaly.ACCOUNTING, "a number of locks >= 0", f"{node}")
        reached = covered or any(place in self.model.beyond for place in path)
        if not path or (node.locks and reached) or (not node.locks and not covered):
            return
        where = f"tokens {list(node.tokens)} with values {list(node.values)}"
        if not covered:
            expected = f"no lock on {where}: none is held there"
            self._fail("P7", Anomaly.LOCK_LEFT, expected, f"{node.locks}")
        holders = ", ".join(self._holders(path))
        self._fail("P7", Anomaly.LOCK_LOST, f"a lock on {where}, held by {holders}", "0")

    def _holders(self, path: Sequence[int]) -> list[str]:
        places = set(path)
        return [name for name in self.locked() if not places.isdisjoint(self.readers[name].places)]

    # ------------------------------------------------------------------------------------ counts

    def _check_counters(self, counters: IndexCounters) -> None:
        """P8: counts are what is stored, and what of it no lock covers."""
        model = self.model
        evictable, protected, total = counters.evictable, counters.protected, counters.total
        if min(evictable, protected, total) < 0 or evictable + protected != total:
            expected = "evictable + protected = total, each >= 0"
            self._fail("P8", Anomaly.ACCOUNTING, expected, f"{counters}")
        if total != len(model.values):
            expected = f"{len(model.values)} tokens in total"
            self._fail("P8", Anomaly.ACCOUNTING, expected, f"{counters}")
        least, most = model.surely_evictable(), model.evictable()
        if not least <= evictable <= most:
            expected = f"{most} tokens evictable: {len(model.covers)} are locked"
            self._fail("P8", Anomaly.ACCOUNTING, expected, f"{counters}")
        self.evidence[Seen.COUNTED] += 1

    def _check_sums(self, nodes: Sequence[Node], counters: IndexCounters) -> None:
        """P8: counts are the sums over the walk."""
        if not self._locks:
            return
        protected = sum(len(node.values) for node in nodes if node.locks)
        if protected != counters.protected:
            expected = f"{protected} tokens protected, the sum over the walk"
            self._fail("P8", Anomaly.ACCOUNTING, expected, f"{counters}")
