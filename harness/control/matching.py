"""A bare look-up in a tree by itself, side by side: how many leading tokens of a list are stored.

Every sample starts from a Python list of tokens, all of them stored. What the contract asks on top
(values, a handle) is left out where an adapter has a method ``bare_match(tokens)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from kvassay.harness.contract import CacheKey, PrefixIndex
from kvassay.harness.control.pairing import Watch, turns, undisturbed
from kvassay.harness.control.steps import WrongHits, tokens
from kvassay.harness.registry import Registration

LOOK_UPS = 100
"""Look-ups in a sample of 1,024 tokens; fewer of longer ones."""

Match = Callable[[list[int]], int]


def match_times(
    registrations: Sequence[Registration],
    length: int,
    rounds: int,
    *,
    page_size: int = 16,
    watch: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Seconds per look-up, round by round.

    Raises `ValueError` for what is no PrefixIndex or a length below a page, `WrongHits` for one
    that does not find all whole pages.
    """
    if length < page_size:
        raise ValueError(f"length: expected at least a page of {page_size}, got {length}")
    stored = tokens(Random(0), length)
    matches = {each.name: matcher(each, stored, page_size) for each in registrations}
    expected = length // page_size * page_size
    for name, match in matches.items():
        if match(stored) != expected:
            raise WrongHits(f"{name}: expected {expected} tokens, got {match(stored)}")
    count = max(1, LOOK_UPS * 1024 // max(length, 1024))
    seconds: dict[str, list[float]] = {name: [] for name in matches}
    with undisturbed():
        for number in range(rounds + 1):
            for name in turns(list(matches), number):
                asked, match = [list(stored) for _ in range(count)], matches[name]
                lap = Watch()
                for each in asked:
                    match(each)
                if number:
                    seconds[name].append(lap.lap() / count)
            watch()
    return seconds


def matcher(registration: Registration, stored: list[int], page_size: int) -> Match:
    """A bare look-up in a new tree that holds `stored`; `ValueError` for what is no tree."""
    if registration.kind is not PrefixIndex:
        kind = registration.kind.__name__
        raise ValueError(f"{registration.name}: expected a PrefixIndex, got a {kind}")
    index = registration.build(capacity=None, page_size=page_size)
    index.insert(CacheKey(stored), list(range(page_size, page_size + len(stored))))
    bare: Match | None = getattr(index, "bare_match", None)
    if bare is not None:
        return bare
    return lambda asked: int(index.match(CacheKey(asked)).length)
