"""The event mirror: look-ups from events alone, counting, and events that cannot be applied."""

from __future__ import annotations

from typing import Any

import pytest

from kvassay.harness.contract import CacheEvent, CacheKey, Declaration, EventKind, Span
from kvassay.harness.mirror import Mirror
from kvassay.harness.violation import Anomaly, Violation
from kvassay.reference.model import CacheModel


def mirror(**declared: Any) -> Mirror:
    return Mirror(CacheModel(8, 2, Declaration(capabilities=["prefix_cache"], **declared)))


def stored(entries: str, tokens: tuple[int, ...], parent: str | None = None, **key: Any) -> Any:
    return CacheEvent(EventKind.STORED, tuple(entries), parent, tokens, **key)


def removed(entries: str) -> CacheEvent:
    return CacheEvent(EventKind.REMOVED, tuple(entries))


CLEARED = CacheEvent(EventKind.CLEARED)


def test_answers_like_a_cache_that_holds_what_was_stored() -> None:
    mirrored = mirror()
    assert mirrored.look_up(CacheKey((1, 2, 3))) == 0
    mirrored.take([stored("xy", (1, 2, 3, 4)), stored("z", (5, 6), parent="x")])
    assert mirrored.look_up(CacheKey((1, 2, 3, 4, 5))) == 4
    assert mirrored.look_up(CacheKey((1, 2, 3, 4))) == 2, "the hit law leaves one token"
    assert mirrored.look_up(CacheKey((1, 2, 5, 6, 9))) == 4
    assert mirrored.look_up(CacheKey((5, 6, 9))) == 0


def test_namespaces_and_contents_are_kept_apart() -> None:
    mirrored = mirror()
    mirrored.take([stored("x", (1, 2), salt="s"), stored("y", (1, 2), adapter="s")])
    mirrored.take([stored("z", (1, 2), spans=(Span(1, 1, "cat"),))])
    assert mirrored.look_up(CacheKey((1, 2, 3))) == 0
    assert mirrored.look_up(CacheKey((1, 2, 3), salt="s")) == 2
    assert mirrored.look_up(CacheKey((1, 2, 3), adapter="s")) == 2
    assert mirrored.look_up(CacheKey((1, 2, 3), salt="s", adapter="s")) == 0
    assert mirrored.look_up(CacheKey((1, 2, 3), spans=(Span(1, 1, "cat"),))) == 2
    assert mirrored.look_up(CacheKey((1, 2, 3), spans=(Span(1, 1, "dog"),))) == 0


def test_a_span_may_begin_before_the_event() -> None:
    mirrored, key = mirror(), CacheKey((1, 2, 3, 4, 5), spans=(Span(1, 3, "cat"),))
    mirrored.take([stored("x", (1, 2), spans=(Span(1, 3, "cat"),))])
    mirrored.take([stored("y", (3, 4), parent="x", spans=(Span(-1, 3, "cat"),))])
    assert mirrored.look_up(key) == 4


@pytest.mark.parametrize(("semantics", "hit"), [("multiset", 2), ("set", 0)])
def test_an_entry_that_was_stored_twice_and_removed_once(semantics: str, hit: int) -> None:
    mirrored = mirror(events=semantics)
    mirrored.take([stored("x", (1, 2)), stored("x", (1, 2))])
    assert mirrored.look_up(CacheKey((1, 2, 3))) == 2
    mirrored.take([removed("x")])
    assert mirrored.look_up(CacheKey((1, 2, 3))) == hit


def test_two_entries_of_one_place_are_removed_one_by_one() -> None:
    mirrored = mirror(events="set")
    mirrored.take([stored("x", (1, 2)), stored("y", (1, 2)), stored("z", (3, 4), parent="y")])
    mirrored.take([removed("x")])
    assert mirrored.look_up(CacheKey((1, 2, 3, 4, 5))) == 4
    mirrored.take([removed("y")])
    assert mirrored.look_up(CacheKey((1, 2, 3, 4, 5))) == 0


def test_clearing_forgets_all() -> None:
    mirrored = mirror()
    mirrored.take([stored("x", (1, 2)), CLEARED])
    assert mirrored.look_up(CacheKey((1, 2, 3))) == 0
    mirrored.take([stored("x", (5, 6))])
    assert mirrored.look_up(CacheKey((5, 6, 3))) == 2


@pytest.mark.parametrize(
    ("legal", "broken", "says"),
    [
        (removed("x"), removed("q"), "unknown entry 'q'"),
        (removed("xy"), removed("xx"), "unknown entry 'x'"),
        (stored("z", (5, 6), parent="y"), stored("z", (5, 6), parent="q"), "unknown parent 'q'"),
        (stored("z", (5, 6)), stored("z", (5, 6, 7)), "3 for 1 entries"),
        (stored("x", (1, 2)), stored("x", (1, 9)), "another one"),
        (stored("y", (3, 4), parent="x"), stored("y", (3, 4)), "another one"),
        (stored("x", (1, 2)), stored("x", (1, 2), salt="s"), "another one"),
    ],
)
def test_an_event_that_cannot_be_applied_breaks_e2(
    legal: CacheEvent, broken: CacheEvent, says: str
) -> None:
    for event in (legal, broken):
        mirrored = mirror()
        mirrored.take([stored("xy", (1, 2, 3, 4))])
        if event is legal:
            mirrored.take([event])
            continue
        with pytest.raises(Violation) as caught:
            mirrored.take([event])
        assert (caught.value.invariant, caught.value.anomaly) == ("E2", Anomaly.EVENT_ORDER)
        assert says in caught.value.got


def test_what_was_cleared_cannot_be_removed_or_stored_under() -> None:
    for event in (removed("x"), stored("y", (3, 4), parent="x")):
        mirrored = mirror()
        mirrored.take([stored("x", (1, 2)), CLEARED])
        with pytest.raises(Violation, match="E2"):
            mirrored.take([event])
