"""What is held, counted in closed form and step by step, alone and in a full pool."""

from __future__ import annotations

from collections import deque
from random import Random

import numpy as np
import pytest

from kvassay.harness.memory.lengths import LLAMA_3_8B, Lengths, ModelShape, lengths_of, power_of_two
from kvassay.harness.memory.reserving import (
    MAX,
    ORACLE,
    POLICIES,
    POWER_OF_TWO,
    Contiguous,
    Paged,
    Policy,
    Use,
    at_the_end,
    over_life,
)
from kvassay.harness.memory.saturated import saturate
from kvassay.harness.traces.request import TraceRequest

Pair = tuple[int, int]
SIZES = (*POLICIES, Paged(1), Paged(3))
LIMIT = 64


def drawn(seed: int, count: int = 30) -> list[Pair]:
    rng = Random(seed)
    return [(rng.randint(1, 40), rng.randint(1, 24)) for _ in range(count)]


def arrays(pairs: list[Pair]) -> Lengths:
    table = np.array(pairs, dtype=np.int64)
    return Lengths(table[:, 0].copy(), table[:, 1].copy())


def run_of(policy: Contiguous, prompt: int, output: int) -> int:
    rounded = next(2**n for n in range(20) if 2**n >= output)
    return {
        MAX.name: LIMIT,
        POWER_OF_TWO.name: min(LIMIT, prompt + rounded),
        ORACLE.name: prompt + output,
    }[policy.name]


def slots(policy: Policy, prompt: int, output: int, length: int) -> int:
    """Held at this length by a request of these lengths."""
    if isinstance(policy, Contiguous):
        return run_of(policy, prompt, output)
    return -(-length // policy.block_size) * policy.block_size


def naive(policy: Policy, pairs: list[Pair], *, last_only: bool = False) -> Use:
    filled = later = never = 0
    for prompt, output in pairs:
        final = prompt + output
        for length in range(final if last_only else prompt + 1, final + 1):
            held = slots(policy, prompt, output, length)
            filled += length
            later += min(held, final) - length
            never += max(0, held - final)
    return Use(filled, later, never)


@pytest.mark.parametrize("policy", SIZES, ids=lambda policy: policy.name)
def test_closed_forms_are_what_is_counted_step_by_step(policy: Policy) -> None:
    for seed in range(10):
        pairs = drawn(seed)
        assert over_life(policy, arrays(pairs), LIMIT) == naive(policy, pairs)
        assert at_the_end(policy, arrays(pairs), LIMIT) == naive(policy, pairs, last_only=True)


def test_one_request_worked_out_by_hand() -> None:
    """Prompt 5, output 3: lengths 6, 7, 8 in blocks of 4 are 8, 8, 8 slots."""
    one = arrays([(5, 3)])
    assert over_life(Paged(4), one, 16) == Use(filled=21, later=3, never=0)
    assert over_life(ORACLE, one, 16) == Use(21, 3, 0)
    assert over_life(POWER_OF_TWO, one, 16) == Use(21, 3, 3)
    assert over_life(MAX, one, 16) == Use(21, 3, 24)
    assert at_the_end(MAX, one, 16) == Use(8, 0, 8)
    assert at_the_end(MAX, one, 16).waste == 0.5
    assert at_the_end(Paged(5), one, 16) == Use(8, 0, 2)


def test_a_limit_is_not_below_the_longest_request() -> None:
    with pytest.raises(ValueError, match="limit: expected at least 8, the longest request, got 7"):
        over_life(MAX, arrays([(5, 3)]), 7)
    assert arrays([(5, 3), (1, 8)]).limit() == 16
    assert [power_of_two(n) for n in (1, 2, 3, 4, 5, 1025)] == [1, 2, 4, 4, 8, 2048]


def test_gib_seconds_follow_from_the_shape() -> None:
    assert LLAMA_3_8B.token_bytes == 128 * 1024
    gib = ModelShape("x", 1, 1, 1, 2**29)
    assert Use(3, 2, 1).gib_seconds(gib, 0.5) == (1.5, 1.0, 0.5)


def test_requests_that_generated_nothing_have_no_life() -> None:
    got = lengths_of([TraceRequest(5, 0), TraceRequest(6, 2)])
    assert (got.prompt.tolist(), got.output.tolist()) == ([6], [2])
    with pytest.raises(ValueError, match="expected requests that generated tokens"):
        lengths_of([TraceRequest(5, 0)])


# -------------------------------------------------------------------------------------- full pools


def played(policy: Policy, pairs: list[Pair], pool: int) -> tuple[int, Use, int, int]:
    """Steps, use, request-steps and preemptions, one slot and one step at a time."""
    queue, live = deque(pairs), list[list[int]]()  # live: prompt, final, length, start of the run
    taken = [False] * pool
    steps = request_steps = preempted = filled = later = never = 0

    def held_of(one: list[int], length: int) -> int:
        return slots(policy, one[0], one[1] - one[0], length)

    def admit() -> bool:
        prompt, output = queue[0]
        need = slots(policy, prompt, output, prompt)
        if isinstance(policy, Paged):
            used = sum(held_of(one, one[2]) for one in live)
            if used + need > pool // policy.block_size * policy.block_size:
                return False
            start = -1
        else:
            starts = (s for s in range(pool - need + 1) if not any(taken[s : s + need]))
            start = next(starts, -1)
            if start < 0:
                return False
            taken[start : start + need] = [True] * need
        queue.popleft()
        live.append([prompt, prompt + output, prompt, start])
        return True

    while True:
        while queue and admit():
            pass
        if not queue:
            return steps, Use(filled, later, never), request_steps, preempted
        if isinstance(policy, Paged):
            whole = pool // policy.block_size * policy.block_size
            while sum(held_of(one, one[2] + 1) for one in live) > whole:
                _, final, length, _ = live.pop()
                queue.appendleft((length, final - length))
                preempted += 1
        steps += 1
        request_steps += len(live)
        for one in live:
            one[2] += 1
            held = held_of(one, one[2])
            filled += one[2]
            later += min(held, one[1]) - one[2]
            never += max(0, held - one[1])
            if one[2] == one[1] and one[3] >= 0:
                taken[one[3] : one[3] + held] = [False] * held
        live[:] = [one for one in live if one[2] < one[1]]


@pytest.mark.parametrize("policy", SIZES, ids=lambda policy: policy.name)
def test_a_full_pool_is_what_is_played_step_by_step(policy: Policy) -> None:
    preempted = 0
    for seed in range(8):
        pairs, pool = drawn(seed, 40), 64 * (2 + seed % 3)
        got = saturate(policy, arrays(pairs), LIMIT, pool)
        assert (got.steps, got.use, got.request_steps, got.preempted) == played(policy, pairs, pool)
        assert got.unfit == 0
        assert got.live == got.request_steps / got.steps
        parts = (got.use.filled, got.use.later, got.use.never)
        assert sum(map(got.share, parts)) + got.free == pytest.approx(1)
        assert 0 <= got.free < 1
        preempted += got.preempted
    if policy == Paged(8):
        assert preempted > 0
    if isinstance(policy, Contiguous):
        assert preempted == 0


def test_requests_that_fit_no_empty_pool_are_left_out_and_counted() -> None:
    pairs = [(40, 9), (3, 4), (5, 4), (6, 2)]
    for policy in (ORACLE, Paged(4)):
        assert saturate(policy, arrays(pairs), LIMIT, 12).unfit == 1
        with pytest.raises(ValueError, match="expected one that holds a request, but none fits"):
            saturate(policy, arrays(pairs), LIMIT, 3)


def test_preempted_tokens_are_counted() -> None:
    got = saturate(Paged(1), arrays([(4, 6), (2, 6), (9, 1)]), LIMIT, 10)
    assert got.preempted >= 1
    assert got.recomputed >= 2
