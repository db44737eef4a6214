"""Planted faults in vLLM's groups and windows: `vllm-hybrid`, with one operation corrupted.

As in `vllm`, each patch replaces methods of one manager's objects, never of a class. Importing this
module registers ``vllm-hybrid-fault-<name>``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kvassay.harness.contract import CacheManager, GroupSpec
from kvassay.harness.registry import implementation
from kvassay.impls.engines.vllm import INSTALL, PACKAGE
from kvassay.impls.engines.vllm_groups import DECLARATION, HybridVllmManager
from kvassay.impls.faulty.patches import Patch, PatchedFault

FAULTS: dict[str, PatchedFault] = {}


def fault(name: str, accepted: str) -> Callable[[Patch], Patch]:
    """Enter a patch of a `HybridVllmManager` into `FAULTS` and register it."""

    def plant(patch: Patch) -> Patch:
        FAULTS[name] = PatchedFault.of(name, accepted, patch)

        def build(
            num_blocks: int, block_size: int, groups: Sequence[GroupSpec]
        ) -> HybridVllmManager:
            manager = HybridVllmManager(num_blocks, block_size, groups)
            patch(manager)
            return manager

        implementation(
            f"vllm-hybrid-fault-{name}",
            kind=CacheManager,
            declaration=DECLARATION,
            package=PACKAGE,
            install=INSTALL,
        )(build)
        return patch

    return plant


def _of_windows(manager: HybridVllmManager) -> Iterator[Any]:
    """vLLM's managers of the groups that have a window."""
    managers = manager.engine.coordinator.single_type_managers
    for spec, of_group in zip(manager.groups, managers, strict=True):
        if spec.window is not None:
            yield of_group


@fault("window-short-by-one", accepted="A7 P1")
def window_short_by_one(manager: HybridVllmManager) -> None:
    """The oldest token that the next query sees counts as skipped."""
    for of_group in _of_windows(manager):

        def skipped(num_computed_tokens: int, window: int = of_group.sliding_window) -> int:
            return max(0, num_computed_tokens - window + 2)

        of_group.get_num_skipped_tokens = skipped


@fault("passed-blocks-leaked", accepted="A1 A4 A5")
def passed_blocks_leaked(manager: HybridVllmManager) -> None:
    """What a window has passed becomes null in the table, and goes back to nobody."""
    for of_group in _of_windows(manager):

        def remove(request: str, first: int, last: int, of_group: Any = of_group) -> None:
            blocks = of_group.req_to_blocks.get(request, [])
            last = min(last, len(blocks))
            blocks[first:last] = [of_group._null_block] * (last - first)

        of_group._remove_blocks_in_range = remove


@fault("window-not-asked", accepted="P1")
def window_not_asked(manager: HybridVllmManager) -> None:
    """Groups with a window agree to every length; what they have not is null."""
    coordinator = manager.engine.coordinator

    def agreeing(found_by: Any) -> Any:
        class Agreeing(found_by):  # type: ignore[misc]
            @classmethod
            def find_longest_cache_hit(cls, **asked: Any) -> Any:
                pool, numbers = asked["block_pool"], asked["kv_cache_group_ids"]
                size = asked["kv_cache_spec"].block_size
                count = asked["max_length"] // size
                rows = tuple([pool.null_block] * count for _ in numbers)
                for index in range(count):
                    for row, block in zip(
                        rows,
                        pool.get_cached_block(asked["block_hashes"][index], numbers) or (),
                        strict=False,
                    ):
                        row[index] = block
                return rows, count * size

        return Agreeing

    coordinator.attention_groups = [
        group._replace(manager_cls=agreeing(group.manager_cls))
        if hasattr(group.spec, "sliding_window") and group.spec.sliding_window
        else group
        for group in coordinator.attention_groups
    ]


@fault("group-left-out-of-the-key", accepted="P2")
def group_left_out_of_the_key(manager: HybridVllmManager) -> None:
    """Whatever group asks gets what the first group has cached."""
    pool = manager.engine.block_pool
    stock = pool.get_cached_block
    pool.get_cached_block = lambda key, groups: stock(key, [0] * len(groups))
