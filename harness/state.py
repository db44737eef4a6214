"""What every part of the checker shares: implementation, model, device and evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from kvassay.harness.calling import Calling, at_most
from kvassay.harness.contract import Capability, Declaration, Publish
from kvassay.harness.device import ShadowDevice
from kvassay.harness.diagnosis import Diagnosis
from kvassay.harness.evidence import Seen
from kvassay.harness.mirror import Mirror
from kvassay.harness.stored_device import StoredDevice
from kvassay.harness.violation import Anomaly
from kvassay.reference.model import CacheModel


class CheckerState(Calling):
    """One implementation under test together with the model and the device."""

    mirrors = True
    """Whether a mirror of the events can answer a look-up."""

    def __init__(self, manager: Any, declaration: Declaration) -> None:
        self.manager = manager
        self.declaration = declaration
        self.model = self._new_model()
        self.storage = self._stored() if declaration.has(Capability.STORAGE) else None
        self.device = self.storage or ShadowDevice(manager.block_size)
        self.diagnosis = Diagnosis(self.model, self.device)
        self.evidence: Counter[Seen] = Counter()
        has = declaration.has
        self.commits = has(Capability.COMMIT) and declaration.publish is not Publish.RESERVATION
        """Whether KV is written in an operation of its own."""
        self._copies = has(Capability.COPIES)
        self._counters = has(Capability.COUNTERS)
        self._refcounts = has(Capability.REFCOUNTS)
        self._mirror = Mirror(self.model) if has(Capability.EVENTS) and self.mirrors else None
        if self._mirror is not None:
            self._mirror.take(self._call_plain(manager.take_events))

    def _new_model(self) -> CacheModel:
        """What is known of the manager, which nobody has used yet."""
        return CacheModel(self.manager.num_blocks, self.manager.block_size, self.declaration)

    def _stored(self) -> StoredDevice:
        """The device in the tensors of the engine, which has one group here."""
        manager = self.manager
        return StoredDevice(
            manager.block_size,
            lambda slots, tags: self._call_plain(manager.write, 0, slots, tags),
            lambda slots: self._call_plain(manager.read, 0, slots),
        )

    def has(self, *capabilities: Capability) -> bool:
        """Whether the implementation declares all of these."""
        return self.declaration.has(*capabilities)

    def _take_copies(self) -> Sequence[tuple[int, int]]:
        if not self._copies:
            return ()
        most = self.model.num_blocks
        copies = at_most(self._call_plain(self.manager.take_copies), most)
        if len(copies) > most:
            expected = f"at most {most} copies, each into a block of its own"
            self._fail("C2", Anomaly.NOT_AN_ANSWER, expected, f"{len(copies)} or more: {copies}")
        if copies and self.storage is None:
            self.evidence[Seen.COPIED] += 1
        return copies

    def _discard_copies(self) -> None:
        """Copies after an operation that hands out nothing are done like any other."""
        copies = self._take_copies()
        if copies:
            self.device.begin_tenancies((), copies)
