"""Which layer groups a manager has: those that are asked for, those it insists on, or its window.

A manager with GROUPS is built with ``groups=``; it may insist on others, as on another geometry.
One that declares a `window` and no GROUPS has a single group with that window, and tables without
a group's name. Any other has no groups, and is checked without a thought of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from kvassay.harness.contract import Capability, ContractError, Declaration, GroupSpec

FULL = GroupSpec("full")


def default_groups(block_size: int) -> tuple[GroupSpec, ...]:
    """What a scenario that names no groups is replayed on: full attention beside a window."""
    return FULL, GroupSpec("window", window=2 * block_size)


def drawn_groups(rng: Random, block_size: int) -> tuple[GroupSpec, ...]:
    """Groups for one run: windows of less than a block, of whole blocks, and beside that."""
    size = block_size
    widths = [1, 2, *(max(2, w) for w in (size, size + 1, 2 * size, 2 * size + 1, 3 * size))]
    one, other = (GroupSpec(n, window=rng.choice(widths)) for n in ("window", "other"))
    return rng.choice(((FULL, one), (FULL, one), (one,), (FULL,), (one, FULL), (FULL, one, other)))


def groups_of(manager: Any, declaration: Declaration) -> tuple[GroupSpec, ...] | None:
    """The groups of a new instance, or None if it has none; `ContractError` if they are no groups.

    Their order is that in which their numbers are told.
    """
    if not declaration.has(Capability.GROUPS):
        window = declaration.window
        return None if window is None else (GroupSpec("window", window=window),)
    groups = getattr(manager, "groups", None)
    if not isinstance(groups, Sequence) or not groups:
        raise ContractError(f"groups: expected a sequence of GroupSpec, got {groups!r}")
    for spec in groups:
        _check(spec, manager.block_size)
    names = [spec.name for spec in groups]
    if len(set(names)) < len(names):
        raise ContractError(f"groups: expected names that differ, got {names}")
    return tuple(groups)


def _check(spec: Any, block_size: int) -> None:
    if not isinstance(spec, GroupSpec) or not isinstance(spec.name, str) or not spec.name:
        raise ContractError(f"groups: expected a GroupSpec with a name, got {spec!r}")
    if spec.window is not None and (not isinstance(spec.window, int) or spec.window < 1):
        raise ContractError(f"group {spec.name}: expected a window >= 1 or None, got {spec.window}")
    if spec.block_size not in (None, block_size):
        raise ContractError(
            f"group {spec.name}: expected blocks of {block_size} tokens like the manager's, got "
            f"{spec.block_size}: groups with blocks of their own size are not driven yet"
        )
