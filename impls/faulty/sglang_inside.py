"""Planted faults in a whole SGLang: its worker's rows, its slot allocator, its look-ups.

Each patch replaces a method of one running engine's objects; what convicts it is the device inside
(`impls.engines.sglang_inside`). One engine in a process, so one fault too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvassay.impls.faulty.patches import Patch, PatchedFault

FAULTS: dict[str, PatchedFault] = {}


def fault(name: str, accepted: str) -> Callable[[Patch], Patch]:
    """Enter a patch of a `WatchedSglang` into `FAULTS`."""

    def plant(patch: Patch) -> Patch:
        FAULTS[name] = PatchedFault.of(name, accepted, patch)
        return patch

    return plant


@fault("rows-get-each-others-slots", "A7")
def rows_get_each_others_slots(engine: Any) -> None:
    """In a decode step each row is given the new slot of the request before it in the batch."""
    rows = engine.scheduler.tp_worker.model_runner.req_to_token_pool
    write = rows.write

    def shifted(indices: Any, values: Any) -> None:
        decoding = isinstance(indices, tuple) and not isinstance(indices[1], slice)
        write(indices, values.roll(1) if decoding and values.numel() > 1 else values)

    rows.write = shifted


@fault("slots-handed-out-twice", "A2 P5")
def slots_handed_out_twice(engine: Any) -> None:
    """Every fiftieth time, the slot that was handed out first of the last ones is so again."""
    allocator = engine.scheduler.token_to_kv_pool_allocator
    alloc, calls, last = allocator.alloc, [0], [0]

    def twice(need_size: int) -> Any:
        slots = alloc(need_size)
        if slots is None or not len(slots):
            return slots
        calls[0] += 1
        again = calls[0] % 50 == 0
        if again:
            slots = slots.clone()
            slots[0] = last[0]
        last[0] = int(slots[0])
        return slots

    allocator.alloc = twice


@fault("hit-read-backwards", "A7 P1 P5")
def hit_read_backwards(engine: Any) -> None:
    """A look-up returns the right slots in the wrong order."""
    tree = engine.scheduler.tree_cache
    indices = tree.prefix_device_indices
    tree.prefix_device_indices = lambda *key, **named: indices(*key, **named).flip(0)
