"""Misuse of an index: wrong calls, and what one that VALIDATES_INPUT does with them.

Each must raise `ValueError` or `KeyError` and change nothing: afterwards the walk and the counts
are the same, what is locked stays, and the rest can be evicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kvassay.harness.contract import CacheKey, Capability
from kvassay.harness.index.checker import IndexChecker
from kvassay.harness.index.scenario import Evict, Insert, Lock, Match, Unlock
from kvassay.harness.index.session import build
from kvassay.harness.misuse import BAD_KEYS, BAD_SPANS, Answer, judged
from kvassay.harness.registry import Registration
from kvassay.harness.scenario import Reset
from kvassay.harness.violation import Crash, Violation

Call = Callable[[Any], object]
PAGES = 6


def misuses(checker: IndexChecker) -> Iterator[tuple[str, Call]]:
    """Wrong calls for the state that `prepared` makes."""
    key = CacheKey(tuple(range(2 * checker.model.page_size)))
    yield from _bad_keys(checker, "match", lambda index, bad: index.match(bad))
    yield from _bad_keys(
        checker, "insert", lambda index, bad: index.insert(bad, [9] * len(bad.tokens))
    )
    yield (
        "insert with a value too few",
        lambda index: index.insert(key, [9] * (len(key.tokens) - 1)),
    )
    yield "insert with a value too many", lambda index: index.insert(key, [9] * 100)
    yield "insert with values that are no ints", lambda index: index.insert(key, ["x"] * 2)
    if checker.has(Capability.PEEK):
        yield from _bad_keys(checker, "peek", lambda index, bad: index.peek(bad))
    if checker.has(Capability.EVICT):
        yield "evict of no token", lambda index: index.evict(0)
        yield "evict of a negative number", lambda index: index.evict(-1)
    if checker.has(Capability.LOCK):
        yield from _bad_handles(checker)


def _bad_keys(
    checker: IndexChecker, verb: str, call: Callable[[Any, CacheKey], object]
) -> Iterator[tuple[str, Call]]:
    bad = {f"{verb} with {what}": key for what, key in BAD_KEYS.items()}
    if checker.has(Capability.SPANS):
        spanned = {what: CacheKey((1, 2, 3), spans=spans) for what, spans in BAD_SPANS.items()}
        bad |= {f"{verb} with {what}": key for what, key in spanned.items()}
    for name, key in bad.items():
        yield name, _with(call, key)


def _with(call: Callable[[Any, CacheKey], object], key: CacheKey) -> Call:
    return lambda index: call(index, key)


def _bad_handles(checker: IndexChecker) -> Iterator[tuple[str, Call]]:
    void = checker.readers["void"].handle
    yield "lock of a handle from before an insert", lambda index: index.lock(void)
    yield "unlock of a handle without a lock", lambda index: index.unlock(void)
    yield "lock of something that is no handle", lambda index: index.lock(7)
    yield "unlock of something that is no handle", lambda index: index.unlock(7)


def prepared(registration: Registration, capacity: int, page_size: int) -> IndexChecker:
    """A checker with one key stored, a reader of it that is out of date, and another key."""
    checker = build(registration, capacity, page_size)
    first, second = _keys(page_size)
    for operation in (Insert(first), Match("void", first), Insert(second)):
        checker.step(operation)
    return checker


def _keys(page_size: int) -> tuple[CacheKey, CacheKey]:
    return CacheKey(tuple(range(50, 50 + 2 * page_size))), CacheKey((3,) * page_size)


def answers(
    registration: Registration, num_blocks: int = PAGES, block_size: int = 2
) -> list[Answer]:
    """Every wrong call, each on a state of its own; blocks are pages."""

    def state() -> IndexChecker:
        return prepared(registration, max(num_blocks, PAGES) * block_size, block_size)

    names = [name for name, _ in misuses(state())]
    return [_answer(state(), number, name) for number, name in enumerate(names)]


def _answer(checker: IndexChecker, number: int, name: str) -> Answer:
    call = list(misuses(checker))[number][1]
    return judged(name, lambda: call(checker.tree), lambda: _damage(checker))


def _damage(checker: IndexChecker) -> str:
    """What the refused call changed, if anything."""
    first, _ = _keys(checker.model.page_size)
    after = (Match("a", first), Lock("a"), Evict(100), Match("b", first), Unlock("a"), Evict(100))
    try:
        for operation in (*after, Reset()):
            checker.step(operation)
    except (Violation, Crash) as verdict:
        return f"afterwards: {verdict}"
    return ""
