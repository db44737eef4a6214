"""Traces as traffic: times out of coarse ticks, blocks as tokens that share what they should."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvassay.harness.replaying.stream import NoBlocks
from kvassay.harness.traces.request import TraceRequest
from kvassay.harness.virtual.traffic import Vocabulary, scaled, spread, ticks, traffic


def request(at: float, *blocks: int, tokens: int | None = None, output: int = 2) -> TraceRequest:
    length = 4 * len(blocks) if tokens is None else tokens
    return TraceRequest(length, output, at, blocks=blocks, block_tokens=4)


def common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    pairs = zip(left, right, strict=False)
    return next((n for n, (one, other) in enumerate(pairs) if one != other), len(left))


def test_spreads_a_tick_evenly_and_never_into_the_next() -> None:
    assert spread([0, 0, 0, 3, 6, 6]) == [0, 1, 2, 3, 6, 7.5]


def test_does_not_fill_a_pause() -> None:
    times = spread([0, 0, 3, 3, 6, 6, 100, 100])
    assert times == [0, 1.5, 3, 4.5, 6, 7.5, 100, 101.5]


def test_keeps_the_order_and_the_moments() -> None:
    arrivals = [0.0, 0, 1, 1, 1, 2.5, 2.5, 2.5, 2.5, 9]
    times = spread(arrivals)
    assert times == sorted(times)
    assert set(arrivals) <= set(times)
    assert len(set(times)) == len(times)


@pytest.mark.parametrize(
    ("arrivals", "coarse"), [([0, 0, 0, 3, 3, 3], True), ([0, 1, 2, 2], False)]
)
def test_tells_coarse_ticks(arrivals: list[float], coarse: bool) -> None:
    assert ticks(arrivals).coarse is coarse


def test_spreads_only_what_is_coarse_and_only_if_asked() -> None:
    coarse = [request(at, number) for number, at in enumerate((0, 0, 0, 2, 2, 2))]
    fine = [request(at, number) for number, at in enumerate((0, 1, 1, 2))]
    assert [one.at for one in traffic(coarse, speed=2)][:4] == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert [one.at for one in traffic(coarse, spread_ticks=False)] == [0, 0, 0, 2, 2, 2]
    assert [one.at for one in traffic(fine)] == [0, 1, 1, 2]


@pytest.mark.parametrize("encoding", [None, Vocabulary(1000)])
def test_prompts_share_the_blocks_of_the_trace_and_nothing_else(
    encoding: Vocabulary | None,
) -> None:
    asked = [request(0, 1, 2, 3), request(1, 1, 2, 4), request(2, 5, 2), request(3, 1, tokens=3)]
    prompts = [one.prompt for one in traffic(asked, encoding=encoding)]
    assert [len(prompt) for prompt in prompts] == [12, 12, 8, 3]
    assert common(prompts[0], prompts[1]) == 8
    assert common(prompts[0], prompts[2]) == 0
    assert common(prompts[0], prompts[3]) == 2


def test_a_whole_prompt_that_comes_again_differs_in_its_last_token() -> None:
    first, again = (one.prompt for one in traffic([request(0, 1, 2), request(1, 1, 2)]))
    assert common(first, again) == 7


def test_without_sharing_prompts_differ_from_their_first_token_on() -> None:
    asked = [request(0, 1, 2), request(1, 1, 2)]
    first, again = (one.prompt for one in traffic(asked, shared=False))
    assert common(first, again) == 0
    assert len(first) == 8


def test_what_is_generated_is_in_no_prompt() -> None:
    asked = [request(number, 1, number) for number in range(30)]
    for encoding in (None, Vocabulary(100)):
        load = list(traffic(asked, encoding=encoding))
        for one in load:
            others = {token for other in load if other is not one for token in other.prompt}
            assert one.token not in others
        assert len({one.token for one in load}) == 30


def test_the_vocabulary_holds_all_tokens_of_prompts() -> None:
    asked = [request(number, number, number + 1) for number in range(50)]
    for one in traffic(asked, encoding=Vocabulary(16)):
        assert set(one.prompt) <= set(range(16))


def test_what_generated_nothing_is_left_out() -> None:
    assert [one.name for one in traffic([request(0, 1, output=0), request(1, 2)])] == ["r0"]


def test_scaling_keeps_the_blocks() -> None:
    whole = request(0, 1, 2, 3, tokens=9, output=5)
    assert scaled(whole, 2) == replace(whole, input_tokens=5, output_tokens=3, block_tokens=2)
    with pytest.raises(ValueError, match="divisor of 4"):
        scaled(whole, 3)


def test_needs_block_ids() -> None:
    with pytest.raises(NoBlocks, match="lengths alone"):
        list(traffic([TraceRequest(5, 1, 0.0)]))
