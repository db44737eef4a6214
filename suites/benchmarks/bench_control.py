"""Operations of the built-in managers and of the tree, timed by pytest-benchmark.

Ratios to an engine's own manager need both in one process, in turns: `kvassay bench control`.
"""

from __future__ import annotations

from random import Random

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from kvassay.harness.contract import CacheKey
from kvassay.harness.control.contract_stages import contender
from kvassay.harness.control.steps import VOCABULARY, Step, play, tokens
from kvassay.harness.registry import find

STEP = Step(64)
SHARED = tokens(Random(0), STEP.shared)
MANAGERS = ("radix", "paged")
NUM_BLOCKS = 6_000
"""Room for a batch of which nothing is shared."""


@pytest.mark.parametrize("name", MANAGERS)
def test_admission_and_release(benchmark: BenchmarkFixture, name: str) -> None:
    (registration,) = find(name)
    stages = contender(registration).build(NUM_BLOCKS, STEP.block_size, STEP.requests)
    rng, count = Random(1), 0

    def prompts() -> tuple[tuple[object, ...], dict[str, object]]:
        nonlocal count
        count += 1
        own = [[VOCABULARY + count, *tokens(rng, 127)] for _ in range(STEP.requests)]
        return (stages, [(f"{count}-{i}", SHARED + each) for i, each in enumerate(own)]), {}

    benchmark.extra_info["requests"] = STEP.requests
    benchmark.pedantic(play, setup=prompts, rounds=30, warmup_rounds=2)


@pytest.mark.parametrize("name", MANAGERS)
def test_decode_step(benchmark: BenchmarkFixture, name: str) -> None:
    (registration,) = find(name)
    stages = contender(registration).build(2 * NUM_BLOCKS, STEP.block_size, STEP.requests)
    own = [tokens(Random(i), 128) for i in range(STEP.requests)]
    handles = stages.prepare([(str(i), SHARED + each) for i, each in enumerate(own)])
    stages.look_up(handles)
    stages.reserve(handles)
    stages.publish(handles)
    benchmark.extra_info["requests"] = STEP.requests
    benchmark.pedantic(stages.append, args=(handles, 5), rounds=300, warmup_rounds=16)


def test_bare_match(benchmark: BenchmarkFixture) -> None:
    (registration,) = find("radix-index")
    index = registration.build(capacity=None, page_size=1)
    key = CacheKey(SHARED)
    index.insert(key, range(len(SHARED)))
    assert benchmark(index.match, key).length == len(SHARED)
