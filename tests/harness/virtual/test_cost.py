"""The cost model: numbers checked by hand, and the roofline of kernels as its oracle."""

from __future__ import annotations

from random import Random

import pytest

from kvassay.harness import roofline
from kvassay.harness.memory import lengths
from kvassay.harness.roofline import Ceiling, Shape
from kvassay.harness.virtual.cost import A100, H200, MACHINES, Cost, Machine, StepWork
from kvassay.harness.virtual.model import LLAMA_3_8B, LLAMA_3_70B, Model

PLAIN = Machine("plain", Ceiling(1e12, 1e14), 10**10, 1.0, 1.0, 0.5, 0.25, 0.125, "made up")
TINY = Model("tiny", 2, 8, 4, 2, 3, 16, 10, 2)


def work(*chunks: tuple[int, int, bool], entered: int = 0) -> StepWork:
    added = StepWork(entered)
    for chunk in chunks:
        added.add(*chunk)
    return added


def test_the_parts_of_a_small_model_by_hand() -> None:
    attention = 8 * 12 + 8 * 6 + 8 * 6 + 12 * 8  # queries, keys, values, output
    assert TINY.layer_parameters == 2 * (attention + 3 * 8 * 16)
    assert TINY.head_parameters == 80
    assert TINY.weight_bytes == 2 * (2 * (attention + 384) + 80)
    assert TINY.token_bytes == 2 * 2 * 2 * 3 * 2
    assert TINY.pair_flop == 4 * 2 * 4 * 3


def test_a_known_model_has_its_known_size() -> None:
    embeddings = LLAMA_3_8B.head_parameters
    assert (LLAMA_3_8B.layer_parameters + 2 * embeddings) / 1e9 == pytest.approx(8.03, abs=0.01)
    assert (LLAMA_3_70B.layer_parameters + 2 * LLAMA_3_70B.head_parameters) / 1e9 == pytest.approx(
        70.55, abs=0.05
    )
    assert LLAMA_3_8B.token_bytes == lengths.LLAMA_3_8B.token_bytes


def test_attention_is_that_of_the_kernels_roofline() -> None:
    rng = Random(3)
    ends = [(stop, rng.randint(1, stop)) for stop in (rng.randint(1, 500) for _ in range(20))]
    shape = Shape("", tuple(ends), TINY.heads, TINY.kv_heads, TINY.head_dim, TINY.head_dim)
    least = roofline.work(shape)
    added = work(*((stop - count, stop, True) for stop, count in ends))
    assert added.pairs * TINY.pair_flop == TINY.layers * least.flop
    assert added.keys * TINY.token_bytes == TINY.layers * least.kv_bytes


def test_seconds_of_a_step_by_hand() -> None:
    cost = Cost(TINY, PLAIN)
    step = work((0, 3, True), (7, 8, True), entered=1)
    flop = 4 * TINY.token_flop + 2 * TINY.head_flop + (6 + 8) * TINY.pair_flop
    moved = TINY.weight_bytes + (3 + 8 + 4) * TINY.token_bytes
    assert (cost.flop(step), cost.bytes(step)) == (flop, moved)
    roof = max(flop / 1e14, moved / 1e12)
    assert cost.seconds(step) == roof + 0.5 + 2 * 0.25 + 0.125


def test_decoding_is_bound_by_memory_and_prefill_by_products() -> None:
    cost = Cost(LLAMA_3_8B, H200)
    decode, prefill = work(*[(4000, 4001, True)] * 16), work((0, 8192, True))
    memory = cost.bytes(decode) / (4.3e12)
    products = cost.flop(prefill) / 790e12
    assert cost.seconds(decode) == pytest.approx(memory + 2e-3 + 16 * 5e-6)
    assert cost.seconds(prefill) == pytest.approx(products + 2e-3 + 5e-6)
    assert memory > cost.flop(decode) / 790e12
    assert products > cost.bytes(prefill) / 4.3e12


def test_the_order_of_chunks_changes_no_bit() -> None:
    rng = Random(5)
    chunks = [(start, start + rng.randint(1, 99), True) for start in rng.choices(range(999), k=50)]
    cost = Cost(LLAMA_3_8B, A100)
    assert cost.seconds(work(*chunks)) == cost.seconds(work(*reversed(chunks)))
    assert cost.seconds(work(*chunks)) != cost.seconds(work(*chunks[1:]))


def test_the_pool_is_what_the_weights_leave() -> None:
    room = 141e9 * 0.9 - LLAMA_3_8B.weight_bytes
    assert H200.pool_tokens(LLAMA_3_8B) == room // 131072
    assert A100.pool_tokens(LLAMA_3_70B) == 0


def test_every_machine_says_where_its_numbers_are_from() -> None:
    for machine in MACHINES.values():
        assert "data sheet" in machine.source
        assert "assumed" in machine.source
