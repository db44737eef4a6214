"""Planted faults in SGLang itself: the stock adapters, with one operation of the tree corrupted.

Each patch replaces methods of one `RadixCache` or its allocator, never of the classes, so that the
stock adapters and all faults can live in one process. The tree is the older one, which asserts the
least. Behind requests it publishes at commit, so that live requests share what is in it.

A1 is among the accepted ids of all that lose count of a page: the tree's own counters tell.

Importing this module registers ``sglang-fault-<name>``, and ``sglang-index-fault-<name>`` for the
faults that the tree by itself can show.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvassay.harness.contract import CacheManager, Declaration, PrefixIndex
from kvassay.harness.registry import implementation
from kvassay.impls.engines import sglang, sglang_index
from kvassay.impls.engines.sglang import CommittingSglangManager
from kvassay.impls.engines.sglang_index import RadixCacheIndex
from kvassay.impls.engines.sglang_parts import INSTALL, PACKAGE
from kvassay.impls.faulty.patches import Patch, PatchedFault

FAULTS: dict[str, PatchedFault] = {}
"""Seen through requests."""
INDEX_FAULTS: dict[str, PatchedFault] = {}
"""Seen through the tree by itself: those of them that are faults of the tree."""


def fault(name: str, accepted: str, by_index: str = "") -> Callable[[Patch], Patch]:
    """Enter a patch of a `RadixCache` into `FAULTS`, or into both, and register it."""

    def plant(patch: Patch) -> Patch:
        FAULTS[name] = PatchedFault.of(name, accepted, patch)

        def build(num_blocks: int, block_size: int) -> CommittingSglangManager:
            manager = CommittingSglangManager("radix", num_blocks, block_size)
            patch(manager.tree)
            return manager

        declaration = sglang.declare("radix", commits=True)
        _register(f"sglang-fault-{name}", CacheManager, declaration, build)
        if by_index:
            INDEX_FAULTS[name] = PatchedFault.of(name, by_index, patch)
            _plant_in_index(name, patch)
        return patch

    return plant


def _plant_in_index(name: str, patch: Patch) -> None:
    def build(capacity: int | None, page_size: int) -> RadixCacheIndex:
        index = RadixCacheIndex(capacity, page_size)
        patch(index.tree)
        return index

    declaration = sglang_index.declare("radix")
    _register(f"sglang-index-fault-{name}", PrefixIndex, declaration, build)


def _register(
    name: str, kind: type, declaration: Declaration, build: Callable[..., object]
) -> None:
    implementation(name, kind=kind, declaration=declaration, package=PACKAGE, install=INSTALL)(
        build
    )


@fault("lock-lost-on-split", accepted="A1 A2 A3 A5", by_index="P6 P7 P8")
def lock_lost_on_split(tree: Any) -> None:
    """A node that is split while it is locked passes no lock on to its new upper half."""
    split_node = tree._split_node

    def split(key: Any, child: Any, split_len: int) -> Any:
        upper = split_node(key, child, split_len)
        upper.lock_ref = 0
        return upper

    tree._split_node = split


@fault("lock-ignored-by-evict", accepted="A1 A2 A3 P9", by_index="P7")
def lock_ignored_by_evict(tree: Any) -> None:
    """Eviction takes any leaf, locked or not, least recently used first."""

    def leaves() -> list[Any]:
        found, stack = [], list(tree.root_node.children.values())
        while stack:
            node = stack.pop()
            stack += node.children.values()
            found += [] if node.children else [node]
        return found

    evict = tree.evict

    def evict_any(params: Any) -> Any:
        tree.evictable_leaves = set(leaves())
        return evict(params)

    tree.evict = evict_any


@fault("unaligned-match", accepted="P3 A4", by_index="P3")
def unaligned_match(tree: Any) -> None:
    """A match goes on into a page of which only the first tokens are equal."""
    match_prefix = tree.match_prefix

    def match(params: Any) -> Any:
        result = match_prefix(params)
        wanted = params.key.raw_token_ids()[result.device_prefix_len :]
        for child in result.last_device_node.children.values():
            common = _common(child.key.raw_token_ids(), wanted)
            same_space = child.key.extra_key == params.key.extra_key
            if common and same_space and child.key.cache_salt == params.key.cache_salt:
                return result._replace(
                    device_prefix_len=result.device_prefix_len + common, last_device_node=child
                )
        return result

    tree.match_prefix = match


def _common(one: Any, other: Any) -> int:
    """Leading tokens that are equal."""
    length = min(len(one), len(other))
    return next((at for at in range(length) if one[at] != other[at]), length)


@fault("duplicate-leaked", accepted="A1 A4 A5 P11")
def duplicate_leaked(tree: Any) -> None:
    """The duplicates that a checkpoint finds in the tree are not given back."""
    insert_cache, allocator = tree._insert_cache, tree.token_to_kv_pool_allocator

    def insert(*arguments: Any, **named: Any) -> Any:
        allocator.free_segment = lambda free_index, start_pos: None
        try:
            return insert_cache(*arguments, **named)
        finally:
            del allocator.free_segment

    tree._insert_cache = insert


@fault("indices-permuted", accepted="P1 P2 P3")
def indices_permuted(tree: Any) -> None:
    """The slots of a matched prefix come back with its pages in the reverse order."""
    prefix_device_indices = tree.prefix_device_indices

    def indices(req: Any) -> Any:
        slots = prefix_device_indices(req)
        return slots.reshape(-1, tree.page_size).flip(0).reshape(-1)

    tree.prefix_device_indices = indices


@fault("ancestors-left-locked", accepted="A1 A4 A5", by_index="P7 P8")
def ancestors_left_locked(tree: Any) -> None:
    """Unlocking a path unlocks its last node and none above it."""
    dec_lock_ref = tree.dec_lock_ref

    def unlock(node: Any, params: Any = None) -> Any:
        if node is tree.root_node:
            return dec_lock_ref(node, params)
        above, node.parent = node.parent, tree.root_node
        try:
            return dec_lock_ref(node, params)
        finally:
            node.parent = above

    tree.dec_lock_ref = unlock


@fault("namespace-ignored", accepted="P2 E1 A2 C2", by_index="P2")
def namespace_ignored(tree: Any) -> None:
    """Neither the extra key (the adapter) nor the salt is part of a key."""
    match_prefix, insert = tree.match_prefix, tree.insert

    def plain(params: Any) -> Any:
        params.key.extra_key = params.key.cache_salt = None
        return params

    tree.match_prefix = lambda params: match_prefix(plain(params))
    tree.insert = lambda params: insert(plain(params))


@fault("page-lost", accepted="A1 A4 A5 P9", by_index="P8 P9")
def page_lost(tree: Any) -> None:
    """Eviction gives back all pages of a leaf but the last."""
    evict, allocator = tree.evict, tree.token_to_kv_pool_allocator
    free_segment = allocator.free_segment

    def free(free_index: Any, start_pos: int) -> None:
        free_segment(free_index[: -tree.page_size], start_pos=start_pos)

    def evict_most(params: Any) -> Any:
        allocator.free_segment = free
        try:
            return evict(params)
        finally:
            del allocator.free_segment

    tree.evict = evict_most
