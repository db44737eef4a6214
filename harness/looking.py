"""After every operation: every live request is read again, and counts are compared."""

from __future__ import annotations

from collections.abc import Mapping

from kvassay.harness.calling import at_most
from kvassay.harness.contract import Counters
from kvassay.harness.evidence import Seen
from kvassay.harness.state import CheckerState
from kvassay.harness.violation import Anomaly
from kvassay.reference.model import Live


class Looking(CheckerState):
    """The part of the checker that looks at everything (A1, A2, A7, C1, C2, E2)."""

    def _look(self) -> None:
        manager = self.manager
        for name, live in self.model.live.items():
            table = at_most(manager.block_table(name), len(live.table))
            if table != live.table:
                expected = f"table of {name} unchanged: {live.table}"
                self._fail("A7", Anomaly.FOREIGN_CHANGE, expected, f"{table}")
            self._check_content(name, live)
        if self._counters:
            self._check_counters(manager.counters())
        if self._refcounts:
            self._check_refcounts(manager.refcounts())
        if self._mirror is not None:
            self._mirror.take(manager.take_events())

    def _check_content(self, name: str, live: Live) -> None:
        """C1, C2, A2: every readable slot holds the tag that belongs there."""
        wrong = self.device.first_wrong(live.table, live.tags, live.committed)
        if wrong is not None:
            self.diagnosis.wrong_slot(name, live, wrong)

    def _check_counters(self, counters: Counters) -> None:
        """A1: counters equal the sizes of the sets that they name."""
        blocks = self.model.blocks
        free, cached, used = counters.free, counters.cached, counters.used
        if min(free, cached, used) < 0 or free + cached + used != self.model.num_blocks:
            expected = f"counts >= 0 that add up to {self.model.num_blocks}"
            self._fail("A1", Anomaly.ACCOUNTING, expected, f"{counters}")
        if used != blocks.num_used:
            expected = f"{blocks.num_used} blocks used, the union of the live tables"
            self._fail("A1", Anomaly.ACCOUNTING, expected, f"{counters}")
        self.evidence[Seen.COUNTED] += 1
        if cached and not self.model.caches:
            self._fail("P8", Anomaly.ACCOUNTING, "none cached without PREFIX_CACHE", f"{counters}")

    def _check_refcounts(self, refcounts: Mapping[int, int]) -> None:
        counts = dict(refcounts)
        if counts != self.model.blocks.users:
            expected = f"holders per block {self.model.blocks.users}"
            self._fail("A1", Anomaly.ACCOUNTING, expected, f"{counts}")
