"""What transformers' pool and hash do where a caller breaks their preconditions.

As for SGLang (`test_sglang_preconditions`): no defects, since continuous batching keeps them, but
what an adapter has to know. The names are those of `results/findings/README.md`.
"""

from __future__ import annotations

import inspect
from importlib import util
from typing import Any

import pytest

from kvassay.impls.engines.transformers_attention import INSTALL
from kvassay.impls.engines.transformers_cache import NAME, TransformersManager

pytestmark = pytest.mark.skipif(
    util.find_spec("transformers") is None, reason=f"needs transformers: {INSTALL}"
)


@pytest.fixture
def pool() -> Any:
    """A pool of 8 blocks, all of them handed to its only allocator and free."""
    manager = TransformersManager(num_blocks=8, block_size=4)
    index = manager.engine.cache_allocators[NAME].index
    pool = manager.engine.pool
    while pool.num_free_sectors:
        pool.allocate_sector(index)
    pool.index = index
    return pool


def test_h7_a_page_is_known_by_64_bits_of_its_tokens_and_nothing_else() -> None:
    from transformers.generation.continuous_batching.cache_allocators import cache_allocator

    known_by = cache_allocator.compute_block_hash
    assert list(inspect.signature(known_by).parameters) == ["parent_hash", "tokens"]
    assert 0 <= known_by(None, [1, 2]) < 1 << 64
    assert known_by(None, [1, 2]) != known_by(known_by(None, [0, 0]), [1, 2])
    with pytest.raises(OverflowError):
        known_by(None, [1 << 31])


@pytest.mark.parametrize(("times", "free"), [(1, 8), (2, 9)])
def test_h9_a_second_free_is_counted(pool: Any, times: int, free: int) -> None:
    (block,) = pool.get_free_blocks(pool.index, 1)
    for _ in range(times):
        pool.free_blocks(pool.index, [block])
    assert pool.count_free_blocks(pool.index) == free
