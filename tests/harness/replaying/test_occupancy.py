"""Every slot is somewhere at every moment: by hand, as an identity, and through faulty managers."""

from __future__ import annotations

from random import Random

import pytest

from kvassay.harness.contract import ContractError
from kvassay.harness.memory.lengths import ModelShape
from kvassay.harness.registry import Registration, find
from kvassay.harness.replaying.occupancy import PARTS, Occupancy, occupancy
from kvassay.harness.replaying.stream import NoBlocks
from kvassay.harness.traces.request import TraceRequest

CONTROLS = "kvassay.impls.faulty.controls"
FAULTS = "kvassay.impls.faulty.managers"


def named(name: str, module: str = "") -> Registration:
    return next(entry for entry in find(module or name) if entry.name == name)


RADIX = named("radix")
HASHED = named("hashed", "kvassay.impls.faulty.hashed")


def asked(arrival: float, tokens: int, output: int, *ids: int, size: int = 4) -> TraceRequest:
    assert len(ids) == -(-tokens // size)
    return TraceRequest(tokens, output, arrival=arrival, blocks=ids, block_tokens=size)


def nonzero(got: Occupancy) -> dict[str, float]:
    return {part: value for part, value in got.parts.items() if value}


def test_a_cached_block_waits_to_be_hit_and_another_for_nothing() -> None:
    """10 tokens for 2 s, nobody for 3 s, then 6 tokens that begin alike for 1 s; 5 blocks of 4."""
    rows = [asked(7.0, 10, 2, 0, 1, 2), asked(12.0, 6, 1, 0, 3)]
    got = occupancy(HASHED, rows, 5, step_seconds=1.0)
    assert got.seconds == 6.0
    assert nonzero(got) == {
        "filled": 2 * 10 + 1 * 6,
        "slack": 2 * 2 + 1 * 2,
        "cached": 3 * 8 + 1 * 4,
        "free": 2 * 8 + 3 * 12 + 1 * 8,
    }
    assert (got.hit_again, got.for_nothing) == (3 * 4, 3 * 4 + 1 * 4)
    assert (got.requests, got.prompt_tokens, got.hit_tokens) == (2, 16, 4)
    assert got.share("filled") == pytest.approx(26 / (20 * 6))
    assert got.gib_seconds(got.parts["filled"], ModelShape("x", 1, 1, 1, 2**29)) == 26.0


def test_shared_blocks_are_filled_once_and_computed_twice_they_are_duplicates() -> None:
    rows = [asked(0.0, 9, 4, 0, 1, 2), asked(1.0, 9, 3, 0, 1, 3)]
    shared = occupancy(HASHED, rows, 8, step_seconds=1.0)
    assert nonzero(shared)["filled"] == 9 * 1 + (8 + 2) * 3
    assert "duplicate" not in nonzero(shared)
    at_finish = named("control-publish-at-finish", CONTROLS)
    twice = occupancy(at_finish, rows, 8, step_seconds=1.0)
    assert nonzero(twice)["filled"] == nonzero(shared)["filled"]
    assert nonzero(twice)["duplicate"] == 8 * 3


def test_who_finds_no_room_waits_and_is_timed() -> None:
    rows = [asked(0.0, 8, 5, 0, 1), asked(1.0, 8, 2, 2, 3), asked(1.5, 40, 1, *range(10, 20))]
    got = occupancy(RADIX, rows, 3, step_seconds=1.0)
    assert (got.requests, got.waited, got.waited_seconds, got.refused) == (2, 1, 4.0, 1)
    assert got.seconds == 7.0


def test_look_ahead_and_leaks_are_seen_where_they_are() -> None:
    rows = [asked(float(number), 6, 2, 9 * number, 9 * number + 1) for number in range(6)]
    plain = occupancy(HASHED, rows, 16, step_seconds=1.0)
    assert (plain.parts["ahead"], plain.parts["leaked"]) == (0, 0)
    ahead = occupancy(named("control-lookahead", CONTROLS), rows, 16, step_seconds=1.0)
    assert ahead.parts["ahead"] == 6 * 2 * 4
    assert ahead.parts["leaked"] == 0
    leaking = occupancy(named("fault-tail-leaked", FAULTS), rows, 16, step_seconds=1.0)
    assert leaking.parts["leaked"] > 0


@pytest.mark.parametrize("entry", [RADIX, HASHED, named("paged")], ids=lambda entry: entry.name)
def test_the_parts_are_the_pool_at_every_moment(entry: Registration) -> None:
    seen = dict.fromkeys(PARTS, 0)
    moments: list[dict[str, int]] = []

    def look(time: float, parts: dict[str, int]) -> None:
        moments.append(parts)

    for seed in range(10):
        rng, time, rows = Random(seed), 0.0, []
        for _ in range(40):
            time += rng.expovariate(1.0)
            tokens = rng.randint(1, 30)
            first = rng.randrange(3)
            ids = [10 * first + place for place in range(-(-tokens // 4))]
            rows.append(asked(time, tokens, rng.randint(1, 6), *ids))
        got = occupancy(entry, rows, 20, step_seconds=1.0, watch=look)
        assert got.slots == 80
        while moments:
            parts = moments.pop()
            assert tuple(parts) == PARTS
            assert sum(parts.values()) == 80
            assert min(parts.values()) >= 0
            for part, slots in parts.items():
                seen[part] += slots
        assert sum(map(got.share, PARTS)) == pytest.approx(1)
        assert 0 <= got.hit_again <= got.parts["cached"] + 1e-9
        assert bool(got.hit_again) == (entry.name != "paged")
        assert got.parts["leaked"] == got.parts["ahead"] == 0
        assert got.requests + got.refused == 40
    assert seen["filled"] > 0 < seen["slack"]


def test_the_manager_must_count_and_the_trace_must_have_ids_and_a_clock() -> None:
    (contiguous,) = (entry for entry in find("contiguous") if "Manager" in entry.kind.__name__)
    with pytest.raises(ContractError, match="contiguous does not declare COUNTERS"):
        occupancy(contiguous, [asked(0.0, 4, 1, 0)], 4, 1.0)
    with pytest.raises(NoBlocks, match="lengths alone"):
        occupancy(RADIX, [TraceRequest(4, 1, arrival=0.0)], 4, 1.0)
    with pytest.raises(NoBlocks, match="got none"):
        occupancy(RADIX, [], 4, 1.0)
    with pytest.raises(ValueError, match="times of single sessions"):
        occupancy(RADIX, [asked(5.0, 4, 1, 0), asked(0.0, 4, 1, 0)], 4, 1.0)


def test_prompts_that_are_equal_differ_in_their_last_token_only() -> None:
    rows = [asked(0.0, 8, 1, 0, 1), asked(5.0, 8, 1, 0, 1)]
    assert occupancy(RADIX, rows, 8, step_seconds=1.0).hit_tokens == 7
    assert occupancy(HASHED, rows, 8, step_seconds=1.0).hit_tokens == 4
