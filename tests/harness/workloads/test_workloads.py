"""Every workload hits exactly what it intends: counted by an infinite cache, and by a manager."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest

from kvassay.harness.contract import CacheKey
from kvassay.harness.registry import find
from kvassay.harness.workloads.branching import beam_search, tree_of_thought
from kvassay.harness.workloads.fresh import Fresh
from kvassay.harness.workloads.plan import Planned, Workload
from kvassay.harness.workloads.sessions import agents, multi_turn
from kvassay.harness.workloads.sharing import (
    few_shot,
    parallel_sampling,
    self_consistency,
    unrelated,
)

SMALL: dict[str, Callable[[int], Workload]] = {
    "few-shot": lambda seed: few_shot(
        seed, questions=9, example_tokens=37, question_tokens=(3, 9), output_tokens=5
    ),
    "self-consistency": lambda seed: self_consistency(
        seed, questions=4, samples=3, example_tokens=21, question_tokens=6, output_tokens=(1, 5)
    ),
    "parallel sampling": lambda seed: parallel_sampling(
        seed, prompts=3, samples=4, prompt_tokens=(1, 33), output_tokens=7
    ),
    "unrelated": lambda seed: unrelated(seed, prompts=12, prompt_tokens=(1, 40), output_tokens=3),
    "tree of thought": lambda seed: tree_of_thought(
        seed,
        problems=2,
        depth=3,
        branches=2,
        instruction_tokens=19,
        problem_tokens=5,
        thought_tokens=(1, 6),
    ),
    "beam search": lambda seed: beam_search(
        seed, prompts=2, width=3, steps=9, stride=2, prompt_tokens=17
    ),
    "multi-turn chat": lambda seed: multi_turn(
        seed, chats=3, turns=5, system_tokens=18, user_tokens=(1, 8), output_tokens=(1, 9)
    ),
    "agents": lambda seed: agents(
        seed,
        count=3,
        steps=9,
        system_tokens=20,
        task_tokens=5,
        call_tokens=(1, 4),
        result_tokens=(4, 12),
        summary_tokens=6,
        compact_above=60,
    ),
}


def counted(workload: Workload, block_size: int) -> list[int]:
    """Hits of an infinite cache of whole blocks, by looking all prefixes up."""
    resident: set[tuple[int, ...]] = set()
    hits = []
    for one in workload.requests:
        hit = 0
        while hit + block_size < len(one.prompt):
            if one.prompt[: hit + block_size] not in resident:
                break
            hit += block_size
        hits.append(hit)
        tokens = one.computed()
        ends = range(block_size, len(tokens) + 1, block_size)
        resident.update(tokens[:end] for end in ends)
    return hits


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("name", SMALL)
def test_an_infinite_cache_hits_what_is_intended(name: str, block_size: int) -> None:
    for seed in range(5):
        workload = SMALL[name](seed)
        hits = counted(workload, block_size)
        assert hits == [one.hit(block_size) for one in workload.requests]
        assert workload.hits(block_size) == sum(hits)
        assert workload.name == name


@pytest.mark.parametrize("name", SMALL)
def test_a_wrong_intention_would_show(name: str) -> None:
    workload = SMALL[name](0)
    changed = 0
    for one, hit in zip(workload.requests, counted(workload, 1), strict=True):
        if len(one.prompt) > 1:
            assert replace(one, shared=hit - 1 if hit else 1).hit() != hit == one.hit()
            changed += 1
    assert changed > 5


@pytest.mark.parametrize("block_size", [1, 4])
@pytest.mark.parametrize("name", SMALL)
def test_radix_hits_what_is_intended(name: str, block_size: int) -> None:
    workload = SMALL[name](1)
    (entry,) = find("radix")
    manager = entry.build(num_blocks=20000, block_size=block_size)
    for one in workload.requests:
        # A manager that matches tokens hits more than whole blocks.
        assert manager.admit(one.name, CacheKey(one.prompt)) == one.hit()
        manager.take_copies()
        answer = one.output[:-1]
        if answer:
            manager.append(one.name, answer)
        if len(one.computed()) > one.hit():
            manager.commit(one.name, len(one.computed()))
        manager.release(one.name)


@pytest.mark.parametrize("name", SMALL)
def test_the_same_seed_gives_the_same_tokens(name: str) -> None:
    one, again, other = SMALL[name](3), SMALL[name](3), SMALL[name](4)
    assert one == again
    assert one.requests != other.requests
    assert one.parameters["seed"] == one.seed == 3


@pytest.mark.parametrize("name", SMALL)
def test_requests_are_ordered_and_named_once(name: str) -> None:
    known: set[str] = set()
    for one in SMALL[name](0).requests:
        assert set(one.after) <= known
        assert one.name not in known
        assert 0 <= one.shared <= len(one.prompt)
        assert one.think_time >= 0
        known.add(one.name)


def test_hit_rates_are_those_of_the_formulas() -> None:
    one = few_shot(0, questions=5, example_tokens=30, question_tokens=10, output_tokens=2)
    assert one.hit_rate() == pytest.approx(4 * 30 / (5 * 40))
    two = self_consistency(
        0, questions=3, samples=4, example_tokens=30, question_tokens=10, output_tokens=2
    )
    assert two.hits() == 2 * 30 + 3 * 3 * 39
    assert two.prompt_tokens == 3 * 4 * 40
    three = parallel_sampling(0, prompts=3, samples=4, prompt_tokens=50, output_tokens=2)
    assert three.hit_rate() == pytest.approx(3 * 3 * 49 / (3 * 4 * 50))
    assert unrelated(0, prompts=3).hit_rate() == 0
    four = multi_turn(
        0, chats=2, turns=3, system_tokens=8, user_tokens=5, output_tokens=7, mean_think_time=0
    )
    assert four.hits() == 8 + 2 * sum(8 + 5 * turn + 7 * turn - 1 for turn in (1, 2))
    assert four.prompt_tokens == 2 * sum(8 + 5 * (turn + 1) + 7 * turn for turn in range(3))
    five = tree_of_thought(
        0,
        problems=2,
        depth=2,
        branches=3,
        instruction_tokens=20,
        problem_tokens=4,
        thought_tokens=6,
    )
    assert five.hits() == 20 + 2 * (2 * 23 + 9 * 29)
    six = beam_search(0, prompts=2, width=3, steps=4, stride=2, prompt_tokens=20)
    assert six.hits() == 2 * (2 * 19 + 3 * sum(19 + 2 * step for step in (1, 2, 3)))
    assert Workload("none", 0, ()).hit_rate() is None


def test_beams_end_and_branch() -> None:
    workload = beam_search(0, prompts=1, width=4, steps=12, stride=2, prompt_tokens=8)
    parents = [one.after[0] for one in workload.requests if one.after]
    names = {one.name for one in workload.requests if one.step < 11}
    assert len(set(parents)) < len(parents)
    assert names - set(parents)


def test_compaction_makes_contexts_shrink_and_keeps_the_task() -> None:
    workload = SMALL["agents"](0)
    by_name = {one.name: one for one in workload.requests}
    shrunk = 0
    for one in workload.requests:
        if one.after and len(one.prompt) < len(by_name[one.after[0]].prompt):
            shrunk += 1
            assert one.shared == 25
    assert shrunk > 2
    grown = agents(0, count=1, steps=5, compact_above=None, vocabulary=100).requests
    assert all(len(one.prompt) < len(two.prompt) for one, two in pairwise(grown))


def test_fresh_runs_begin_differently_and_end_with_the_vocabulary() -> None:
    fresh = Fresh(0, vocabulary=5)
    runs = [fresh.run((1, 3)) for _ in range(5)]
    assert len({run[0] for run in runs}) == 5
    assert {token for run in runs for token in run} <= set(range(5))
    with pytest.raises(ValueError, match="more than 5 parts: expected a larger vocabulary"):
        fresh.run(1)
    with pytest.raises(ValueError, match="length: expected at least 1 token, got 0"):
        Fresh(0).run(0)
    assert Fresh(0).seconds(0) == 0
    assert 0 < Fresh(0).seconds(5) < inf


def test_of_an_answer_the_last_token_has_no_kv() -> None:
    one = Planned("a", (1, 2, 3), (4, 5))
    assert one.computed() == (1, 2, 3, 4)
    assert replace(one, shared=3).hit() == 2
    assert replace(one, shared=3).hit(2) == 2
    assert replace(one, shared=1).hit(2) == 0
