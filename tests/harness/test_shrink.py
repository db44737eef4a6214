"""Shrinking: with a predicate whose smallest witness is known, that witness is found."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.harness.contract import CacheKey, Outcome
from kvassay.harness.scenario import (
    Admit,
    Append,
    Begin,
    Commit,
    Drain,
    Fork,
    Operation,
    Release,
    Scenario,
)
from kvassay.harness.shrink import shrink


def names(scenario: Scenario) -> list[str]:
    return [each.request for each in scenario.operations if isinstance(each, Release)]


def contains(whole: Sequence[str], part: Sequence[str]) -> bool:
    rest = iter(whole)
    return all(each in rest for each in part)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 99), st.sampled_from("abcd")), max_size=30),
)
def test_only_what_is_needed_remains_in_its_order(
    needed: list[str], noise: list[tuple[int, str]]
) -> None:
    padded = list(needed)
    for place, name in noise:
        padded.insert(place % (len(padded) + 1), name)
    start = Scenario(5, 4, tuple(Release(name) for name in padded))

    def fails(candidate: Scenario) -> bool:
        return contains(names(candidate), needed)

    smallest = shrink(start, fails)
    assert names(smallest) == needed
    assert smallest.num_blocks == 1


def test_arguments_become_as_simple_as_the_failure_allows() -> None:
    def fails(candidate: Scenario) -> bool:
        kept = candidate.operations
        return (
            candidate.num_blocks >= 3
            and any(isinstance(o, Admit) and len(o.key.tokens) >= 3 and o.key.salt for o in kept)
            and any(isinstance(o, Append) for o in kept)
            and any(isinstance(o, Fork) for o in kept)
            and any(isinstance(o, Release) for o in kept)
        )

    operations: list[Operation] = [
        Begin("z", CacheKey((9,))),
        Admit("a", CacheKey(tuple(range(70, 81)), salt="s", adapter="l")),
        Commit("a"),
        Fork("a", ("b", "c", "d")),
        Append("a", (80, 90, 95, 96), drafts=2),
        Release("a", Outcome.ABORTED),
        Drain(),
    ]
    start = Scenario(12, 4, tuple(operations))
    assert fails(start)
    assert shrink(start, fails).operations == (
        Admit("a", CacheKey((0, 1, 2), salt="s")),
        Fork("a", ("b",)),
        Append("a", (3,)),
        Release("a"),
    )
    assert shrink(start, fails).num_blocks == 3


def test_what_cannot_be_smaller_stays_as_it_is() -> None:
    start = Scenario(2, 4, (Admit("a", CacheKey((7, 8))), Release("a")))
    assert shrink(start, lambda candidate: candidate == start) == start


def test_every_candidate_is_a_scenario_with_operations() -> None:
    seen: list[Scenario] = []

    def fails(candidate: Scenario) -> bool:
        seen.append(candidate)
        return True

    smallest = shrink(Scenario(9, 4, tuple(Release(name) for name in "abcdef")), fails)
    assert len(smallest.operations) == 1
    assert all(candidate.operations for candidate in seen)


def test_without_time_the_first_failure_stands() -> None:
    start = Scenario(2, 4, (Release("a"), Release("b")))
    assert shrink(start, lambda _: True, seconds=-1.0).operations == start.operations
    assert len(shrink(start, lambda _: True).operations) == 1
