"""What a worker hands to its attention layers in one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.integer]


@dataclass(frozen=True)
class LayerGroup:
    """Layers that share block tables and a slot mapping."""

    block_size: int
    num_blocks: int
    """Physical blocks; ids are below it."""
    window: int | None = None
    """Keys that a query sees, its own included; None for all."""
    memory: int = 0
    """Which memory their blocks lie in: groups of one number overwrite each other's blocks."""
    null: frozenset[int] = frozenset()
    """Blocks that stand in tables for nothing (null and padding blocks)."""


@dataclass(frozen=True)
class Batch:
    """One pass, row by row: n requests, whose new tokens are packed one after the other."""

    requests: Sequence[str]
    """Whose row it is, as the worker says: its samples go to that request."""
    starts: Ints
    """[n + 1] where each row's tokens begin; the last is the number of tokens."""
    lengths: Ints
    """[n] tokens of each row that have KV after this pass: the last of them are new."""
    tokens: Ints
    """[starts[n]] what is given to the model."""
    positions: Ints
    """[starts[n]] where the model is told that it stands."""
    residencies: Sequence[int]
    """[n] how often each lost its blocks and was admitted again."""
