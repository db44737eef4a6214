"""The classroom exercise: a paged KV cache and a prefix cache in a page of Python each.

Each test asks a solution for one fact. The last tests of each half go beyond the exercise; its
usual solution fails them, so that failing is expected there, and is explained.
"""

import pytest

from kvassay.harness.textbook import Exercise
from kvassay.suites.textbook import pool, radix
from kvassay.suites.textbook.checks import Check

# ------------------------------------------------------------------ KVCacheManager and Request


def test_a_prompt_takes_the_blocks_that_it_fills(exercise: Exercise) -> None:
    require_pool(exercise, pool.prompt_takes_blocks)


def test_a_decode_takes_a_block_only_at_a_boundary(exercise: Exercise) -> None:
    require_pool(exercise, pool.decode_takes_a_block_at_the_boundary)


def test_a_decode_after_a_full_block_takes_another(exercise: Exercise) -> None:
    require_pool(exercise, pool.full_block_then_decode)


def test_all_lengths(exercise: Exercise) -> None:
    require_pool(exercise, pool.every_length)


def test_a_prompt_too_long_says_oom(exercise: Exercise) -> None:
    require_pool(exercise, pool.prompt_out_of_memory)


def test_a_decode_without_a_free_block_says_oom(exercise: Exercise) -> None:
    require_pool(exercise, pool.decode_out_of_memory)


def test_a_refused_prompt_keeps_no_block(exercise: Exercise) -> None:
    require_pool(exercise, pool.refused_prompt_leaks_nothing)


def test_a_block_has_one_owner(exercise: Exercise) -> None:
    require_pool(exercise, pool.blocks_have_one_owner)


def test_reading_back_gives_the_rows_in_order(exercise: Exercise) -> None:
    require_pool(exercise, pool.reads_back)


def test_beyond_blocks_of_one_token(exercise: Exercise) -> None:
    require_pool(exercise, pool.blocks_of_one_token)


def test_beyond_a_refused_decode_keeps_the_length(exercise: Exercise) -> None:
    require_pool(exercise, pool.refused_decode_keeps_the_length)


# ---------------------------------------------------------------------------- SimpleRadixCache


def test_the_longest_prefix_counts(exercise: Exercise) -> None:
    require_radix(exercise, radix.longest_match)


def test_a_prompt_is_split(exercise: Exercise) -> None:
    require_radix(exercise, radix.splits_the_prompt)


def test_an_unknown_prompt_matches_nothing(exercise: Exercise) -> None:
    require_radix(exercise, radix.stranger_matches_nothing)


def test_nothing_counts_past_a_difference(exercise: Exercise) -> None:
    require_radix(exercise, radix.stops_at_the_first_difference)


def test_beyond_entries_share(exercise: Exercise) -> None:
    require_radix(exercise, radix.entries_share)


def test_beyond_entries_leave(exercise: Exercise) -> None:
    require_radix(exercise, radix.entries_leave)


# ------------------------------------------------------------------------------------- verdicts


def require_pool(exercise: Exercise, check: Check) -> None:
    if exercise.pool_class is None:
        pytest.skip("no class KVCacheManager here")
    require(exercise, check)


def require_radix(exercise: Exercise, check: Check) -> None:
    if exercise.radix_class is None:
        pytest.skip("no class SimpleRadixCache here")
    require(exercise, check)


def require(exercise: Exercise, check: Check) -> None:
    """Pass, or end the test with what is wrong; beyond the exercise, that is expected."""
    problem = check.problem(exercise)
    if problem is None:
        return
    if check.beyond:
        pytest.xfail(str(problem))
    pytest.fail(str(problem), pytrace=False)
