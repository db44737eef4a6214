"""What an assay has to know about a kind of implementation; everything else is the same for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Protocol

from kvassay.harness.contract import Declaration
from kvassay.harness.evidence import Seen
from kvassay.harness.explain import Told
from kvassay.harness.health import Floor
from kvassay.harness.invariants import Invariant
from kvassay.harness.registry import Registration
from kvassay.harness.session import Run
from kvassay.harness.shrink import Ways


@dataclass(frozen=True)
class Shapes:
    """What sizes are tried."""

    pools: tuple[int, ...]
    """Blocks; 0 stands for no limit."""
    sizes: tuple[int, ...]
    """Tokens per block."""
    large: tuple[tuple[int, int], ...] = ()
    """Pairs of size and blocks that are rare because they are slow."""


class Explore(Protocol):
    """One generated run."""

    def __call__(
        self,
        registration: Registration,
        rng: Random,
        num_blocks: int,
        block_size: int,
        *,
        length: int,
        focus: str = "",
    ) -> Run: ...


@dataclass(frozen=True)
class Subject:
    """One kind of implementation under assay."""

    kind: type
    law: Mapping[str, Invariant]
    floors: tuple[Floor, ...]
    shapes: Shapes
    explore: Explore
    replay: Callable[[Registration, Any], Run]
    ways: Ways[Any]
    explain: Callable[[Registration, Any, Told], Iterator[str]]
    load: Callable[[Path | str], Any]
    to_json: Callable[[Any], str]
    stale: Callable[[Declaration, Counter[Seen]], list[str]]
    corpus: str | None = None
    """Package with the pinned scenarios that every implementation replays."""
