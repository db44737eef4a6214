"""Misuse: wrong calls, and what an implementation that VALIDATES_INPUT does with them.

Each must raise `ValueError` or `KeyError` and change nothing: afterwards every live request reads
as before, the counts are the same, and the run goes on to hand out the whole pool. Where
VALIDATES_INPUT is not claimed the answers are reported apart and are no part of any verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kvassay.harness.checker import Checker
from kvassay.harness.contract import CacheKey, Capability, Span
from kvassay.harness.registry import Registration
from kvassay.harness.scenario import Admit, Append, Begin, Commit, Fork, Quiesce
from kvassay.harness.session import build
from kvassay.harness.violation import Crash, Violation

Call = Callable[[Any], object]
KEY = CacheKey((1, 2, 3))
BAD_KEYS: dict[str, CacheKey] = {
    "an empty prompt": CacheKey(()),
    "a negative token": CacheKey((1, -2)),
    "a token that is no int": CacheKey((1, 2.5)),  # type: ignore[arg-type]
    "a token that is a string": CacheKey(("1",)),  # type: ignore[arg-type]
}
BAD_SPANS: dict[str, tuple[Span, ...]] = {
    "a span past the end": (Span(2, 2, "x"),),
    "a span of no token": (Span(1, 0, "x"),),
    "a span before the start": (Span(-1, 1, "x"),),
    "overlapping spans": (Span(0, 2, "x"), Span(1, 1, "y")),
    "spans out of order": (Span(2, 1, "x"), Span(0, 1, "y")),
}


@dataclass(frozen=True)
class Answer:
    """What became of one wrong call."""

    misuse: str
    refused: bool
    problem: str = ""
    """What was wrong with the answer, if anything."""


def misuses(checker: Checker) -> Iterator[tuple[str, Call]]:
    """Wrong calls for a state in which ``a`` is live and written and ``gone`` was never there."""
    yield from _bad_admissions("admit", lambda m, name, key: m.admit(name, key))
    yield "append to an unknown request", lambda m: m.append("gone", [1])
    yield "append of no token", lambda m: m.append("a", [])
    yield "append of a negative token", lambda m: m.append("a", [1, -1])
    yield "append of a token that is no int", lambda m: m.append("a", [None])
    group = () if not checker.has(Capability.GROUPS) else (checker.manager.groups[0].name,)
    yield "block_table of an unknown request", lambda m: m.block_table("gone", *group)
    if group:
        yield "block_table in an unknown group", lambda m: m.block_table("a", "no such group")
    yield "release of an unknown request", lambda m: m.release("gone")
    yield "release with an unknown outcome", lambda m: m.release("a", "vanished")
    for capability, offered in _BY_CAPABILITY.items():
        if checker.has(capability):
            yield from offered(checker)


def _on(key: CacheKey, call: Callable[[Any, CacheKey], object]) -> Call:
    """`call` with a bad key already in its hand."""
    return lambda manager: call(manager, key)


def _bad_admissions(
    verb: str, call: Callable[[Any, str, Any], object]
) -> Iterator[tuple[str, Call]]:
    yield f"{verb} of a live request", lambda m: call(m, "a", KEY)
    yield f"{verb} of something that is no key", lambda m: call(m, "new", 7)
    yield f"{verb} under a name that is no string", lambda m: call(m, 7, KEY)  # type: ignore[arg-type]
    for what, key in BAD_KEYS.items():
        yield f"{verb} with {what}", _on(key, lambda m, bad: call(m, "new", bad))


def _commit(checker: Checker) -> Iterator[tuple[str, Call]]:
    length = checker.model.live["a"].length
    yield "commit of an unknown request", lambda m: m.commit("gone", 1)
    yield "commit of what is committed", lambda m: m.commit("a", length)
    yield "commit past the end", lambda m: m.commit("a", length + 1)
    yield "commit of no token", lambda m: m.commit("a", 0)
    yield "commit of a negative number", lambda m: m.commit("a", -1)


def _chunked(checker: Checker) -> Iterator[tuple[str, Call]]:
    yield from _bad_admissions("begin", lambda m, name, key: m.begin(name, key))
    yield "reserve for an unknown request", lambda m: m.reserve("gone", 1)
    yield "reserve of no token", lambda m: m.reserve("begun", 0)
    yield "reserve of a negative number", lambda m: m.reserve("begun", -1)
    yield "reserve past the prompt", lambda m: m.reserve("begun", 1000)
    yield "reserve for a request that is whole", lambda m: m.reserve("a", 1)
    yield "append before the prompt is reserved", lambda m: m.append("begun", [1])


def _drafts(checker: Checker) -> Iterator[tuple[str, Call]]:
    yield "accept of an unknown request", lambda m: m.accept("gone", 0)
    yield "accept without drafts", lambda m: m.accept("a", 1)
    yield "more drafts than tokens", lambda m: m.append("a", [1], drafts=2)
    yield "a negative number of drafts", lambda m: m.append("a", [1], drafts=-1)


def _fork(checker: Checker) -> Iterator[tuple[str, Call]]:
    yield "fork of an unknown request", lambda m: m.fork("gone", ["b"])
    yield "fork into nobody", lambda m: m.fork("a", [])
    yield "fork into itself", lambda m: m.fork("a", ["a"])
    yield "fork into one child twice", lambda m: m.fork("a", ["b", "b"])
    yield "fork into a live request", lambda m: m.fork("a", ["b", "child"])
    if checker.commits:
        yield "fork of an unwritten request", lambda m: m.fork("unwritten", ["b"])


def _truncate(checker: Checker) -> Iterator[tuple[str, Call]]:
    length = checker.model.live["a"].length
    yield "truncate of an unknown request", lambda m: m.truncate("gone", 1)
    yield "truncate to nothing", lambda m: m.truncate("a", 0)
    yield "truncate to a negative length", lambda m: m.truncate("a", -1)
    yield "truncate past the end", lambda m: m.truncate("a", length + 1)


def _evict(checker: Checker) -> Iterator[tuple[str, Call]]:
    yield "evict of no block", lambda m: m.evict(0)
    yield "evict of a negative number", lambda m: m.evict(-1)


def _reset(checker: Checker) -> Iterator[tuple[str, Call]]:
    yield "reset while requests are live", lambda m: m.reset()


def _query(checker: Checker) -> Iterator[tuple[str, Call]]:
    for what, key in BAD_KEYS.items():
        yield f"can_admit with {what}", _on(key, lambda m, bad: m.can_admit(bad))


def _peek(checker: Checker) -> Iterator[tuple[str, Call]]:
    for what, key in BAD_KEYS.items():
        yield f"peek with {what}", _on(key, lambda m, bad: m.peek(bad))


def _spans(checker: Checker) -> Iterator[tuple[str, Call]]:
    for what, spans in BAD_SPANS.items():
        key = CacheKey((1, 2, 3), spans=spans)
        yield f"admit with {what}", _on(key, lambda m, bad: m.admit("new", bad))


_BY_CAPABILITY: dict[Capability, Callable[[Checker], Iterator[tuple[str, Call]]]] = {
    Capability.COMMIT: _commit,
    Capability.CHUNKED: _chunked,
    Capability.DRAFTS: _drafts,
    Capability.FORK: _fork,
    Capability.TRUNCATE: _truncate,
    Capability.EVICT: _evict,
    Capability.RESET: _reset,
    Capability.QUERY: _query,
    Capability.PEEK: _peek,
    Capability.SPANS: _spans,
}


def prepared(registration: Registration, num_blocks: int, block_size: int) -> Checker:
    """A checker in the state that the wrong calls are made for."""
    checker = build(registration, num_blocks, block_size)
    for operation in (
        Admit("a", KEY),
        Commit("a"),
        Append("a", (4,)),
        Commit("a"),
        Fork("a", ("child",)),
        Admit("unwritten", CacheKey((7, 8, 9))),
        Begin("begun", CacheKey((1, 2, 3, 4, 5, 6, 7))),
    ):
        checker.step(operation)
    return checker


def answers(registration: Registration, num_blocks: int = 16, block_size: int = 2) -> list[Answer]:
    """Every wrong call, each on a state of its own.

    Raises what preparing the state raises, where the implementation does not get that far.
    """

    def state() -> Checker:
        return prepared(registration, num_blocks, block_size)

    names = [name for name, _ in misuses(state())]
    return [_answer(state(), number, name) for number, name in enumerate(names)]


def _answer(checker: Checker, number: int, name: str) -> Answer:
    call = list(misuses(checker))[number][1]
    before = _counts(checker)
    return judged(name, lambda: call(checker.manager), lambda: _damage(checker, before))


def judged(name: str, call: Callable[[], object], damage: Callable[[], str]) -> Answer:
    """What became of one wrong call; `damage` tells what it changed although it was refused."""
    try:
        call()
    except (ValueError, KeyError) as error:
        if not str(error):
            return Answer(name, True, "an error without a word")
    except Exception as error:
        return Answer(name, False, f"{type(error).__name__}: {error}")
    else:
        return Answer(name, False, "accepted")
    return Answer(name, True, damage())


def _counts(checker: Checker) -> object:
    return checker.manager.counters() if checker.has(Capability.COUNTERS) else None


def _damage(checker: Checker, before: object) -> str:
    """What the refused call changed, if anything."""
    if _counts(checker) != before:
        return f"counters changed from {before} to {_counts(checker)}"
    try:
        checker.step(Append("a", (5,)))
        checker.step(Quiesce())
    except (Violation, Crash) as verdict:
        return f"afterwards: {verdict}"
    return ""
