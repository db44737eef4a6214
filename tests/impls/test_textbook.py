"""The bundled solution of the exercise: the facts of the classroom, and its three mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvassay.harness.campaign import Budget, Campaign, Geometry, Outcome
from kvassay.harness.registry import Registration
from kvassay.harness.scenario import Append
from kvassay.harness.textbook import recognise
from kvassay.impls import textbook
from kvassay.impls.textbook import KVCacheManager, Request, SimpleRadixCache
from kvassay.suites.textbook.pool import check_pool
from kvassay.suites.textbook.radix import check_radix

# ---------------------------------------------------------------------------- facts, spelt out


def prefilled(num_blocks: int, prompt_len: int) -> tuple[KVCacheManager, Request]:
    pool, req = KVCacheManager(num_blocks, 4, head_dim=1), Request("A", prompt_len)
    pool.allocate_for_prefill(req)
    return pool, req


def test_a_prompt_of_6_takes_2_of_10_blocks_and_9_tokens_take_a_third() -> None:
    pool, req = prefilled(10, 6)
    assert (len(req.block_table), len(pool.free_blocks)) == (2, 8)
    taken = []
    for _ in range(3):
        pool.allocate_for_decode(req)
        taken.append((req.seq_len, len(req.block_table)))
    assert taken == [(7, 2), (8, 2), (9, 3)]


def test_a_prompt_of_4_and_one_decode_take_a_second() -> None:
    pool, req = prefilled(10, 4)
    assert len(req.block_table) == 1
    pool.allocate_for_decode(req)
    assert len(req.block_table) == 2


def test_a_pool_of_one_block_refuses_a_prompt_of_5() -> None:
    with pytest.raises(RuntimeError, match="OOM"):
        prefilled(1, 5)


def test_reading_back_cuts_the_last_block_off() -> None:
    pool, req = prefilled(10, 6)
    req.block_table = [7, 2]
    for position in range(8):
        pool.physical_kv_cache[req.block_table[position // 4]][position % 4] = [float(position)]
    assert pool.get_physical_cache(req) == [[0.0], [1.0], [2.0], [3.0], [4.0], [5.0]]


def test_the_longest_prefix_and_what_is_left() -> None:
    cache = SimpleRadixCache()
    for entry in ([0, 1, 2, 3], [0, 1, 2, 3, 4], [9, 9, 9]):
        cache.insert(entry)
    assert cache.match_prefix([0, 1, 2, 3, 4, 5]) == 5
    assert cache.split_prompt([0, 1, 2, 3, 4, 5]) == ([0, 1, 2, 3, 4], [5], 5)
    assert cache.match_prefix([7, 6, 5]) == 0


# ------------------------------------------------------------------------------------- mistakes


def test_the_suite_finds_the_facts_right_and_the_mistakes_wrong() -> None:
    assert check_pool(KVCacheManager, Request) == []
    assert check_radix(SimpleRadixCache) == []
    beyond = check_pool(KVCacheManager, Request, beyond=True)
    assert [problem.fact for problem in beyond] == [
        "with blocks of one token, every decode takes a block",
        "a refused decode leaves the length as it was",
    ]
    assert [problem.fact for problem in check_radix(SimpleRadixCache, beyond=True)] == [
        "what entries have in common is stored once",
        "entries can leave",
    ]


def campaign(registration: Registration, block_size: int) -> Outcome:
    return Campaign(registration, "allocator", Budget(150), Geometry(None, block_size)).run()


@pytest.mark.parametrize(("block_size", "operations"), [(1, 2), (4, 4)])
def test_the_assay_convicts_each_mistake_and_nothing_else(block_size: int, operations: int) -> None:
    """Blocks of one token: admit, append. Else: fill the pool, be refused, make room, try again."""
    (registration,) = recognise(textbook, Path(textbook.__file__ or ""))
    outcome = campaign(registration, block_size)
    assert list(outcome.findings) == ["A7"]
    finding = outcome.findings["A7"]
    assert finding.scenario.num_counted <= operations + 1
    assert isinstance(finding.scenario.operations[-1], Append)
