"""Keys: whatever way one is made, it is a legal key, and equal contents have equal lengths."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.harness.contract import CacheKey, Declaration, Span
from kvassay.harness.keys import KeySource, cut, longest
from kvassay.reference.tags import spans_fit

EVERYTHING = ("salt", "adapter", "spans")
WAYS = ("_again", "extended", "_cut", "changed", "_recombined", "_renamed")


def source(seed: int, block_size: int = 3, capabilities: tuple[str, ...] = EVERYTHING) -> KeySource:
    return KeySource(Random(seed), block_size, Declaration(capabilities))


def legal(key: CacheKey) -> bool:
    return (
        len(key.tokens) > 0
        and min(key.tokens) >= 0
        and "" not in (key.salt, key.adapter)
        and spans_fit(key.spans, len(key.tokens))
        and all(int(span.content[1:]) == span.length for span in key.spans)
    )


def test_illegal_keys_would_be_noticed() -> None:
    assert legal(CacheKey((1, 2), spans=(Span(0, 2, "x2"),)))
    for key in (
        CacheKey(()),
        CacheKey((-1,)),
        CacheKey((1,), salt=""),
        CacheKey((1,), spans=(Span(0, 2, "x2"),)),
        CacheKey((1, 2), spans=(Span(0, 2, "x1"),)),
    ):
        assert not (len(key.tokens) and legal(key))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 5))
def test_drawn_keys_are_legal_generation_after_generation(seed: int, block_size: int) -> None:
    keys = source(seed, block_size)
    for _ in range(30):
        key = keys.draw(keys.rng.randint(1, 12))
        assert legal(key)
        keys.remember(key)
    assert len(keys.known) <= 10


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_variation_keeps_keys_legal(way: str, seed: int) -> None:
    keys = source(seed)
    for _ in range(6):
        keys.remember(keys._renamed(keys.fresh(keys.rng.randint(1, 9)), 0))
    for key in list(keys.known):
        varied = getattr(keys, way)(key, keys.rng.randint(1, 12))
        assert legal(varied)
        if way == "changed":
            assert varied.tokens != key.tokens
        if way in ("extended", "_cut"):
            shorter, other = sorted((key.tokens, varied.tokens), key=len)
            assert other[: len(shorter)] == shorter


@pytest.mark.parametrize("capability", EVERYTHING)
def test_components_appear_exactly_where_they_are_honoured(capability: str) -> None:
    def drawn(*capabilities: str) -> set[str]:
        seen = set()
        for seed in range(60):
            keys = source(seed, capabilities=capabilities)
            for _ in range(20):
                key = keys.draw(6)
                keys.remember(key)
                seen |= {part for part in EVERYTHING if getattr(key, part)}
        return seen

    assert drawn(capability) == {capability}
    assert drawn() == set()


def test_a_cut_leaves_out_the_spans_it_cuts_through() -> None:
    key = CacheKey((1, 2, 3, 4), "s", "l", (Span(0, 2, "x2"), Span(2, 2, "y2")))
    assert cut(key, 4) == key
    assert cut(key, 3) == CacheKey((1, 2, 3), "s", "l", (Span(0, 2, "x2"),))
    assert cut(key, 1) == CacheKey((1,), "s", "l")


def test_longest_is_by_tokens() -> None:
    assert longest([CacheKey((1,)), CacheKey((1, 2)), CacheKey(())]).tokens == (1, 2)


def test_one_seed_draws_one_sequence() -> None:
    def sequence(seed: int) -> list[CacheKey]:
        keys = source(seed)
        return [keys.draw(5) for _ in range(10)]

    assert sequence(3) == sequence(3)
    assert sequence(3) != sequence(4)
