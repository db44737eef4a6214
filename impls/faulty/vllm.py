"""Planted faults in vLLM itself: the stock adapter, with one operation of its block pool corrupted.

Each patch replaces methods of one manager's `BlockPool` instance, never of the class, so that the
stock adapter and all faults can live in one process. vLLM asserts some of what these break; where
it would stop with an assertion of its own, the patch leaves that out, as ``python -O`` does, and
the fault shows in what requests get. P10 is among the accepted ids of all four: what leaks is never
evicted when its turn comes, and what keeps its place or loses its note in the queue goes too early.

Importing this module registers ``vllm-fault-<name>``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kvassay.harness.contract import CacheManager
from kvassay.harness.registry import implementation
from kvassay.impls.engines.vllm import DECLARATION, INSTALL, PACKAGE, VllmManager
from kvassay.impls.faulty.patches import Patch, PatchedFault

FAULTS: dict[str, PatchedFault] = {}


def fault(name: str, accepted: str) -> Callable[[Patch], Patch]:
    """Enter a patch of a `BlockPool` into `FAULTS` and register it."""

    def plant(patch: Patch) -> Patch:
        FAULTS[name] = PatchedFault.of(name, accepted, patch)

        def build(num_blocks: int, block_size: int) -> VllmManager:
            manager = VllmManager(num_blocks, block_size)
            patch(manager.engine.block_pool)
            return manager

        implementation(
            f"vllm-fault-{name}",
            kind=CacheManager,
            declaration=DECLARATION,
            package=PACKAGE,
            install=INSTALL,
        )(build)
        return patch

    return plant


def _without_assertion(pool: Any) -> None:
    """Hand out blocks without asserting that nobody refers to them."""

    def get_new_blocks(num_blocks: int) -> list[Any]:
        blocks: list[Any] = pool.free_block_queue.popleft_n(num_blocks)
        for block in blocks:
            pool._maybe_evict_cached_block(block)
            block.ref_cnt += 1
        return blocks

    pool.get_new_blocks = get_new_blocks


def _queued(block: Any) -> bool:
    return block.next_free_block is not None


@fault("no-unmap-at-eviction", accepted="P5 P1 P8 P10 A7 A4")
def no_unmap_at_eviction(pool: Any) -> None:
    """An evicted block loses its own note of the key, but the key keeps leading to it."""

    def forget(block: Any) -> bool:
        block.reset_hash()
        return False

    pool._maybe_evict_cached_block = forget


@fault("no-reference-on-hit", accepted="A1 A2 A3 A4 A5 P10")
def no_reference_on_hit(pool: Any) -> None:
    """A hit takes the block out of the free queue, but counts no reference."""

    def touch(blocks: Sequence[Any]) -> None:
        for block in blocks:
            if _queued(block):
                pool.free_block_queue.remove(block)

    _without_assertion(pool)
    pool.touch = touch


@fault("hit-left-in-free-queue", accepted="A2 A3 P10")
def hit_left_in_free_queue(pool: Any) -> None:
    """A hit counts a reference, but leaves the block where it can be handed out."""
    free_blocks = pool.free_blocks

    def touch(blocks: Sequence[Any]) -> None:
        for block in blocks:
            block.ref_cnt += 1

    def free(ordered_blocks: Iterable[Any]) -> None:
        # A block that is queued already is not queued again: that would only tear the list.
        for block in ordered_blocks:
            if _queued(block):
                block.ref_cnt -= 1
            else:
                free_blocks([block])

    _without_assertion(pool)
    pool.touch = touch
    pool.free_blocks = free


@fault("tail-leaked", accepted="A1 A3 A4 A5 P10")
def tail_leaked(pool: Any) -> None:
    """A request that leaves gives back all of its blocks but the last."""
    free_blocks = pool.free_blocks

    def free(ordered_blocks: Iterable[Any]) -> None:
        # Tail first is the order in which vLLM frees.
        _tail, *others = ordered_blocks
        free_blocks(others)

    pool.free_blocks = free
