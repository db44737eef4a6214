"""Planted faults in vLLM itself: the stock adapter, with one operation of the engine corrupted.

Each patch replaces methods of one manager's `BlockPool`, `KVCacheManager` or requests, never of a
class, so that the stock adapter and all faults can live in one process. vLLM asserts some of what
these break; where it would stop with an assertion of its own, the patch leaves that out, as
``python -O`` does, and the fault shows in what requests get. P10 is among the accepted ids of those
that lose count: what leaks is never evicted when its turn comes, and what keeps its place or loses
its note in the queue goes too early.

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


def _pool(manager: VllmManager) -> Any:
    return manager.engine.block_pool


def _whole(manager: VllmManager) -> Any:
    return manager


def fault(
    name: str,
    accepted: str,
    at: Callable[[VllmManager], Any] = _pool,
    replacing: Callable[..., None] | None = None,
) -> Callable[[Patch], Patch]:
    """Enter a patch, of a `BlockPool` unless it says of what, into `FAULTS` and register it."""

    def plant(patch: Patch) -> Patch:
        FAULTS[name] = PatchedFault.of(name, accepted, patch, replacing)

        def build(num_blocks: int, block_size: int) -> VllmManager:
            manager = VllmManager(num_blocks, block_size)
            patch(at(manager))
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


def without_assertion(pool: Any) -> None:
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

    without_assertion(pool)
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

    without_assertion(pool)
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


@fault("freed-with-the-first-sharer", accepted="A1 A2 A3 P10")
def freed_with_the_first_sharer(pool: Any) -> None:
    """A block that several requests hold is free as soon as one of them leaves."""

    def free(ordered_blocks: Iterable[Any]) -> None:
        blocks = list(ordered_blocks)
        for block in blocks:
            block.ref_cnt = max(0, block.ref_cnt - 1)
        pool.free_block_queue.append_n([block for block in blocks if not _queued(block)])

    def touch(blocks: Sequence[Any]) -> None:
        for block in blocks:
            if _queued(block):
                pool.free_block_queue.remove(block)
            block.ref_cnt += 1

    without_assertion(pool)
    pool.free_blocks = free
    pool.touch = touch


@fault("newest-goes-first", accepted="P10")
def newest_goes_first(pool: Any) -> None:
    """What is released goes to the front of the free queue, its key or not."""
    queue = pool.free_block_queue

    def free(ordered_blocks: Iterable[Any]) -> None:
        blocks = list(ordered_blocks)
        for block in blocks:
            block.ref_cnt -= 1
        queue.prepend_n([block for block in blocks if block.ref_cnt == 0])

    pool.free_blocks = free


@fault("head-goes-first", accepted="P9 P10")
def head_goes_first(pool: Any) -> None:
    """A request gives back its first block first, so that a prefix loses its head."""
    free_blocks = pool.free_blocks
    pool.free_blocks = lambda ordered_blocks: free_blocks(list(ordered_blocks)[::-1])


@fault("reset-keeps-keys", accepted="P5 P2 E1 E2")
def reset_keeps_keys(pool: Any) -> None:
    """A reset says that it is done, and leaves all keys where they are."""
    pool.reset_prefix_cache = lambda: True


@fault("null-block-handed-out", accepted="A1 A2 A5 A7")
def null_block_handed_out(pool: Any) -> None:
    """The null block is in the free queue by the time that anybody is given a block."""
    get_new_blocks = pool.get_new_blocks
    queued: list[Any] = []

    def get(num_blocks: int) -> list[Any]:
        if not queued:
            queued.append(pool.null_block)
            pool.free_block_queue.prepend_n(queued)
        blocks: list[Any] = get_new_blocks(num_blocks)
        return blocks

    pool.get_new_blocks = get


@fault("key-leads-to-next-block", accepted="P1 P2 P3 P4")
def key_leads_to_next_block(pool: Any) -> None:
    """The key of a full block is noted at the block after it, if there is one."""
    cache_full_blocks = pool.cache_full_blocks

    def cache(request: Any, blocks: Sequence[Any], *more: Any, **named: Any) -> None:
        shifted = [*blocks[1:], blocks[-1]]
        full = named.get("num_full_blocks", more[1] if len(more) > 1 else 0)
        fit = len(blocks) > full and all(block.block_hash is None for block in shifted[:full])
        cache_full_blocks(request, shifted if fit else blocks, *more, **named)

    pool.cache_full_blocks = cache


def _hashed_without(manager: Any, name: str) -> None:
    """Requests hash their blocks as if one of their attributes were not set."""
    request_of = manager._request

    def request(*arguments: Any) -> Any:
        made = request_of(*arguments)
        hash_blocks = made._block_hasher

        def blind(live: Any) -> Any:
            kept = getattr(live, name)
            setattr(live, name, None)
            try:
                return hash_blocks(live)
            finally:
                setattr(live, name, kept)

        made._block_hasher = blind
        made.block_hashes.clear()
        made.update_block_hashes()
        return made

    manager._request = request


@fault("salt-ignored", accepted="P2 E1", at=_whole, replacing=_hashed_without)
def salt_ignored(manager: Any) -> None:
    """The salt is no part of a key."""
    _hashed_without(manager, "cache_salt")


@fault("adapter-ignored", accepted="P2 E1", at=_whole, replacing=_hashed_without)
def adapter_ignored(manager: Any) -> None:
    """The adapter is no part of a key."""
    _hashed_without(manager, "lora_request")


@fault("refused-hit-stays-pinned", accepted="A1 A3 A4 A5 P10", at=_whole)
def refused_hit_stays_pinned(manager: Any) -> None:
    """A request that is refused keeps hold of what it would have hit."""
    allocate_slots, pool = manager.engine.allocate_slots, manager.engine.block_pool

    def allocate(live: Any, num_tokens: int, hit: int = 0, found: Any = None, **named: Any) -> Any:
        slots = allocate_slots(live, num_tokens, hit, found, **named)
        if slots is None and found is not None:
            pool.touch(found.blocks[0])
        return slots

    manager.engine.allocate_slots = allocate
