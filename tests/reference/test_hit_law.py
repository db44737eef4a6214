"""The hit law against trying every number of units, and against vLLM's published numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.reference.hit_law import hit_law


@settings(max_examples=500, deadline=None)
@given(
    length=st.integers(1, 40),
    resident=st.integers(0, 45),
    unit=st.integers(1, 9),
    reserve=st.integers(0, 5),
    drop=st.integers(0, 3),
)
def test_counts_the_most_whole_units_that_fit(
    length: int, resident: int, unit: int, reserve: int, drop: int
) -> None:
    fitting = [n for n in range(50) if n * unit <= resident and n * unit + reserve <= length]
    kept = fitting[-1] - drop if fitting and fitting[-1] > drop else 0
    assert hit_law(length, resident, unit=unit, reserve=reserve, drop=drop) == kept * unit


@pytest.mark.parametrize(
    ("length", "resident", "law", "hit"),
    [
        (16, 16, {"unit": 4}, 12),  # vLLM: a full hit leaves the last block to compute
        (17, 16, {"unit": 4}, 16),
        (18, 18, {"unit": 4, "drop": 1}, 12),  # vLLM with EAGLE: one block less
        (18, 18, {"unit": 4}, 16),
        (16, 16, {"unit": 1}, 15),
        (16, 16, {"unit": 1, "reserve": 0}, 16),
        (3, 2, {"unit": 4}, 0),
        (4, 4, {"unit": 4, "drop": 3}, 0),
        (1, 1, {"unit": 1, "reserve": 3}, 0),
    ],
)
def test_published_numbers(length: int, resident: int, law: dict[str, int], hit: int) -> None:
    assert hit_law(length, resident, **law) == hit


def test_a_unit_has_at_least_one_token() -> None:
    assert hit_law(4, 4, unit=1) == 3
    with pytest.raises(ValueError, match="got 0"):
        hit_law(4, 4, unit=0)
