"""Planted faults that show when a manager and a kernel work together.

Most are a fault of one half beside a correct other half: somebody reads another's KV, or reads
wrongly what is right. Some belong to no half alone: a manager that does not clear what a kernel
needs cleared, and a kernel that presumes more of a table than the contract promises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from kvassay.harness.contract import (
    AttentionBatch,
    AttentionResult,
    CacheManager,
    Capability,
    Declaration,
    PagedAttention,
    Rounding,
    Tail,
)
from kvassay.harness.registry import Registration, find
from kvassay.impls.faulty import hashed, kernels, managers, radix_managers, tables
from kvassay.impls.faulty.planting import Fault
from kvassay.impls.torch_attention import TorchAttention

Halves = tuple[Registration, Registration]
"""A manager and a kernel."""


@dataclass(frozen=True)
class PairFault:
    """One planted fault."""

    name: str
    accepted: frozenset[str]
    """Ids of the invariants that may convict it."""
    hides: str
    halves: Halves
    host: Halves
    """The same two without the fault."""
    corrupted: Any
    """The class that is written for it, or the edit of a kernel."""
    modelled_on: str = "none"


FAULTS: dict[str, PairFault] = {}
CORRECT = Registration("hashed", CacheManager, hashed.HashedCache, hashed.DECLARATION)


def _built_in(module: str, name: str, kind: type) -> Registration:
    (found,) = (entry for entry in find(module) if (entry.name, entry.kind) == (name, kind))
    return found


KERNEL = _built_in("kvassay.impls.kernels", "torch", PagedAttention)


def _named(name: str, kind: type, build: Callable[..., Any], declared: Declaration) -> Registration:
    return Registration(name, kind, build, declared, reference=name)


# -------------------------------------------------------------------- a fault of one of the halves

OF_MANAGERS = (
    "key-drops-last-token",
    "key-drops-parent",
    "salt-ignored",
    "adapter-ignored",
    "match-past-hole",
    "published-before-commit",
    "truncation-keeps-key",
    "cow-above-two",
    "copy-forgotten",
    "copy-reversed",
    "recycled-keeps-key",
    "reset-keeps-keys",
)
"""Faults by which somebody reads another's KV."""
OF_KERNELS = (
    "causal-one-late",
    "first-key-lost",
    "next-kv-head",
    "slot-off-by-one",
    "table-of-first-sequence",
    "query-scaled-in-place",
    "tail-read",
    "query-cleared-after-use",
)


def _manager_fault(fault: Fault) -> None:
    name = f"fault-{fault.name}"
    corrupted = _named(name, CacheManager, fault.build, fault.declaration)
    host = _named("host", CacheManager, fault.healthy, fault.declaration)
    FAULTS[name] = PairFault(
        name,
        fault.accepted,
        fault.hides,
        (corrupted, KERNEL),
        (host, KERNEL),
        fault.corrupted,
        fault.modelled_on,
    )


def _kernel_fault(fault: kernels.KernelFault) -> None:
    name = f"kernel-fault-{fault.name}"
    corrupted = _named(name, PagedAttention, fault.build, fault.declaration)
    host = _named("host", PagedAttention, TorchAttention, fault.declaration)
    hides = "The pool is right, and the manager is not to be blamed for what is made of it."
    halves = (CORRECT, corrupted)
    FAULTS[name] = PairFault(name, fault.accepted, hides, halves, (CORRECT, host), fault)


for each in OF_MANAGERS:
    _manager_fault(managers.FAULTS[each])
for each in OF_KERNELS:
    _kernel_fault(kernels.FAULTS[each])


# ------------------------------------------------------------------------------ between the halves


class WholeBlocks:
    """Multiplies all values of its blocks by their weights, which are 0 past the end."""

    def __init__(self) -> None:
        self._attend = TorchAttention()

    def __call__(self, batch: AttentionBatch) -> AttentionResult:
        result = self._attend(batch)
        size = batch.value_cache.shape[1]
        for index, length in enumerate(batch.seq_lens.tolist()):
            blocks = batch.block_table[index, : -(-length // size)].long()
            past = batch.value_cache[blocks].flatten(0, 1)[length:].float()
            rows = slice(*batch.query_start[index : index + 2].tolist())
            group = result.output.shape[1] // past.shape[1]
            nothing = (0.0 * past).sum(dim=0).repeat_interleave(group, dim=0)
            result.output[rows] += nothing.to(result.output.dtype)
        return result


class Clearing(hashed.HashedCache):
    """Has every block cleared that it hands out."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._handed_out: list[int] = []

    def _take_block(self) -> int:
        block = super()._take_block()
        self._handed_out.append(block)
        return block

    def take_zeroes(self) -> list[int]:
        """The blocks to be cleared since the last call."""
        blocks, self._handed_out = self._handed_out, []
        return blocks


CLEARING = replace(
    hashed.DECLARATION, capabilities=hashed.DECLARATION.capabilities | {Capability.ZEROES}
)
CAUSAL = frozenset({Capability.CAUSAL, Capability.LSE})
NEEDY = Declaration(capabilities=CAUSAL, rounding=Rounding.P, tail=Tail.FINITE)
CLEARS = _named("clearing", CacheManager, Clearing, CLEARING)
NEEDS = _named("whole-blocks", PagedAttention, WholeBlocks, NEEDY)


def does_not_clear(name: str, accepted: str, hides: str) -> Callable[[type], type]:
    """Enter a manager that has too little cleared, or too much, beside a kernel that needs it."""

    def plant(build: type) -> type:
        corrupted = _named(name, CacheManager, build, CLEARING)
        ids = frozenset(accepted.split())
        FAULTS[name] = PairFault(name, ids, hides, (corrupted, NEEDS), (CLEARS, NEEDS), build)
        return build

    return plant


def presumes(name: str, accepted: str, hides: str) -> Callable[[type], type]:
    """Enter a kernel that is right for some managers only, beside a right one of another kind."""

    def plant(build: type) -> type:
        declared = replace(NEEDY, tail=Tail.ANY)
        corrupted = _named(name, PagedAttention, build, declared)
        host = _named("host", PagedAttention, TorchAttention, declared)
        ids = frozenset(accepted.split())
        FAULTS[name] = PairFault(name, ids, hides, (CORRECT, corrupted), (CORRECT, host), build)
        return build

    return plant


@does_not_clear(
    "first-block-not-cleared",
    "K2",
    "All others are cleared, and full blocks need no clearing.\n"
    "A request of one partly filled block must be attended to.",
)
class FirstBlockNotCleared(Clearing):
    def take_zeroes(self) -> list[int]:
        return super().take_zeroes()[1:]


@does_not_clear(
    "recycled-not-cleared",
    "K2",
    "Blocks are cleared when they are handed out for the first time.\n"
    "One must be used again, and not be filled.",
)
class RecycledNotCleared(Clearing):
    def take_zeroes(self) -> list[int]:
        seen: set[int] = self.__dict__.setdefault("_seen", set())
        blocks = [block for block in super().take_zeroes() if block not in seen]
        seen.update(blocks)
        return blocks


@does_not_clear(
    "hit-is-cleared",
    "P1 A2",
    "Without a hit there is nothing to lose.\nA cached block must be hit, and read.",
)
class HitIsCleared(Clearing):
    def _reuse(self, block: int) -> None:
        super()._reuse(block)
        self._handed_out.append(block)


@presumes(
    "presumes-one-run",
    "K1 K2 K8 K13",
    "Blocks of a request often follow each other, and with a contiguous manager always do.\n"
    "Two requests must take blocks by turns; then blocks outside the table are read.",
)
class PresumesOneRun(TorchAttention):
    """Finds every block from the first one."""

    def __call__(self, batch: AttentionBatch) -> AttentionResult:
        table = batch.block_table.clone()
        for row, length in enumerate(batch.seq_lens.tolist()):
            count = -(-length // batch.key_cache.shape[1])
            run = torch.arange(count, dtype=table.dtype) + table[row, :1]
            table[row, :count] = run.clamp(max=batch.key_cache.shape[0] - 1)
        return super().__call__(replace(batch, block_table=table))


@presumes(
    "presumes-rising-ids",
    "K1 K8",
    "A fresh pool hands its blocks out in rising order.\n"
    "A request must hold a later block before an earlier one, as after a release.",
)
class PresumesRisingIds(TorchAttention):
    """Sorts its tables, to read memory in order."""

    def __call__(self, batch: AttentionBatch) -> AttentionResult:
        table = batch.block_table.clone()
        for row, length in enumerate(batch.seq_lens.tolist()):
            count = -(-length // batch.key_cache.shape[1])
            table[row, :count] = table[row, :count].sort().values
        return super().__call__(replace(batch, block_table=table))


for each in ("begin-pins-nothing", "hit-of-one-is-true"):
    _manager_fault(radix_managers.FAULTS[each])
for each in ("null-block-handed-out", "reset-objects-after-a-fork"):
    _manager_fault(tables.FAULTS[each])
