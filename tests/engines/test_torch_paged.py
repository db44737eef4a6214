"""torch's PagedAttention as a manager that attends: small examples, and faults in its objects."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kvassay.harness import registry
from kvassay.harness.contract import CacheKey, Counters, OutOfBlocks
from kvassay.harness.pairs.blame import Side
from kvassay.harness.pairs.pairing import own_attention
from kvassay.harness.pairs.session import Pair
from kvassay.harness.registry import Registration
from kvassay.harness.scenario import Admit, Append, Release, Scenario
from kvassay.impls.engines import torch_paged as adapter
from kvassay.impls.engines.torch_paged import TorchPages

MODULE = "kvassay.impls.engines.torch_paged"
ROW_USED_AGAIN = Scenario(
    2,
    2,
    (Admit("a", CacheKey((0, 1, 2))), Release("a"), Admit("b", CacheKey((3,)))),
)
"""The second request has the row of the first, and one of its two pages."""
GROWS = Scenario(
    4,
    2,
    (Admit("a", CacheKey((0, 1, 2))), Admit("b", CacheKey((3,))), Append("a", (4, 5))),
)


def test_importing_the_adapter_does_not_import_torch() -> None:
    code = f"import {MODULE}, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def build() -> Callable[..., Pair]:
    pytest.importorskip("torch.nn.attention.experimental", reason=f"needs {adapter.flex.INSTALL}")
    torch.set_num_threads(1)

    def paired(name: str, spoil: Callable[[TorchPages], None] | None = None) -> Pair:
        (found,) = [each for each in registry.find(MODULE) if each.name == name]

        def spoiled(**shape: int) -> TorchPages:
            manager: TorchPages = found.build(**shape)
            if spoil is not None:
                spoil(manager)
            return manager

        manager = Registration(name, found.kind, spoiled, found.declaration)
        return Pair(manager, own_attention(manager))

    return paired


def test_a_row_is_taken_with_the_first_page_and_left_with_the_last() -> None:
    manager = TorchPages(4, 2)
    assert manager.admit("a", CacheKey((0, 1, 2))) == 0
    manager.admit("b", CacheKey((3,)))
    assert manager.block_table("a") == [1, 0]
    assert manager.block_table("b") == [2]
    assert manager.counters() == Counters(free=1, cached=0, used=3)
    manager.append("b", [4])
    assert manager.block_table("b") == [2]
    manager.append("b", [5])
    assert manager.block_table("b") == [2, 3]
    for grows in (lambda: manager.append("a", [6, 7]), lambda: manager.admit("c", CacheKey((8,)))):
        with pytest.raises(OutOfBlocks):
            grows()
    manager.release("a")
    assert manager.counters() == Counters(free=2, cached=0, used=2)
    manager.admit("c", CacheKey((8, 9, 10)))
    assert sorted(manager.block_table("c")) == [0, 1]


@pytest.mark.parametrize("scenario", [ROW_USED_AGAIN, GROWS], ids=["row used again", "grows"])
def test_cleared_it_comes_to_what_the_history_says(build: Any, scenario: Scenario) -> None:
    played = build("torch-paged-cleared").replay(scenario)
    assert played.verdict is None
    assert played.attended >= 2
    assert not played.refused


def test_as_it_is_a_row_used_again_sees_the_pages_of_the_one_before(build: Any) -> None:
    pair = build("torch-paged")
    assert pair.replay(GROWS).verdict is None
    verdict = pair.replay(ROW_USED_AGAIN).verdict
    assert verdict is not None
    assert verdict.side is Side.KERNEL
    (known,) = deviations("torch-paged")
    assert known.covers(verdict.verdict)
    assert not deviations("torch-paged-cleared")


def deviations(name: str) -> list[Any]:
    from kvassay.harness.deviations import deviations_of

    (found,) = [each for each in registry.find(MODULE) if each.name == name]
    return deviations_of(found)


# ----------------------------------------------------------------------------------- the faults


def another_row_looked_up(manager: TorchPages) -> None:
    """The mask goes by the row behind, as where torch is given only some of the rows."""
    pages = manager.pages
    made = pages.get_mask_mod

    def shifted(mask_mod: Any, kv_len: Any) -> Any:
        mask = made(mask_mod, kv_len)
        return lambda b, h, q, k: mask((b + 1) % manager.num_blocks, h, q, k)

    pages.get_mask_mod = shifted


def grown_from_the_start(manager: TorchPages) -> None:
    """Pages that a row gets later are entered as its first ones on the way back."""
    pages = manager.pages
    reserve = pages.reserve

    def entered(row: Any, length: Any) -> None:
        had = int(pages.capacity[row]) // pages.page_size
        reserve(row, length)
        back = pages.physical_to_logical[row]
        pages.physical_to_logical[row] = torch.where(back >= had, back - had, back)

    pages.reserve = entered


@pytest.mark.parametrize("spoil", [another_row_looked_up, grown_from_the_start])
def test_a_planted_fault_is_convicted(build: Any, spoil: Any) -> None:
    verdict = build("torch-paged-cleared", spoil).replay(GROWS).verdict
    assert verdict is not None
    assert verdict.side is Side.KERNEL
