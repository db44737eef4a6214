"""Blocks of another size are equal where the tokens are."""

from __future__ import annotations

from random import Random

import pytest

from kvassay.harness.replaying.stream import NoBlocks
from kvassay.harness.sweep.resizing import BadBlockSize, resized
from kvassay.harness.traces.request import TraceRequest

RECORDED = 8


def tokens_of(ids: list[int]) -> list[int]:
    """Prefix ids as contents: a block's tokens are its own."""
    return [RECORDED * id + place for id in ids for place in range(RECORDED)]


def requests(seed: int, prefix_ids: bool) -> list[TraceRequest]:
    """Paths in a tree, each with a partial last block of its own."""
    rng, made = Random(seed), []
    paths = [[0]]
    for number in range(30):
        path = list(rng.choice(paths))
        path = path[: rng.randint(1, len(path))]
        path += [1 + number * 8 + place for place in range(rng.randint(0, 3))]
        paths.append(path)
        length = RECORDED * len(path) + rng.randrange(1, RECORDED)
        blocks = [*path, 10_000 + number]
        made.append(
            TraceRequest(length, 1, blocks=blocks, block_tokens=RECORDED, prefix_ids=prefix_ids)
        )
    return made


@pytest.mark.parametrize("prefix_ids", [True, False])
@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 24])
@pytest.mark.parametrize("seed", range(5))
def test_ids_are_equal_where_prefixes_are(seed: int, size: int, prefix_ids: bool) -> None:
    made = requests(seed, prefix_ids)
    prefixes: dict[tuple[int, ...], int] = {}
    for one, (ids, length) in zip(made, resized(made, size), strict=True):
        assert length == one.input_tokens
        assert len(ids) == one.input_tokens // size
        assert one.blocks is not None
        tokens = tokens_of(list(one.blocks))[: one.input_tokens]
        for place, id in enumerate(ids):
            prefix = tuple(tokens[: size * (place + 1)])
            assert prefixes.setdefault(prefix, id) == id
    assert len(set(prefixes.values())) == len(prefixes)


def test_a_size_fits_or_is_refused() -> None:
    with pytest.raises(BadBlockSize, match=r"block size 3: expected .* the trace's own, 8"):
        list(resized(requests(0, True), 3))
    with pytest.raises(NoBlocks):
        list(resized([TraceRequest(10, 1)], 8))
