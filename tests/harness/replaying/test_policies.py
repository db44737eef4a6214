"""Policies count what is listed for the real traces, and what brute force counts for small ones.

Of the agentic trace one capacity is replayed by default, and all of it with ``--long`` (40 s).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from random import Random
from typing import Any

import pytest

from kvassay.harness.replaying.counts import Counts
from kvassay.harness.replaying.optimum import optimum
from kvassay.harness.replaying.policies import flat_lru, infinite, leaf_lru
from kvassay.harness.replaying.stream import NoBlocks, Prompt, prompts, segment_prompts
from kvassay.harness.traces.request import Segment, TraceRequest

Draw = Callable[[Random, int, int], list[list[int]]]
CAPACITIES = (1000, 10000, 100000)
MOONCAKE = (
    "mooncake_fast25_conversation/all_ids",
    "mooncake_fast25_conversation/full_blocks_only",
    "mooncake_fast25_synthetic/all_ids",
)
AGENTIC = "agentic/one_conversation_after_another"
CASES = [
    *((name, capacity) for name in MOONCAKE for capacity in CAPACITIES),
    (AGENTIC, 10000),
    pytest.param(AGENTIC, 1000, marks=pytest.mark.long),
    pytest.param(AGENTIC, 100000, marks=pytest.mark.long),
]


def expected(stats: dict[str, Any], capacity: int, order: str) -> Counts:
    hits = stats["lru"][str(capacity)][f"{order}_evicted_first_hits"]
    return Counts(stats["requests"], stats["block_refs"], hits)


def test_every_listed_case_is_replayed(listed: Any) -> None:
    assert set(listed.counts) == {*MOONCAKE, AGENTIC}
    for stats in listed.counts.values():
        assert sorted(map(int, stats["lru"])) == list(CAPACITIES)


@pytest.mark.parametrize(("name", "capacity"), CASES)
def test_flat_lists_count_what_is_listed(listed: Any, name: str, capacity: int) -> None:
    stats, stream = listed.counts[name], list(listed.stream(name))
    assert flat_lru(stream, capacity) == expected(stats, capacity, "tail")
    assert flat_lru(stream, capacity, tail_first=False) == expected(stats, capacity, "head")


@pytest.mark.parametrize("name", [*MOONCAKE, AGENTIC])
def test_the_ceiling_is_what_is_listed(listed: Any, name: str) -> None:
    stats = listed.counts[name]
    got = infinite(listed.stream(name))
    assert got.hits == stats["infinite_hits"] == stats["block_refs"] - stats["unique_blocks"]
    assert got.ratio == pytest.approx(stats["infinite_hit_ratio"], abs=5e-7)


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("name", [*MOONCAKE, pytest.param(AGENTIC, marks=pytest.mark.long)])
def test_leaves_count_what_flat_lists_do(listed: Any, name: str, capacity: int) -> None:
    assert leaf_lru(listed.stream(name), capacity) == expected(
        listed.counts[name], capacity, "tail"
    )


@pytest.mark.parametrize("name", [*MOONCAKE, pytest.param(AGENTIC, marks=pytest.mark.long)])
def test_the_optimum_lies_between_lru_and_the_ceiling(listed: Any, name: str) -> None:
    stats, stream = listed.counts[name], list(listed.stream(name))
    found = [optimum(stream, capacity).hits for capacity in CAPACITIES]
    assert found == sorted(found)
    for capacity, hits in zip(CAPACITIES, found, strict=True):
        assert expected(stats, capacity, "tail").hits <= hits <= stats["infinite_hits"]
    assert found[0] > expected(stats, CAPACITIES[0], "tail").hits
    assert found[0] < stats["infinite_hits"]


# ---------------------------------------------------------------------------- small, by brute force


def leading(prompt: Sequence[int], resident: Iterable[int]) -> int:
    return next((n for n, id in enumerate(prompt) if id not in resident), len(prompt))


def naive_lru(stream: list[list[int]], capacity: int, tail_first: bool) -> int:
    order: list[int] = []
    hits = 0
    for prompt in stream:
        hits += leading(prompt, order)
        for id in prompt[::-1] if tail_first else prompt:
            order = [other for other in order if other != id] + [id]
        order = order[-capacity:]
    return hits


def best(stream: Sequence[Sequence[int]], capacity: int) -> int:
    """Over all choices of what stays after each prompt."""
    reached = {frozenset[int](): 0}
    for prompt in stream:
        after: dict[frozenset[int], int] = {}
        for resident, hits in reached.items():
            gained = hits + leading(prompt, resident)
            held = resident | set(prompt)
            for kept in map(frozenset, combinations(held, min(capacity, len(held)))):
                after[kept] = max(after.get(kept, 0), gained)
        reached = after
    return max(reached.values())


@pytest.mark.parametrize("seed", range(60))
def test_small_streams_count_what_brute_force_counts(random_prompts: Draw, seed: int) -> None:
    rng = Random(seed)
    stream = random_prompts(rng, rng.choice([3, 8, 20]), 40)
    capacity = rng.choice([1, 2, 4, 7])
    for tail_first in (True, False):
        got = flat_lru(stream, capacity, tail_first=tail_first)
        assert got.hits == naive_lru(stream, capacity, tail_first)
    assert leaf_lru(stream, capacity) == flat_lru(stream, capacity)
    assert infinite(stream) == flat_lru(stream, 100)


def test_the_optimum_is_the_best_of_all_choices(random_prompts: Draw) -> None:
    strict = 0
    for seed in range(60):
        rng = Random(seed)
        stream = random_prompts(rng, rng.choice([4, 6]), rng.choice([6, 9]))
        capacity = rng.choice([1, 2, 3])
        got = optimum(stream, capacity).hits
        assert got == best(stream, capacity), (seed, stream, capacity)
        strict += flat_lru(stream, capacity).hits < got < infinite(stream).hits
    assert strict > 5


def test_a_known_stream() -> None:
    stream = [[0, 1, 2], [3], [0, 1, 2], [3]]
    assert flat_lru(stream, 3) == Counts(4, 8, 2)  # 2 made room for 3, and 3 for 2
    assert flat_lru(stream, 3, tail_first=False) == Counts(4, 8, 0)  # 0 made room for 3
    assert optimum(stream, 3) == Counts(4, 8, 3)
    assert infinite(stream) == Counts(4, 8, 4)
    assert infinite([]).ratio is None


def test_a_capacity_is_at_least_one_block() -> None:
    for policy in (flat_lru, leaf_lru, optimum):
        assert policy([[0, 1]] * 2, 1).hits == 1
        with pytest.raises(ValueError, match="capacity: expected at least 1 block, got 0"):
            policy([], 0)


# ------------------------------------------------------------------------------------------ streams


def asked(*ids: int, tokens: int = 8, prefix_ids: bool = True) -> TraceRequest:
    return TraceRequest(tokens, 1, blocks=ids, block_tokens=4, prefix_ids=prefix_ids)


def test_ids_of_contents_become_ids_of_prefixes() -> None:
    rows = [asked(7, 7, 5, prefix_ids=False), asked(5, prefix_ids=False), asked(7, 5)]
    one, other, prefix = prompts(rows)
    assert len({*one, *other}) == 4
    assert list(prefix) == [7, 5]
    again = list(prompts([rows[0], asked(7, 7, 6, prefix_ids=False)]))
    assert again[0][:2] == again[1][:2]
    assert again[0][2] != again[1][2]


def test_full_blocks_only_leaves_out_the_partial_one() -> None:
    assert list(prompts([asked(0, 1, 2, tokens=9)], full_only=True)) == [(0, 1)]
    assert list(prompts([asked(0, 1, 2, tokens=9)])) == [(0, 1, 2)]


def test_a_trace_without_ids_is_refused() -> None:
    with pytest.raises(NoBlocks, match="request 1: lengths alone"):
        list(prompts([asked(1), TraceRequest(3, 4)]))


def test_segments_are_a_stream_too() -> None:
    def made(*ids: int) -> TraceRequest:
        return TraceRequest(9, 1, segments=tuple(Segment(id, 3, "history") for id in ids))

    stream: list[Prompt] = list(segment_prompts([made(4, 5), made(5, 4), made(4, 5)]))
    assert infinite(stream) == Counts(3, 6, 2)


def test_listed_counts_are_as_they_are_stored(listed: Any) -> None:
    """The comparison above can fail: one hit more or less is another count."""
    stats = json.loads(json.dumps(listed.counts[MOONCAKE[0]]))
    stats["lru"]["1000"]["tail_evicted_first_hits"] += 1
    got = flat_lru(listed.stream(MOONCAKE[0]), 1000)
    assert got != expected(stats, 1000, "tail")
