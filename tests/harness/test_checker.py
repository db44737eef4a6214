"""The checker on trial: each invariant is convicted under its own id, and nobody innocent is.

Every case is one short scenario. A manager with one corrupted method breaks the invariant with
it; a correct manager runs the very same scenario, every operation of it, without a verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count, cycle, repeat
from typing import Any

import pytest

from kvassay.harness.checker import Effect
from kvassay.harness.contract import (
    CacheEvent,
    CacheKey,
    CacheManager,
    Capability,
    Counters,
    Declaration,
    EventKind,
    Outcome,
    OutOfBlocks,
    Publish,
)
from kvassay.harness.evidence import Seen
from kvassay.harness.invariants import LAW
from kvassay.harness.registry import Registration, find
from kvassay.harness.scenario import (
    Accept,
    Admit,
    Append,
    Begin,
    Commit,
    Drain,
    Evict,
    Fork,
    Operation,
    Peek,
    Query,
    Quiesce,
    Release,
    Reserve,
    Reset,
    Scenario,
    Truncate,
)
from kvassay.harness.session import Run, replay, without_inspection
from kvassay.harness.violation import Anomaly, Crash, Violation
from kvassay.impls.faulty import controls, managers
from kvassay.impls.faulty.hashed import DECLARATION, HashedCache, LiveRequest
from kvassay.impls.paged import PagedManager
from kvassay.impls.radix import RadixManager

RADIX = find("radix")[0].declaration
PAGED = find("paged")[0].declaration
BLIND = without_inspection(DECLARATION)
"""For faults that the counters would give away before what they do is seen."""


# ------------------------------------------------------------------------------- faulty managers


class Miscounts(HashedCache):
    """Counts a block in use as free."""

    def counters(self) -> Counters:
        true = super().counters()
        return Counters(true.free + 1, true.cached, true.used - 1)


class CountsOneHolder(HashedCache):
    def refcounts(self) -> dict[int, int]:
        return dict.fromkeys(super().refcounts(), 1)


class InventsBlocks(HashedCache):
    """Never uses an id twice."""

    def _take_block(self) -> int:
        block = super()._take_block()
        self._references[block + self.num_blocks] = 0
        self._free.append(block + self.num_blocks)
        return block


class HandsOutTwice(HashedCache):
    """A block stays in the free list when it is taken."""

    def _take_block(self) -> int:
        block = super()._take_block()
        self._free.append(block)
        return block


class RepeatsBlock(HashedCache):
    """The last two blocks of a table are one."""

    def block_table(self, request: str) -> list[int]:
        table = super().block_table(request)
        return [*table[:-1], *table[-2:-1]] if len(table) > 1 else table


class Scribbles(HashedCache):
    """Tells the device to copy one request's block over another's."""

    def append(self, request: str, tokens: Sequence[int]) -> None:
        super().append(request, tokens)
        others = [entry.table for name, entry in self._live.items() if name != request]
        self._copies.append((self._live[request].table[0], others[0][0]))


class StealsBlock(HashedCache):
    """Puts another request's block into a table."""

    def append(self, request: str, tokens: Sequence[int]) -> None:
        super().append(request, tokens)
        others = [entry.table for name, entry in self._live.items() if name != request]
        self._live[request].table[0] = others[0][0]


class CopiesStranger(HashedCache):
    """Fills a block that is in use from a stranger's."""

    def append(self, request: str, tokens: Sequence[int]) -> None:
        super().append(request, tokens)
        others = [entry.table for name, entry in self._live.items() if name != request]
        self._copies.append((others[0][0], self._live[request].table[0]))


class KeepsRejected(RadixManager):
    """Every draft is accepted."""

    def accept(self, request: str, num_drafts: int) -> None:
        super().accept(request, self._live[request].drafts)


class PeeksAtDrafts(RadixManager):
    """Tells of everything but the last token."""

    def peek(self, key: CacheKey) -> int:
        return len(key.tokens) - 1


class PromisesEverything(RadixManager):
    def can_admit(self, key: CacheKey) -> bool:
        return True


class CopiesWhenItRefuses(HashedCache):
    def append(self, request: str, tokens: Sequence[int]) -> None:
        try:
            super().append(request, tokens)
        except OutOfBlocks:
            self._copies.append((self._live[request].table[0], 0))
            raise


class GivesBackPartialPage(HashedCache):
    """Truncation rounds down what is kept of the pool, but not of the table."""

    def truncate(self, request: str, num_tokens: int) -> None:
        super().truncate(request, num_tokens)
        tail = self._open_block(self._live[request])
        if tail is not None:
            self._drop(tail)


class ShortTable(HashedCache):
    def block_table(self, request: str) -> list[int]:
        return super().block_table(request)[:-1]


class LongTable(HashedCache):
    def block_table(self, request: str) -> list[int]:
        return [*super().block_table(request), self.num_blocks - 1]


class NegativeIds(HashedCache):
    def block_table(self, request: str) -> list[int]:
        return [-1 - block for block in super().block_table(request)]


class Defragments(HashedCache):
    """Moves another request's blocks when one leaves."""

    def release(self, request: str, outcome: Outcome = Outcome.FINISHED) -> None:
        super().release(request, outcome)
        for entry in self._live.values():
            entry.table[0] = self._free.popleft()


class PhantomHit(HashedCache):
    """Serves a block that nobody ever had."""

    def _match(self, entry: LiveRequest) -> list[int]:
        return [self._free[-1]] if self._hit_limit(len(entry.tokens)) else []


class Deaf(HashedCache):
    """Never finds what it has."""

    def _lookup(self, key: bytes) -> int | None:
        return None


class HitsHalfBlocks(HashedCache):
    def admit(self, request: str, key: CacheKey) -> int:
        return super().admit(request, key) + 1


class HitsWithoutCache(PagedManager):
    def admit(self, request: str, key: CacheKey) -> int:
        return super().admit(request, key) + 1


class LosesLowerHalf(RadixManager):
    """Where a key left an earlier one, look-ups end from then on."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.ends: set[int] = set()

    def _look_up(self, key: CacheKey, elements: list[Any]) -> Any:
        node, hit = super()._look_up(key, elements)
        for end in self.ends:
            if end < hit:
                return super()._look_up(key, elements[: end + 1])
        if 0 < hit < len(elements) - 1:
            self.ends.add(hit)
        return node, hit


class BeginPinsNothing(RadixManager):
    """What `begin` counts goes to whoever asks next."""

    def begin(self, request: str, key: CacheKey) -> int:
        hit = super().begin(request, key)
        self._pool.free += self.block_table(request)
        return hit


class CallsCachedFree(HashedCache):
    def counters(self) -> Counters:
        true = super().counters()
        return Counters(true.free + true.cached, 0, true.used)


class CountsCachedWithoutCache(PagedManager):
    def counters(self) -> Counters:
        true = super().counters()
        return Counters(true.free - 1, 1, true.used)


class EvictsLess(HashedCache):
    def evict(self, num_blocks: int) -> int:
        return super().evict(num_blocks - 1)


class BoastsOfEviction(HashedCache):
    """Reports what was asked for, whatever was freed."""

    def evict(self, num_blocks: int) -> int:
        super().evict(num_blocks)
        return num_blocks


class EvictsSilently(HashedCache):
    """Reports one block and frees two."""

    def evict(self, num_blocks: int) -> int:
        return min(1, super().evict(2))


class AnswersNothing(HashedCache):
    def evict(self, num_blocks: int) -> int:
        super().evict(num_blocks)
        return None  # type: ignore[return-value]


class SilentEvents(RadixManager):
    """Says what is removed, but not what is stored."""

    def take_events(self) -> list[CacheEvent]:
        return [e for e in super().take_events() if e.kind is not EventKind.STORED]


class ForgetsRemovals(RadixManager):
    def take_events(self) -> list[CacheEvent]:
        return [e for e in super().take_events() if e.kind is not EventKind.REMOVED]


class RepeatsRemovals(RadixManager):
    def take_events(self) -> list[CacheEvent]:
        return [
            event
            for event in super().take_events()
            for _ in range(2 if event.kind is EventKind.REMOVED else 1)
        ]


# -------------------------------------------------------------------------------------- scenarios


def admit(request: str, *tokens: int, **key: Any) -> list[Operation]:
    return [Admit(request, CacheKey(tokens, **key))]


def start(request: str, *tokens: int, **key: Any) -> list[Operation]:
    return [*admit(request, *tokens, **key), Commit(request)]


def serve(request: str, *tokens: int, **key: Any) -> list[Operation]:
    return [*start(request, *tokens, **key), Release(request)]


def grow(request: str, *tokens: int) -> list[Operation]:
    return [Append(request, tokens), Commit(request)]


ONE = (1, 2, 3)
"""One full block of two, and a token."""
TWO = (4, 5, 6)
THREE = (7, 8, 9)


TWICE = [*admit("a", *ONE), *admit("b", *ONE), Commit("a"), Commit("b")]
"""One prefix computed twice."""


@dataclass(frozen=True)
class Case:
    """A scenario that ends with the conviction of `faulty`; blocks have two slots."""

    invariant: str
    anomaly: Anomaly
    faulty: type
    declaration: Declaration
    blocks: int
    operations: list[Operation]
    innocent: str = "hashed"

    def __str__(self) -> str:
        return f"{self.invariant}-{self.faulty.__name__}"

    def replay(self, registration: Registration) -> Run:
        return replay(registration, Scenario(self.blocks, 2, tuple(self.operations)))


def planted(
    name: str, invariant: str, anomaly: Anomaly, blocks: int, operations: list[Operation]
) -> Case:
    """A case for one of the published faults."""
    fault = managers.FAULTS[name]
    blind = without_inspection(fault.declaration)
    return Case(invariant, anomaly, fault.build, blind, blocks, operations)


CASES = [
    Case("A1", Anomaly.ACCOUNTING, Miscounts, DECLARATION, 4, admit("a", 1)),
    Case(
        "A1",
        Anomaly.ACCOUNTING,
        CountsOneHolder,
        DECLARATION,
        4,
        [*start("a", 1), Fork("a", ("b",))],
    ),
    Case(
        "A1",
        Anomaly.TOO_MANY_BLOCKS,
        InventsBlocks,
        BLIND,
        2,
        [*admit("a", 1), Release("a"), *admit("b", 1), Release("b"), *admit("c", 1)],
    ),
    Case(
        "A2",
        Anomaly.DOUBLE_HAND_OUT,
        HandsOutTwice,
        BLIND,
        3,
        [*admit("a", *ONE), *admit("b", 4), Release("b"), *admit("c", 5)],
    ),
    Case("A2", Anomaly.DOUBLE_HAND_OUT, RepeatsBlock, BLIND, 3, admit("a", *ONE)),
    Case(
        "A2",
        Anomaly.DOUBLE_HAND_OUT,
        StealsBlock,
        BLIND,
        4,
        [*start("a", *ONE), *start("b", *TWO), Append("b", (7,))],
    ),
    Case(
        "A2",
        Anomaly.FOREIGN_WRITE,
        CopiesStranger,
        BLIND,
        4,
        [*start("a", 1), *start("b", 5), Append("b", (6,))],
    ),
    planted(
        "fork-forgets-parent-reference",
        "A3",
        Anomaly.PREMATURE_REUSE,
        3,
        [*start("a", *ONE), Fork("a", ("b",)), Release("a"), *admit("c", 7), *admit("d", 8)],
    ),
    planted(
        "refusal-keeps-blocks",
        "A4",
        Anomaly.UNDUE_REFUSAL,
        2,
        [*admit("a", 1, 2, 3, 4, 5), *admit("b", 1)],
    ),
    Case(
        "A4",
        Anomaly.BROKEN_PROMISE,
        PromisesEverything,
        RADIX,
        1,
        [Query(CacheKey(ONE)), *admit("a", *ONE)],
        "radix",
    ),
    Case(
        "A4",
        Anomaly.REFUSAL_DAMAGE,
        CopiesWhenItRefuses,
        DECLARATION,
        1,
        [*start("a", 1, 2), Append("a", (3,))],
    ),
    planted(
        "refusal-evicts",
        "A4",
        Anomaly.REFUSAL_DAMAGE,
        2,
        [*serve("a", *ONE), *admit("b", 5, 6, 7, 8, 9), *admit("c", *ONE)],
    ),
    planted("tail-leaked", "A5", Anomaly.LEAK, 2, [*start("a", 1), Release("a"), Quiesce()]),
    planted(
        "abort-leaks",
        "A5",
        Anomaly.LEAK,
        2,
        [*admit("a", 1), Release("a", Outcome.ABORTED), Quiesce()],
    ),
    planted("first-block-lost-at-reset", "A5", Anomaly.LEAK, 2, [Quiesce()]),
    Case(
        "A6",
        Anomaly.PARTIAL_PAGE,
        GivesBackPartialPage,
        BLIND,
        2,
        [*admit("a", 1, 2, 3, 4), Truncate("a", 3), *admit("b", 1)],
    ),
    Case("A7", Anomaly.TABLE, ShortTable, DECLARATION, 3, admit("a", *ONE)),
    Case("A7", Anomaly.TABLE, LongTable, DECLARATION, 3, admit("a", 1)),
    Case("A7", Anomaly.TABLE, NegativeIds, DECLARATION, 3, admit("a", 1)),
    Case(
        "A7",
        Anomaly.FOREIGN_CHANGE,
        Defragments,
        BLIND,
        3,
        [*admit("a", 1), *admit("b", 2), Release("a")],
    ),
    Case(
        "A7",
        Anomaly.TABLE,
        KeepsRejected,
        RADIX,
        4,
        [*start("a", 1, 2), Append("a", (3, 4, 5), drafts=3), Accept("a", 1)],
        "radix",
    ),
    planted(
        "cow-above-two",
        "C1",
        Anomaly.SHARER_WRITE,
        4,
        [*start("a", *ONE), Fork("a", ("b",)), *grow("a", 4), *grow("b", 5)],
    ),
    planted(
        "copy-forgotten",
        "C2",
        Anomaly.LOST_COPY,
        4,
        [*start("a", *ONE), Fork("a", ("b",)), Append("a", (4,))],
    ),
    Case(
        "C2",
        Anomaly.LOST_COPY,
        Scribbles,
        BLIND,
        4,
        [*start("a", 1), *start("b", *TWO), Fork("a", ("c",)), Append("b", (7,))],
    ),
    Case("P1", Anomaly.PHANTOM_HIT, PhantomHit, BLIND, 3, admit("a", *ONE)),
    planted(
        "key-drops-last-token",
        "P2",
        Anomaly.WRONG_KEY,
        4,
        [*serve("a", 1, 2, 3), *admit("b", 1, 9, 3)],
    ),
    planted(
        "salt-and-adapter-confused",
        "P2",
        Anomaly.WRONG_KEY,
        4,
        [*serve("a", *ONE, salt="x"), *admit("b", *ONE, adapter="x")],
    ),
    planted("full-hit", "P3", Anomaly.LAW, 4, [*serve("a", 1, 2), *admit("b", 1, 2)]),
    Case("P3", Anomaly.LAW, HitsHalfBlocks, BLIND, 4, admit("a", *ONE)),
    Case("P3", Anomaly.LAW, HitsWithoutCache, PAGED, 4, admit("a", *ONE), "paged"),
    planted(
        "published-before-commit",
        "P4",
        Anomaly.UNWRITTEN,
        4,
        [*admit("a", *ONE), *admit("b", *ONE)],
    ),
    Case(
        "P4",
        Anomaly.UNPUBLISHED,
        managers.AbortedIsPublished,
        controls.AT_FINISH,
        4,
        [*start("a", *ONE), Release("a", Outcome.ABORTED), *admit("b", *ONE)],
        "control-publish-at-finish",
    ),
    Case(
        "P4",
        Anomaly.UNPUBLISHED,
        managers.DraftsPublishedAtRelease,
        controls.DRAFTING,
        4,
        [*admit("a", 1), Append("a", (2, 3), drafts=2), Release("a"), *admit("b", *ONE)],
        "control-drafts-at-release",
    ),
    Case(
        "P4",
        Anomaly.UNPUBLISHED,
        HashedCache,
        controls.AT_FINISH,
        4,
        [*start("a", *ONE), *admit("b", *ONE)],
        "control-publish-at-finish",
    ),
    Case(
        "P4",
        Anomaly.UNPUBLISHED,
        PeeksAtDrafts,
        RADIX,
        4,
        [*start("a", 1), Append("a", (2, 3), drafts=2), Peek(CacheKey(ONE))],
        "radix",
    ),
    Case("P3", Anomaly.LAW, PeeksAtDrafts, RADIX, 4, [Peek(CacheKey(ONE))], "radix"),
    planted(
        "truncation-keeps-key",
        "P4",
        Anomaly.OVERWRITTEN,
        4,
        [*start("a", 1, 2), Truncate("a", 1), *grow("a", 9), *admit("b", *ONE)],
    ),
    planted(
        "recycled-keeps-key",
        "P5",
        Anomaly.STALE_HIT,
        2,
        [*serve("a", *ONE), *serve("b", 5, 6, 7, 8), *admit("c", *ONE)],
    ),
    planted(
        "reset-keeps-keys",
        "P5",
        Anomaly.STALE_HIT,
        2,
        [*serve("a", *ONE), Reset(), *admit("b", *ONE)],
    ),
    Case(
        "P6",
        Anomaly.SPLIT,
        LosesLowerHalf,
        RADIX,
        9,
        [*serve("a", 1, 2, 3, 4), *serve("b", 1, 2, 9, 9), *admit("c", 1, 2, 3, 4, 5)],
        "radix",
    ),
    Case(
        "P7",
        Anomaly.PIN_IGNORED,
        BeginPinsNothing,
        without_inspection(RADIX),
        4,
        [*serve("a", 1, 2), Begin("b", CacheKey(ONE)), *admit("c", 7)],
        "radix",
    ),
    Case(
        "P8",
        Anomaly.ACCOUNTING,
        CallsCachedFree,
        DECLARATION,
        4,
        [*serve("a", *ONE), Quiesce()],
    ),
    Case("P8", Anomaly.ACCOUNTING, CountsCachedWithoutCache, PAGED, 4, admit("a", 1), "paged"),
    planted(
        "evict-everything",
        "P9",
        Anomaly.EVICT_AMOUNT,
        4,
        [*serve("a", *ONE), *serve("b", *TWO), Evict(1)],
    ),
    Case(
        "P9", Anomaly.EVICT_AMOUNT, BoastsOfEviction, DECLARATION, 4, [*serve("a", *ONE), Evict(3)]
    ),
    Case(
        "P9",
        Anomaly.EVICT_AMOUNT,
        EvictsSilently,
        DECLARATION,
        4,
        [*serve("a", *ONE), *serve("b", *TWO), Evict(1)],
    ),
    Case(
        "P9", Anomaly.NOT_AN_ANSWER, AnswersNothing, DECLARATION, 4, [*serve("a", *ONE), Evict(1)]
    ),
    Case("P9", Anomaly.EVICT_AMOUNT, EvictsLess, BLIND, 4, [*serve("a", *ONE), Evict(1)]),
    planted(
        "evict-too-much-silently",
        "P9",
        Anomaly.EVICT_AMOUNT,
        4,
        [*serve("a", *ONE), *serve("b", *TWO), Evict(1), *serve("c", *ONE), *admit("d", *TWO)],
    ),
    planted(
        "wrong-victim",
        "P10",
        Anomaly.WRONG_VICTIM,
        3,
        [*serve("a", *ONE), *serve("b", *TWO), *serve("c", *THREE, 9), *admit("d", *ONE)],
    ),
    Case(
        "P11",
        Anomaly.REMAP,
        controls.Remap,
        DECLARATION,
        4,
        TWICE,
    ),
    Case(
        "P12",
        Anomaly.MISSED_HIT,
        Deaf,
        DECLARATION,
        4,
        [*serve("a", *ONE), *admit("b", *ONE)],
    ),
    Case(
        "E1",
        Anomaly.MIRROR,
        SilentEvents,
        RADIX,
        4,
        [*serve("a", *ONE), *admit("b", *ONE)],
        "radix",
    ),
    Case(
        "E1",
        Anomaly.MIRROR,
        ForgetsRemovals,
        RADIX,
        4,
        [*serve("a", 1, 2), Evict(1), Peek(CacheKey(ONE))],
        "radix",
    ),
    Case(
        "E2",
        Anomaly.EVENT_ORDER,
        RepeatsRemovals,
        RADIX,
        4,
        [*serve("a", 1, 2), Evict(1)],
        "radix",
    ),
]


def test_every_invariant_has_a_case() -> None:
    assert {case.invariant for case in CASES} == set(LAW)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_convicts_the_fault_under_this_id_and_acquits_the_innocent(case: Case) -> None:
    faulty = Registration("faulty", CacheManager, case.faulty, case.declaration)
    verdict = case.replay(faulty).verdict
    assert isinstance(verdict, Violation), verdict
    assert (verdict.invariant, verdict.anomaly) == (case.invariant, case.anomaly), verdict
    last = len(case.operations) - 1
    assert (verdict.index, verdict.operation) == (last, case.operations[last]), verdict
    assert verdict.expected
    assert verdict.got

    (innocent,) = find(case.innocent)
    run = case.replay(innocent)
    assert run.verdict is None
    assert sum(run.effects.values()) == len(case.operations)
    if innocent.declaration.has(Capability.COMMIT):
        assert not run.effects[Effect.SKIPPED]


# ------------------------------------------------------------------------ what is declared is legal


@pytest.mark.parametrize(
    ("name", "undeclared", "invariant", "blocks", "operations"),
    [
        ("remap", {"dedup": "keep"}, "P11", 4, TWICE),
        ("remap", {"dedup": "keep"}, "P11", 4, [*TWICE[:3], Release("a"), Commit("b")]),
        ("null-block", {"reserved_ids": (1,)}, "A7", 4, admit("a", 1)),
        ("watermark", {"watermark": 0}, "A4", 2, admit("a", *ONE)),
        ("lookahead", {"lookahead": 0}, "A7", 4, admit("a", 1)),
        (
            "row-limit",
            {"max_requests": None},
            "A4",
            4,
            [*admit("a", 1), *admit("b", 2), *admit("c", 3)],
        ),
        ("row-limit", {"max_requests": None}, "A4", 4, [*start("a", 1), Fork("a", ("b", "c"))]),
        ("drop-one", {"drop": 0}, "P12", 4, [*serve("a", *ONE), *admit("b", *ONE)]),
        (
            "publish-at-finish",
            {"publish": Publish.COMMIT},
            "P12",
            4,
            [*start("a", *ONE), *admit("b", *ONE)],
        ),
        (
            "evict-all",
            {"granularity": "block"},
            "P9",
            4,
            [*serve("a", *ONE), *serve("b", *TWO), Evict(1)],
        ),
    ],
)
def test_a_habit_is_legal_exactly_if_it_is_declared(
    name: str,
    undeclared: dict[str, Any],
    invariant: str,
    blocks: int,
    operations: list[Operation],
) -> None:
    (declared,) = find(f"control-{name}")
    scenario = Scenario(blocks, 2, tuple(operations))
    assert replay(declared, scenario).verdict is None
    silent = replace(declared, declaration=replace(declared.declaration, **undeclared))
    verdict = replay(silent, scenario).verdict
    assert isinstance(verdict, Violation)
    assert verdict.invariant == invariant, verdict


# --------------------------------------------------------------------------------- beyond verdicts


def test_an_operation_that_is_not_legal_here_is_skipped_and_changes_nothing() -> None:
    (hashed,) = find("hashed")
    illegal: list[Operation] = [
        Commit("a"),
        Append("nobody", (1,)),
        Truncate("a", 9),
        Fork("a", ("a",)),
        *admit("a", 1),
        Reset(),
        Peek(CacheKey(ONE)),
        Begin("c", CacheKey(ONE)),
        Evict(0),
        Release("nobody"),
    ]
    run = replay(hashed, Scenario(4, 2, (*start("a", *ONE), *illegal, *grow("a", 4))))
    assert run.verdict is None
    assert run.effects == {Effect.DONE: 4, Effect.SKIPPED: len(illegal)}


def test_a_prompt_is_reserved_piece_by_piece_and_not_beyond_its_end() -> None:
    begun = [*serve("a", 1, 2), Begin("b", CacheKey((1, 2, 3, 4, 5)))]
    legal: list[Operation] = [Reserve("b", 2), Reserve("b", 1), Append("b", (6,))]
    illegal: list[Operation] = [Reserve("b", 4), Append("b", (6,)), Reserve("a", 1)]
    done, over = (
        replay(find("radix")[0], Scenario(4, 2, (*begun, *operations))).effects
        for operations in (legal, illegal)
    )
    assert done == {Effect.DONE: len(begun) + 3}
    assert over == {Effect.DONE: len(begun), Effect.SKIPPED: 3}


@pytest.mark.parametrize(
    ("between", "kept"), [([], False), (admit("b", *TWO), True), ([Evict(1)], True)]
)
def test_a_promise_binds_the_next_operation_alone(between: list[Operation], kept: bool) -> None:
    promising = Registration("promising", CacheManager, PromisesEverything, RADIX)
    operations = (Query(CacheKey(ONE)), *between, *admit("a", *ONE))
    verdict = replay(promising, Scenario(1, 2, operations)).verdict
    assert (verdict is None) is kept


@pytest.mark.parametrize(("outcome", "met"), [(Outcome.ABORTED, 1), (Outcome.FINISHED, 0)])
def test_a_look_up_of_what_was_not_published_is_counted(outcome: Outcome, met: int) -> None:
    (control,) = find("control-publish-at-finish")
    operations = (*start("a", *ONE), Release("a", outcome), *admit("b", *ONE), *admit("c", 7, 8))
    run = replay(control, Scenario(4, 2, operations))
    assert run.verdict is None
    assert run.met[Seen.UNPUBLISHED_KEY] == met


def test_a_refusal_is_counted_apart() -> None:
    (hashed,) = find("hashed")
    run = replay(hashed, Scenario(1, 2, (*admit("a", *ONE), *admit("b", 1))))
    assert run.effects == {Effect.REFUSED: 1, Effect.DONE: 1}
    assert run.met[Seen.REFUSED] == 1


def test_an_exception_is_a_crash_and_never_a_verdict_on_an_invariant() -> None:
    class Broken(HashedCache):
        def append(self, request: str, tokens: Sequence[int]) -> None:
            raise KeyError(request)

    broken = Registration("broken", CacheManager, Broken, DECLARATION)
    operations = (*start("a", 1), Append("a", (2,)))
    verdict = replay(broken, Scenario(2, 2, operations)).verdict
    assert isinstance(verdict, Crash)
    assert (verdict.index, verdict.operation) == (2, operations[2])
    assert "KeyError: 'a'" in str(verdict)
    assert verdict.tables == {"a": [0]}


def test_draining_reaches_the_implementation() -> None:
    class Clogged(RadixManager):
        def drain(self) -> None:
            raise KeyError("clogged")

    clogged = Registration("clogged", CacheManager, Clogged, RADIX)
    scenario = Scenario(2, 2, (*start("a", 1), Drain()))
    assert replay(find("radix")[0], scenario).verdict is None
    assert isinstance(replay(clogged, scenario).verdict, Crash)


def table_of_nothing(self: HashedCache, request: str) -> Any:
    return None


def counters_that_raise(self: HashedCache) -> Any:
    raise KeyError("counters")


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("block_table", table_of_nothing),
        ("take_copies", lambda self: None),
        ("take_copies", lambda self: [(0,)]),
        ("counters", counters_that_raise),
    ],
)
def test_an_answer_of_another_shape_is_a_verdict(method: str, answer: Any) -> None:
    odd = type("Odd", (HashedCache,), {method: answer})
    run = replay(
        Registration("odd", CacheManager, odd, DECLARATION),
        Scenario(2, 2, (Evict(1), *admit("a", 1))),
    )
    assert run.verdict is not None


ENDLESS = {
    "block_table": (lambda self, request: count(), "A7", "3 or more: [0, 1, 2]"),
    "take_copies": (lambda self: repeat((0, 1)), "C2", "3 or more: [(0, 1), (0, 1), (0, 1)]"),
}


@pytest.mark.parametrize("method", ENDLESS)
def test_an_answer_without_end_is_read_as_far_as_it_may_go(method: str) -> None:
    answer, invariant, told = ENDLESS[method]
    endless = type("Endless", (HashedCache,), {method: answer})
    case = Case(invariant, Anomaly.TABLE, endless, DECLARATION, 2, admit("a", 1))
    verdict = case.replay(Registration("mine", CacheManager, endless, DECLARATION)).verdict
    assert isinstance(verdict, Violation)
    assert (verdict.invariant, verdict.got) == (invariant, told)


def test_a_table_that_becomes_endless_later_is_read_as_far_as_it_was() -> None:
    class Later(HashedCache):
        def block_table(self, request: str) -> Any:
            table = super().block_table(request)
            return cycle(table) if len(self._live) > 1 and request == "a" else iter(table)

    registration = Registration("mine", CacheManager, Later, BLIND)
    operations = tuple(admit("a", 1))
    assert replay(registration, Scenario(2, 2, operations)).verdict is None
    verdict = replay(registration, Scenario(2, 2, (*operations, *admit("b", 2)))).verdict
    assert isinstance(verdict, Violation)
    assert (verdict.invariant, verdict.anomaly) == ("A7", Anomaly.FOREIGN_CHANGE)
    assert verdict.got == "[0, 0]"


def test_only_operations_that_take_blocks_may_refuse() -> None:
    class Stubborn(HashedCache):
        def truncate(self, request: str, num_tokens: int) -> None:
            raise OutOfBlocks

    stubborn = Registration("stubborn", CacheManager, Stubborn, DECLARATION)
    verdict = replay(stubborn, Scenario(2, 2, (*start("a", 1, 2), Truncate("a", 1)))).verdict
    assert isinstance(verdict, Crash)
    assert "truncate raised OutOfBlocks" in verdict.what


def test_quiescence_respects_the_declared_limits() -> None:
    for name in ("watermark", "row-limit", "bump", "null-block", "lookahead"):
        (control,) = find(f"control-{name}")
        run = replay(control, Scenario(3, 2, (*start("a", *ONE), Quiesce(), *admit("b", 1))))
        assert run.verdict is None, name
        assert run.met[Seen.QUIESCED] == 1
