"""Laws are found again from what they give, and nothing is found where there is none."""

from __future__ import annotations

import pytest

from kvassay.harness.contract import Declaration
from kvassay.harness.fitted_law import Law, fitted, lengths


@pytest.mark.parametrize(
    "law",
    [Law(0, 1, 16), Law(1, 1, 16), Law(0, 0, 16), Law(0, 1, 1), Law(0, 3, 4), Law(2, 1, 8)],
    ids=str,
)
def test_a_law_is_found_again(law: Law) -> None:
    assert fitted({length: law.hits(length) for length in lengths(16)}) == law


def test_a_reserve_of_more_than_a_unit_is_a_drop() -> None:
    observed = {length: Law(0, 17, 16).hits(length) for length in lengths(16)}
    assert fitted(observed) == Law(1, 1, 16)


def test_one_hit_that_follows_no_law_leaves_none() -> None:
    observed = {length: Law(0, 1, 16).hits(length) for length in lengths(16)}
    assert fitted({**observed, 33: 16}) is None


def test_without_hits_the_unit_is_larger_than_all_that_was_asked() -> None:
    assert fitted(dict.fromkeys(lengths(4), 0)) not in (None, Law(0, 1, 4))


def test_the_declared_law() -> None:
    assert str(Law.declared(Declaration(drop=1), 16)) == "unit 16, reserve 1, drop 1"
