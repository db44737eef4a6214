"""The positive controls of a campaign: faults that are planted in passing and must be convicted.

Every now and then one slot that a request reads is given another token's KV, and the batch is
attended once more: the kernel under test must then come out wrong, and the manager be blamed. And a
kernel that leaves a key out is put in place of the one under test: it must be blamed itself. A
campaign that does not see its controls has proved nothing.
"""

from __future__ import annotations

from random import Random

from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.oracle_kernel import twisted
from kvassay.harness.attention.wrong import Refused
from kvassay.harness.contract import CacheKey
from kvassay.harness.pairs.attending import Eyes, Looked
from kvassay.harness.pairs.blame import Side, blame
from kvassay.harness.pairs.worker import Worker

EVERY = 40
"""Batches between two controls; the first few follow each other."""
FIRST = 3
STRANGER = 1_000_000
"""A token that no scenario uses."""


class Controls:
    """Plants faults in what was attended to, and takes them out again."""

    def __init__(self, eyes: Eyes) -> None:
        self.eyes = eyes
        self.planted = 0
        self.blind: str | None = None
        """What was planted and not seen."""
        declaration = eyes.kernel.declaration
        self._forgetful = Kernel(twisted("last-key")(declaration), declaration, "control")
        self._looks = 0
        self._rng = Random(0)

    def __call__(self, worker: Worker, looked: Looked) -> None:
        """To be called after every batch that was found right; raises what a kernel raises."""
        self._looks += 1
        if self.blind is not None or (self._looks > FIRST and self._looks % EVERY):
            return
        try:
            unseen = self._spoil(worker, looked) or self._forget(worker, looked)
        except Refused:
            return
        self.planted += 1
        self.blind = unseen

    def _spoil(self, worker: Worker, looked: Looked) -> str | None:
        """One slot with another's KV: what went wrong with that, if anything."""
        row = self._rng.choice(looked.rows)
        position = self._rng.randrange(row.length)
        slot = worker.pool.slot(row.table, position)
        saved = [part.clone() for part in slot]
        stranger = worker.model.tags_of(CacheKey((STRANGER,)))
        history = worker.history
        for part, other in zip(slot, (history.keys, history.values), strict=True):
            part.copy_(other(stranger)[0])
        try:
            blamed = self._blamed(worker, self.eyes.look(worker, looked.rows))
        finally:
            for part, old in zip(slot, saved, strict=True):
                part.copy_(old)
        where = f"position {position} of {row.length}, planted in a slot"
        return _unseen(blamed, Side.MANAGER, f"another's KV at {where}")

    def _forget(self, worker: Worker, looked: Looked) -> str | None:
        """Another kernel, that leaves the last key out."""
        again = self.eyes.judged(self._forgetful, looked.built, looked.rows, worker.history)
        blamed = self._blamed(worker, again)
        return _unseen(blamed, Side.KERNEL, "a kernel that leaves out the last key")

    def _blamed(self, worker: Worker, looked: Looked) -> Side | None:
        return blame(self.eyes, worker, looked, brief=True).side if looked.wrong else None


def _unseen(blamed: Side | None, due: Side, what: str) -> str | None:
    if blamed is due:
        return None
    return f"{what}, {'went unseen' if blamed is None else f'was blamed on the {blamed}'}"
