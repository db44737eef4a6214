"""Replays through managers agree with the policies that they declare, to the last hit.

The agentic trace through `radix` (10 s) runs with ``--long`` only.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from kvassay.harness.contract import (
    CacheKey,
    CacheManager,
    Capability,
    Declaration,
    Outcome,
    OutOfBlocks,
)
from kvassay.harness.registry import Registration, find
from kvassay.harness.replaying.encoding import BLOCK_SIZE, encoded
from kvassay.harness.replaying.policies import flat_lru, infinite
from kvassay.harness.replaying.replay import Replayed, replay

Draw = Callable[[Random, int, int], list[list[int]]]


def named(name: str, module: str = "") -> Registration:
    return next(entry for entry in find(module or name) if entry.name == name)


RADIX = named("radix")
HASHED = named("hashed", "kvassay.impls.faulty.hashed")
CONTROLS = "kvassay.impls.faulty.controls"
FAULTS = "kvassay.impls.faulty.managers"


# ------------------------------------------------------------------------------------- real traces


@pytest.mark.parametrize("capacity", [1000, 10000, 100000])
@pytest.mark.parametrize(
    "name",
    [
        "mooncake_fast25_conversation/all_ids",
        "mooncake_fast25_conversation/full_blocks_only",
        "mooncake_fast25_synthetic/all_ids",
    ],
)
def test_radix_hits_what_is_listed(listed: Any, name: str, capacity: int) -> None:
    stats = listed.counts[name]
    got = replay(RADIX, listed.stream(name), capacity)
    assert got.hits == stats["lru"][str(capacity)]["tail_evicted_first_hits"]
    assert (got.requests, got.blocks) == (stats["requests"], stats["block_refs"])
    assert got.ceiling == stats["infinite_hits"] == got.hits + got.missed
    assert (got.refused, got.false, got.waited) == (0, 0, 0)
    resident = min(capacity, stats["unique_blocks"])
    assert got.evictions == got.blocks - got.hits - resident


@pytest.mark.long
def test_radix_hits_what_is_listed_of_the_agentic_trace(listed: Any) -> None:
    name = "agentic/one_conversation_after_another"
    stats = listed.counts[name]
    got = replay(RADIX, listed.stream(name), 100000)
    assert got.hits == stats["lru"]["100000"]["tail_evicted_first_hits"]
    assert (got.requests, got.blocks) == (stats["requests"], stats["block_refs"])
    assert (got.refused, got.false, got.missed) == (0, 0, 0)


@pytest.mark.long
@pytest.mark.parametrize(("capacity", "refused"), [(1000, 3344), (10000, 58)])
def test_prompts_larger_than_the_pool_are_refused(listed: Any, capacity: int, refused: int) -> None:
    name = "agentic/one_conversation_after_another"
    got = replay(RADIX, listed.stream(name), capacity)
    assert (got.refused, got.requests) == (refused, 4326 - refused)
    assert got.blocks + got.refused_blocks == listed.counts[name]["block_refs"]
    assert got.false == 0


# ------------------------------------------------------------------------------------ small streams


def longest(stream: list[list[int]]) -> int:
    return max(map(len, stream))


@pytest.mark.parametrize("registration", [RADIX, HASHED], ids=lambda entry: entry.name)
def test_serial_replays_count_what_the_policy_counts(
    random_prompts: Draw, registration: Registration
) -> None:
    pressed = 0
    for seed in range(40):
        rng = Random(seed)
        stream = random_prompts(rng, rng.choice([8, 30]), 60)
        capacity = longest(stream) + rng.choice([0, 1, 5])
        got = replay(registration, stream, capacity)
        assert got.counts == flat_lru(stream, capacity), seed
        assert got.ceiling == infinite(stream).hits == got.hits + got.missed
        assert (got.false, got.refused, got.waited) == (0, 0, 0)
        pressed += bool(got.evictions)
    assert pressed > 20


def test_a_manager_that_evicts_heads_first_counts_as_that_policy(random_prompts: Draw) -> None:
    head_first = named("control-head-first", CONTROLS)
    other = 0
    for seed in range(20):
        stream = random_prompts(Random(seed), 30, 60)
        capacity = longest(stream) + 2
        got = replay(head_first, stream, capacity).counts
        assert got == flat_lru(stream, capacity, tail_first=False)
        other += got != flat_lru(stream, capacity)
    assert other > 10


def test_a_wrong_victim_shows_as_another_count(random_prompts: Draw) -> None:
    stream = random_prompts(Random(0), 30, 200)
    capacity = longest(stream) + 2
    got = replay(named("fault-wrong-victim", FAULTS), stream, capacity).counts
    assert got != flat_lru(stream, capacity)


def test_what_is_published_at_the_end_is_expected_then() -> None:
    at_finish = named("control-publish-at-finish", CONTROLS)
    stream = [[0, 1], [0, 1], [0, 1]]
    serial = replay(at_finish, stream, 10)
    assert (serial.hits, serial.ceiling, serial.missed) == (4, 4, 0)
    together = replay(at_finish, stream, 20, concurrency=3)
    assert (together.hits, together.ceiling, together.missed) == (0, 0, 0)
    assert replay(RADIX, stream, 20, concurrency=3).hits == 4


def test_without_a_prefix_cache_everything_is_missed() -> None:
    got = replay(named("paged"), [[0, 1], [0, 1]], 10)
    assert (got.hits, got.ceiling, got.missed, got.evictions) == (0, 2, 2, 0)
    assert got.cached_share == 0.0


# -------------------------------------------------------------------------------------- small pools


def test_prompts_larger_than_a_pool_are_counted_and_the_rest_goes_on() -> None:
    got = replay(RADIX, [[0], [0, 1, 2], [0], [0, 3]], 2)
    assert (got.requests, got.refused, got.refused_blocks) == (3, 1, 3)
    assert (got.blocks, got.hits, got.ceiling) == (4, 2, 2)


def test_a_pool_of_one_block_holds_one_block() -> None:
    got = replay(RADIX, [[0], [0], [1], [0], [0, 1]], 1)
    assert got.counts == flat_lru([[0], [0], [1], [0]], 1)
    assert (got.hits, got.refused, got.evictions) == (1, 1, 2)
    with pytest.raises(ValueError, match="expected at least 1 block and 1 request, got 0, 1"):
        replay(RADIX, [], 0)


# -------------------------------------------------------------------------------------- concurrency


def test_live_requests_pin_their_blocks() -> None:
    stream = [[0, 1], [2, 3], [4, 5], [0, 1]]
    alone = replay(RADIX, stream, 11, concurrency=1)
    together = replay(RADIX, stream, 11, concurrency=4)
    assert (alone.most_used, together.most_used) == (3, 10)
    assert alone.hits == together.hits == 2
    assert alone.used_share == pytest.approx(3 / 12)
    assert together.used_share == pytest.approx((3 + 6 + 9 + 10) / 4 / 12)


def test_who_finds_no_room_waits_for_the_oldest_to_leave() -> None:
    stream = [[0, 1], [2, 3], [4, 5], [2, 3]]
    got = replay(RADIX, stream, 5, concurrency=4)
    assert (got.waited, got.refused, got.requests) == (2, 0, 4)
    assert got.most_used == 6
    assert got.hits == 2  # 2, 3 are pinned by the second while the third makes room


def test_prompts_computed_twice_at_once_are_no_evictions() -> None:
    got = replay(RADIX, [[0, 1]] * 4, 30, concurrency=4)
    assert (got.evictions, got.hits) == (0, 6)


# -------------------------------------------------------------------------- managers with one fault


class Plain:
    """Grants everything, caches nothing, and says what it is told to."""

    answer = 0

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.live: set[str] = set()

    def admit(self, request: str, key: CacheKey) -> int:
        if len(key.tokens) > self.num_blocks * self.block_size:
            raise OutOfBlocks
        self.live.add(request)
        return self.answer

    def append(self, request: str, tokens: Any) -> None: ...

    def block_table(self, request: str) -> list[int]:
        return []

    def release(self, request: str, outcome: Outcome = Outcome.FINISHED) -> None:
        self.live.remove(request)


def plain(factory: type[Plain], *capabilities: Capability) -> Registration:
    return Registration("plain", CacheManager, factory, Declaration(frozenset(capabilities)))


def test_hits_of_what_nobody_published_are_false() -> None:
    class Liar(Plain):
        answer = BLOCK_SIZE

    got = replay(plain(Liar), [[0, 1], [0, 1], [5]], 10)
    assert (got.hits, got.ceiling, got.false, got.missed) == (3, 2, 2, 1)
    honest = replay(plain(Plain), [[0, 1], [0, 1], [5]], 10)
    assert (honest.hits, honest.false, honest.missed) == (0, 0, 2)


def test_what_is_not_counted_is_none() -> None:
    got = replay(plain(Plain), [[0]], 10)
    assert (got.evictions, got.most_used, got.used_share, got.cached_share) == (None,) * 4
    assert got.counts.ratio == 0.0
    assert replay(plain(Plain), [[0] * 30], 10).counts.ratio is None


def test_any_other_error_ends_the_replay() -> None:
    class Broken(Plain):
        def admit(self, request: str, key: CacheKey) -> int:
            raise RuntimeError("no idea")

    with pytest.raises(RuntimeError, match="no idea"):
        replay(plain(Broken), [[0]], 10)


def test_everybody_has_left_at_the_end_and_somebody_may_watch() -> None:
    seen: list[int] = []
    built: list[Plain] = []

    class Kept(Plain):
        def __init__(self, num_blocks: int, block_size: int) -> None:
            super().__init__(num_blocks, block_size)
            built.append(self)

    def watch(totals: Replayed) -> None:
        seen.append(totals.requests)

    replay(plain(Kept), [[0], [1], [2]], 10, concurrency=2, watch=watch)
    assert seen == [1, 2, 3]
    assert [manager.live for manager in built] == [set()]


def test_blocks_differ_from_their_first_token_on_and_tails_are_nobody_elses() -> None:
    assert encoded([3, 4], 7) == [6, 6, 8, 8, 15]
    assert encoded([], 0) == [1]
    seen = [tuple(encoded([id], number)) for id in range(5) for number in range(5)]
    assert len({tokens[0] for tokens in seen}) == 5
    assert not {tokens[0] for tokens in seen} & {tokens[-1] for tokens in seen}


@pytest.mark.parametrize(
    "registration",
    [
        RADIX,
        HASHED,
        named("control-publish-at-finish", CONTROLS),
        named("control-remap", CONTROLS),
        named("control-may-evict", CONTROLS),
        named("control-watermark", CONTROLS),
        named("control-lookahead", CONTROLS),
        named("control-row-limit", CONTROLS),
        named("control-evict-all", CONTROLS),
        named("control-drop-one", CONTROLS),
    ],
    ids=lambda entry: entry.name,
)
def test_right_managers_have_no_false_hits_however_many_are_live(
    random_prompts: Draw, registration: Registration
) -> None:
    hits = waited = 0
    for seed in range(30):
        rng = Random(seed)
        stream = random_prompts(rng, rng.choice([6, 25]), 50)
        capacity = longest(stream) + rng.choice([2, 8, 40])
        got = replay(registration, stream, capacity, concurrency=rng.choice([1, 2, 5]))
        assert got.false == 0
        assert got.hits + got.missed == got.ceiling
        assert got.requests + got.refused == len(stream)
        assert got.evictions is not None
        assert 0 <= got.evictions <= got.blocks - got.hits + got.requests
        hits += got.hits
        waited += got.waited
    assert hits > 50
    assert waited > 0
