"""Planted faults in a whole vLLM: its worker's tables, its slots, its scheduler and its block pool.

Each patch replaces methods of one engine's objects, never of a class, once it is built; what
convicts it is the device inside (`impls.engines.vllm_inside`). Where a worker is corrupted, the
cache manager is right, and nothing that looks at managers can see it. Those that end in ``-inside``
are faults of `impls.faulty.vllm`, which corrupt a block pool, in the pool of a running engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from kvassay.harness.inside.scene import Scene
from kvassay.impls.engines.vllm_inside import WatchedVllm, scene_of
from kvassay.impls.faulty import vllm as in_the_pool
from kvassay.impls.faulty.patches import Patch, PatchedFault

NUM_BLOCKS = 25


@dataclass(frozen=True)
class InsideVllm:
    """One planted fault, and the model that brings it out."""

    fault: PatchedFault
    model: str = "full"

    def build(self) -> WatchedVllm:
        """The engine with the fault."""
        engine = WatchedVllm(self.model)
        self.fault.patch(engine)
        return engine

    @property
    def scene(self) -> Scene:
        """The faulty engine under traffic."""
        return scene_of(self.build)

    @property
    def host(self) -> Scene:
        """The stock engine under the same."""
        return scene_of(partial(WatchedVllm, self.model))


FAULTS: dict[str, InsideVllm] = {}


def fault(name: str, accepted: str, model: str = "full") -> Callable[[Patch], Patch]:
    """Enter a patch of an engine into `FAULTS`."""

    def plant(patch: Patch) -> Patch:
        FAULTS[name] = InsideVllm(PatchedFault.of(name, accepted, patch), model)
        return patch

    return plant


# -------------------------------------------------------------------------------------- the worker


@fault("row-not-appended", "A7")
def row_not_appended(engine: Any) -> None:
    """The worker counts a running request's new block, but does not write it into its row."""
    (table,) = engine.tables
    append_row = table.append_row

    def append(block_ids: list[int], row_idx: int) -> None:
        if table.num_blocks_per_row[row_idx]:
            table.num_blocks_per_row[row_idx] += len(block_ids)
        else:
            append_row(block_ids, row_idx)

    table.append_row = append


@fault("appended-one-off", "A7 P1 P4 P5")
def appended_one_off(engine: Any) -> None:
    """The worker notes the block after the one that a running request was given.

    The request itself writes and reads there; it is others who miss its KV, or lose theirs.
    """
    (table,) = engine.tables
    append_row = table.append_row

    def append(block_ids: list[int], row_idx: int) -> None:
        more = table.num_blocks_per_row[row_idx] > 0
        next_ones = [block % (NUM_BLOCKS - 1) + 1 for block in block_ids]
        append_row(next_ones if more else block_ids, row_idx)

    table.append_row = append


@fault("row-not-moved", "A7")
def row_not_moved(engine: Any) -> None:
    """When the batch is condensed, the request moves and its block table does not."""
    (table,) = engine.tables

    def move(src: int, tgt: int) -> None:
        table.num_blocks_per_row[tgt] = table.num_blocks_per_row[src]

    table.move_row = move


@fault("stale-row-kept", "A2 A7 P1 P5")
def stale_row_kept(engine: Any) -> None:
    """A request that comes to a row that is not cleared keeps the first block that it had before.

    It writes and reads there; it is the block's owners who find KV that is not theirs.
    """
    (table,) = engine.tables
    add_row = table.add_row
    table.clear_row = lambda row_idx: None

    def add(block_ids: list[int], row_idx: int) -> None:
        before = int(table.block_table.np[row_idx, 0])
        add_row(block_ids, row_idx)
        if before:
            table.block_table.np[row_idx, 0] = before

    table.add_row = add


@fault("slots-shifted-after-preemption", "A2 A7 C1")
def slots_shifted_after_preemption(engine: Any) -> None:
    """Once a request was preempted, its new KV goes one slot further than its table says."""
    (table,) = engine.tables
    compute, runner = table.compute_slot_mapping, engine.runner

    def shifted(num_reqs: int, query_start_loc: Any, positions: Any) -> None:
        compute(num_reqs, query_start_loc, positions)
        known = engine.core.scheduler.requests
        for row, name in enumerate(runner.input_batch.req_ids[:num_reqs]):
            if name in known and known[name].num_preemptions:
                start, stop = int(query_start_loc[row]), int(query_start_loc[row + 1])
                table.slot_mapping.gpu[start:stop] += 1

    table.compute_slot_mapping = shifted


@fault("slots-counted-from-the-chunk", "A2 A7 C1")
def slots_counted_from_the_chunk(engine: Any) -> None:
    """The slots of a chunk that is not the first are counted from its own start."""
    (table,) = engine.tables
    compute = table.compute_slot_mapping

    def counted(num_reqs: int, query_start_loc: Any, positions: Any) -> None:
        wrong = positions.clone()
        for row in range(num_reqs):
            start, stop = int(query_start_loc[row]), int(query_start_loc[row + 1])
            if stop - start > 1:
                wrong[start:stop] -= positions[start].item()
        compute(num_reqs, query_start_loc, wrong)

    table.compute_slot_mapping = counted


@fault("groups-take-each-others-blocks", "A2 A7 P1 P5", model="hybrid")
def groups_take_each_others_blocks(engine: Any) -> None:
    """What the windowed layer group is given later goes to the row of the other one too."""
    first, second = engine.tables
    append_row = second.append_row

    def append(block_ids: list[int], row_idx: int) -> None:
        start = int(second.num_blocks_per_row[row_idx])
        append_row(block_ids, row_idx)
        if start and block_ids:
            second.block_table.np[row_idx, start] = first.block_table.np[row_idx, start]

    second.append_row = append


# ------------------------------------------------------------------------------------ the scheduler


@fault("stale-token-fed", "S1")
def stale_token_fed(engine: Any) -> None:
    """A decode step at the beginning of a block is given the token before the newest one."""
    runner, size = engine.runner, engine.groups[0].block_size
    prepare = runner._prepare_inputs

    def stale(scheduler_output: Any, num_scheduled_tokens: Any) -> Any:
        prepared = prepare(scheduler_output, num_scheduled_tokens)
        batch, ends = runner.input_batch, num_scheduled_tokens.cumsum()
        for row, (count, end) in enumerate(zip(num_scheduled_tokens, ends, strict=True)):
            at = int(batch.num_computed_tokens_cpu[row])
            if count == 1 and at and at % size == 0:
                runner.input_ids.gpu[int(end) - 1] = int(batch.token_ids_cpu[row, at - 1])
        return prepared

    runner._prepare_inputs = stale


@fault("window-passed-early", "A2 A7", model="window")
def window_passed_early(engine: Any) -> None:
    """Blocks that a windowed layer group will still read are given up a block too early."""
    (manager,) = engine.core.scheduler.kv_cache_manager.coordinator.single_type_managers
    skipped, size = manager.get_num_skipped_tokens, engine.groups[0].block_size
    manager.get_num_skipped_tokens = lambda computed: skipped(computed) + size


# ----------------------------------------------------------------------------------- the block pool


@fault("hit-not-touched", "A2 P5")
def hit_not_touched(engine: Any) -> None:
    """What a look-up found is neither referenced nor taken out of the free queue.

    vLLM asserts that nobody refers to what it hands out; the patch leaves that out.
    """
    pool = engine.pool
    in_the_pool.without_assertion(pool)
    pool.touch = lambda blocks: None


def _inside(name: str, accepted: str) -> None:
    """A fault of a block pool, in the pool of a running engine."""
    known = in_the_pool.FAULTS[name]

    def patch(engine: Any) -> None:
        known.patch(engine.pool)

    patched = PatchedFault(
        f"{name}-inside",
        known.description,
        frozenset(accepted.split()),
        patch,
        known.replacing,
    )
    FAULTS[patched.name] = InsideVllm(patched)


_inside("no-reference-on-hit", "A2 P5 S2")
_inside("hit-left-in-free-queue", "A2 P5")
_inside("freed-with-the-first-sharer", "A2 P5")
_inside("no-unmap-at-eviction", "P1 P5")
_inside("key-leads-to-next-block", "P1 P2 P5")
