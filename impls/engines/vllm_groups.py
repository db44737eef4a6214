"""vLLM's `KVCacheManager` over layers with a sliding window, alone and beside full attention.

`vllm-window` has groups with a window only, `vllm-hybrid` full attention and windows, which vLLM
joins in its `HybridKVCacheCoordinator`; both are driven as `vllm` is. The blocks of all groups have
one size, as vLLM makes them where pages of layers can be made equal.

vLLM frees what a window has passed when the request asks for more, before it looks whether there
is room (``refusal=may_drop_window``), and publishes it before: so it stays hittable until it is
evicted. Events are left out, as the contract's name no group; so is the order of eviction, which
is not judged over groups. With a window of one token vLLM counts no hit at all: it looks for blocks
that hold ``window - 1`` tokens before a hit. Nor does it have to: such a window passes all.

Importing this file does not import vLLM; building a manager does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from kvassay.harness.contract import (
    CacheManager,
    Capability,
    EventSemantics,
    GroupSpec,
    Order,
    Refusal,
)
from kvassay.harness.registry import implementation
from kvassay.impls.engines.vllm import DECLARATION as UNGROUPED
from kvassay.impls.engines.vllm import INSTALL, PACKAGE, VllmManager, engine_names

DECLARATION = replace(
    UNGROUPED,
    capabilities=UNGROUPED.capabilities - {Capability.EVENTS} | {Capability.GROUPS},
    order=Order.NONE,
    stamps=frozenset(),
    events=EventSemantics.MULTISET,
    refusal=Refusal.MAY_DROP_WINDOW,
)


@lru_cache(maxsize=256)
def _config(num_blocks: int, block_size: int, groups: tuple[GroupSpec, ...]) -> Any:
    of = engine_names().interface
    specs = [
        of.KVCacheGroupSpec([f"layer.{number}"], _spec(block_size, group.window))
        for number, group in enumerate(groups)
    ]
    return of.KVCacheConfig(num_blocks + 1, [], specs)


def _spec(block_size: int, window: int | None) -> Any:
    of, dtype = engine_names().interface, engine_names().dtype
    shape = {"block_size": block_size, "num_kv_heads": 1, "head_size": 64, "dtype": dtype}
    if window is None:
        return of.FullAttentionSpec(**shape)
    return of.SlidingWindowSpec(**shape, sliding_window=window)


class GroupedVllmManager(VllmManager):
    """Requests over several groups of layers, and the calls of vLLM's scheduler for them."""

    events = False
    stages = None  # timed as `vllm`

    def __init__(self, num_blocks: int, block_size: int, groups: Sequence[GroupSpec]) -> None:
        self.groups = tuple(groups)
        super().__init__(num_blocks, block_size)

    def _layout(self) -> Any:
        return _config(self.num_blocks, self.block_size, self.groups)

    def block_table(self, request: str, group: str | None = None) -> Sequence[int]:
        names = [spec.name for spec in self.groups]
        blocks: list[int] = self.engine.get_block_ids(request)[
            0 if group is None else names.index(group)
        ]
        return blocks


def _windows(groups: Sequence[GroupSpec], block_size: int) -> tuple[GroupSpec, ...]:
    """The groups with a window, or one where none has."""
    found = tuple(group for group in groups if group.window is not None)
    return found or (GroupSpec("window", window=2 * block_size),)


@implementation(
    "vllm-window", kind=CacheManager, declaration=DECLARATION, package=PACKAGE, install=INSTALL
)
class WindowVllmManager(GroupedVllmManager):
    """Every layer has one window: of the groups asked for, the first that has one."""

    def __init__(self, num_blocks: int, block_size: int, groups: Sequence[GroupSpec] = ()) -> None:
        super().__init__(num_blocks, block_size, _windows(groups, block_size)[:1])


@implementation(
    "vllm-hybrid", kind=CacheManager, declaration=DECLARATION, package=PACKAGE, install=INSTALL
)
class HybridVllmManager(GroupedVllmManager):
    """Layers with full attention beside layers with windows, in the order that is asked for."""

    def __init__(self, num_blocks: int, block_size: int, groups: Sequence[GroupSpec] = ()) -> None:
        if all(group.window is not None for group in groups):
            groups = (GroupSpec("full"), *groups)
        if all(group.window is None for group in groups):
            groups = (*groups, *_windows((), block_size))
        super().__init__(num_blocks, block_size, groups)
