"""Salted prompts share what they did and nothing with another run's; intended hits are counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvassay.harness.load.intended import KnownBlocks, intended_hits
from kvassay.harness.load.salting import salted
from kvassay.harness.load.workloads import WORKLOADS, generated, recorded
from kvassay.harness.workloads.plan import Planned
from kvassay.harness.workloads.sharing import few_shot, self_consistency, unrelated


@pytest.mark.parametrize("make", [few_shot, self_consistency, unrelated])
@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_intended_hits_are_those_the_workload_states(make: object, block_size: int) -> None:
    workload = make(3)  # type: ignore[operator]
    stated = [one.hit(block_size) for one in workload.requests]
    assert intended_hits(workload.requests, block_size) == stated
    assert intended_hits(salted(workload.requests, 7), block_size) == stated


def test_another_salt_shares_no_block_and_the_same_salt_all() -> None:
    requests = few_shot(0, questions=4).requests
    cache = KnownBlocks(16)
    first = [cache.hit_then_keep(one.prompt) for one in salted(requests, 1)]
    again = [cache.hit_then_keep(one.prompt) for one in salted(requests, 2)]
    same = [cache.hit_then_keep(one.prompt) for one in salted(requests, 1)]
    assert again == first == intended_hits(requests, 16)
    assert same == [(len(one.prompt) - 1) // 16 * 16 for one in requests]


def test_salting_keeps_lengths_and_names_and_refuses_foreign_ids() -> None:
    (one,) = salted([Planned("a", (1, 2, 1), (2,))], 5, vocabulary=4)
    assert one.name == "a"
    assert one.prompt[0] == one.prompt[2] != one.prompt[1] == one.output[0]
    with pytest.raises(ValueError, match="a: expected token ids below 4, got 4"):
        salted([Planned("a", (1,), (4,))], 5, vocabulary=4)


def test_one_token_is_always_left_to_compute() -> None:
    cache = KnownBlocks(2)
    assert cache.hit_then_keep((1, 2, 3, 4)) == 0
    assert cache.hit_then_keep((1, 2, 3, 4)) == 2
    assert cache.hit_then_keep((1, 2, 3, 4, 5)) == 4
    assert cache.hit_then_keep((9, 2, 3, 4, 5)) == 0
    with pytest.raises(ValueError, match="block_size: expected at least 1, got 0"):
        intended_hits([], 0)


def test_every_workload_has_a_name_and_takes_settings() -> None:
    for name in WORKLOADS:
        assert generated(name, 0, [], 32000).requests
    assert len(generated("few-shot", 0, ["questions=3"], 32000).requests) == 3
    chat = generated("multi-turn", 0, ["mean_think_time=0.5", "chats=2"], 32000)
    assert len(chat.requests) == 12


def test_a_trace_gives_equal_blocks_equal_tokens(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 5, "input_length": 1100, "output_length": 7, "hash_ids": [1, 2, 3]},
        {"timestamp": 9, "input_length": 1100, "output_length": 1, "hash_ids": [1, 2, 4]},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    workload, found = recorded(path, "mooncake", 0, 1000)
    first, second = workload.requests
    assert [len(one.prompt) for one in workload.requests] == [1100, 1100]
    assert first.prompt[:1024] == second.prompt[:1024]
    assert first.prompt[1024:] != second.prompt[1024:]
    assert (len(first.output), len(second.output)) == (7, 1)
    assert intended_hits(workload.requests, 16) == [0, 1024]
    assert len(found) == 2
    assert len(recorded(path, "mooncake", 0, 1000, 1)[0].requests) == 1
    with pytest.raises(ValueError, match="format: expected one of mooncake"):
        recorded(path, "csv", 0, 1000)
