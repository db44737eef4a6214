"""Large token ids get small names, each its own, and are told again by them."""

from __future__ import annotations

from kvassay.impls.engines.token_names import TokenNames


def test_what_fits_stays_as_it_is() -> None:
    names, tokens = TokenNames(10), (0, 10)
    assert names.ids(tokens) is tokens
    assert names.ids(()) == ()
    assert names.tokens((0, 10)) == (0, 10)


def test_each_large_token_has_one_name_and_comes_back_by_it() -> None:
    names = TokenNames(10)
    first, second = names.ids((3, 1 << 61, 11)), names.ids((11, 1 << 61))
    assert list(first) == [3, 11, 12]
    assert list(second) == [12, 11]
    assert names.tokens(first) == (3, 1 << 61, 11)
