"""vLLM's manager with drafts: what is kept, what is published, and two faults in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import util

import pytest
from convicting import convict, registered

from kvassay.harness.contract import CacheKey
from kvassay.impls.engines.vllm import INSTALL
from kvassay.impls.engines.vllm_drafts import DraftingVllmManager

pytestmark = pytest.mark.skipif(util.find_spec("vllm") is None, reason=f"needs vLLM: {INSTALL}")
STOCK = registered("kvassay.impls.engines.vllm_drafts", "vllm-drafts", blind=False)


class PublishesDrafts(DraftingVllmManager):
    """Caches blocks up to the last draft, as without the cap of ``request.num_tokens``."""

    def append(self, request: str, tokens: Sequence[int], drafts: int = 0) -> None:
        super().append(request, tokens, drafts)
        live, unverified = self._requests[request], self._drafts[request]
        known = len(live.block_hashes)
        live.append_output_token_ids(unverified)
        self._publish(live, live.num_tokens)
        for tokens_of in (live._output_token_ids, live._all_token_ids):
            del tokens_of[len(tokens_of) - len(unverified) :]
        del live.block_hashes[known:]


class CountsRejected(DraftingVllmManager):
    """Goes on behind rejected drafts: they stay in ``num_computed_tokens``."""

    def accept(self, request: str, num_tokens: int) -> None:
        live = self._requests[request]
        computed = live.num_computed_tokens
        super().accept(request, num_tokens)
        live.num_computed_tokens = computed


@pytest.fixture
def manager() -> DraftingVllmManager:
    manager = DraftingVllmManager(num_blocks=8, block_size=4)
    manager.admit("a", CacheKey(range(6)))
    manager.append("a", [6, 7, 8], drafts=2)
    return manager


def test_what_is_rejected_leaves_its_blocks_and_no_key(manager: DraftingVllmManager) -> None:
    assert len(manager.block_table("a")) == 3
    manager.accept("a", 0)
    assert len(manager.block_table("a")) == 3
    assert manager.peek(CacheKey(range(9))) == 4
    manager.append("a", [70, 80])
    assert manager.peek(CacheKey((*range(7), 70, 80))) == 8


def test_what_is_accepted_is_published(manager: DraftingVllmManager) -> None:
    assert manager.peek(CacheKey(range(9))) == 4
    manager.accept("a", 1)
    assert manager.peek(CacheKey(range(9))) == 8


@pytest.mark.parametrize(
    ("fault", "accepted"), [(PublishesDrafts, "P1 P2 P3 P4"), (CountsRejected, "A4 A7")]
)
def test_a_fault_is_convicted(fault: type[DraftingVllmManager], accepted: str) -> None:
    faulty = replace(STOCK, name=fault.__name__, factory=fault)
    convict(faulty, frozenset(accepted.split()), STOCK)
