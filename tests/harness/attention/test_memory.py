"""Memory that tells who wrote where."""

import torch

from kvassay.harness.attention.memory import Arena, on


def arena() -> Arena:
    return Arena(on("cpu"))


def test_nothing_written_is_no_damage() -> None:
    memory = arena()
    memory.tensor("query", (3, 4), torch.bfloat16).fill_(1.0)
    memory.remember()
    assert memory.damage() == []


def test_a_written_input_is_named() -> None:
    memory = arena()
    query = memory.tensor("query", (3, 4), torch.bfloat16).fill_(1.0)
    memory.remember()
    query[2, 3] = 2.0
    assert memory.damage() == ["the input query was written"]


def test_a_write_beside_an_input_is_named() -> None:
    memory = arena()
    query = memory.tensor("query", (3, 4), torch.bfloat16)
    memory.remember()
    query.as_strided((1,), (1,), query.storage_offset() + 12)[0] = 0.0
    assert memory.damage() == ["the input query was written"]


def test_an_output_may_be_written_and_nothing_beside_it() -> None:
    memory = arena()
    whole = memory.output("output", (3, 4), torch.float32)
    part = memory.writable(whole, whole[:, :3])
    assert torch.isnan(part).all()
    part.zero_()
    assert memory.damage() == []
    whole[1, 3] = 0.0
    assert memory.damage() == ["memory beside the buffer output was written"]


def test_a_nan_of_another_pattern_beside_it_is_seen() -> None:
    memory = arena()
    whole = memory.output("output", (2, 2), torch.float32)
    memory.writable(whole, whole[:1])
    whole[1, 1] = torch.nan
    assert memory.damage() == ["memory beside the buffer output was written"]
