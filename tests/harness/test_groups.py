"""Managers with layer groups and windows under the checker; each conviction has its acquittal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from kvassay.harness.campaign import Budget, Campaign
from kvassay.harness.checker import Checker
from kvassay.harness.contract import (
    CacheKey,
    CacheManager,
    Capability,
    ContractError,
    Declaration,
    Granularity,
    GroupSpec,
    Outcome,
)
from kvassay.harness.evidence import Seen
from kvassay.harness.explain import Told, explain
from kvassay.harness.group_checker import GroupChecker
from kvassay.harness.groups import FULL, default_groups, drawn_groups, groups_of
from kvassay.harness.misuse import answers
from kvassay.harness.registry import Registration, find
from kvassay.harness.rig.managing import Managed
from kvassay.harness.scenario import (
    Admit,
    Append,
    BadScenario,
    Commit,
    Evict,
    Fork,
    Operation,
    Quiesce,
    Release,
    Scenario,
    from_json,
    to_json,
)
from kvassay.harness.session import Run, build, explore, replay, without_inspection
from kvassay.harness.violation import Violation
from kvassay.impls.faulty import group_controls, group_faults
from kvassay.impls.faulty.grouped import DECLARATION, NULL, GroupedCache, Strand
from kvassay.impls.faulty.hashed import LiveRequest

BOTH = (FULL, GroupSpec("window", window=3))
ONLY = BOTH[1:]


def registration(manager: type[Any], declaration: Declaration = DECLARATION) -> Registration:
    return Registration("mine", CacheManager, manager, declaration)


def played(
    manager: type[Any],
    *operations: Operation,
    groups: tuple[GroupSpec, ...] = BOTH,
    declaration: Declaration = DECLARATION,
    num_blocks: int = 12,
    block_size: int = 2,
) -> Run:
    scenario = Scenario(num_blocks, block_size, operations, groups=groups)
    return replay(registration(manager, declaration), scenario)


def convicted(run: Run) -> str:
    assert isinstance(run.verdict, Violation), run.verdict
    return run.verdict.invariant


def key(*tokens: int) -> CacheKey:
    return CacheKey(tokens)


GROW = (
    Admit("a", key(1, 2, 3)),
    Commit("a"),
    Append("a", (4, 5)),
    Commit("a"),
    Append("a", (6,)),
    Commit("a"),
    Quiesce(),
)


# ------------------------------------------------------------------------------ the edge of windows


@pytest.mark.parametrize("block_size", [1, 2, 3, 4])
@pytest.mark.parametrize("window", range(1, 8))
def test_a_window_may_drop_to_its_edge_and_no_further(window: int, block_size: int) -> None:
    """One token at a time: the stock manager nulls all that it may, the other one token more."""
    steps: list[Operation] = [Admit("a", key(0)), Commit("a")]
    for token in range(1, 12):
        steps += [Append("a", (token,)), Commit("a")]
    shape: dict[str, Any] = {
        "groups": (GroupSpec("window", window=window),),
        "num_blocks": 30,
        "block_size": block_size,
    }
    assert played(GroupedCache, *steps, **shape).verdict is None
    if window == 1:
        return  # all that is written may go
    short = played(group_faults.WindowShortByOne, *steps, **shape)
    assert convicted(short) == "A7"
    # The first prefix of which dropping one token more takes a block.
    written = next(n for n in range(1, 20) if (n - window + 2) // block_size > 0)
    lost = next(
        n
        for n in range(written, 20)
        if max(0, n - window + 2) // block_size > max(0, n - window + 1) // block_size
    )
    assert short.verdict is not None
    assert short.verdict.index == 2 * lost - 1, "at the commit of that many tokens, no later"


def test_an_append_is_seen_through_from_where_the_kv_ended() -> None:
    steps = (Admit("a", key(1, 2, 3)), Append("a", (4, 5, 6)), Quiesce())
    declared = group_controls.IN_STEP
    assert played(group_controls.GroupsInStep, *steps, declaration=declared).verdict is None
    run = played(group_faults.WindowOfTheEnd, *steps, declaration=declared)
    assert convicted(run) == "A7"


# -------------------------------------------------------------------------- convicted and acquitted


class NullInFull(GroupedCache):
    """Drops from the full group what the window has passed."""

    def _first(self, strand: Strand, num_tokens: int) -> int:
        return max(0, num_tokens - 3 + 1) // self.block_size


class Mixed(GroupedCache):
    """Shows one group's table for the other."""

    def block_table(self, request: str, group: str | None = None) -> list[int]:
        return super().block_table(request, self.groups[-1].name)


class Foreign(GroupedCache):
    """Drops what other requests' windows have passed whenever one commits."""

    def _drop_passed(self, strand: Strand) -> None:
        for strands in self._strands.values():
            if all(each is not strand for each in strands):
                for each in strands:
                    super()._drop_passed(each)


FORKED = (Admit("a", key(1)), Commit("a"), Fork("a", ("b",)), Append("b", (2,)), Commit("b"))
SHARED = (Admit("a", key(1, 2)), Commit("a"), Admit("b", key(1, 2, 3)))


@pytest.mark.parametrize(
    ("manager", "steps", "invariant"),
    [
        (NullInFull, GROW, "A7"),
        (Mixed, GROW, "A2"),
        (Foreign, (*GROW[:4], Admit("b", key(1)), Commit("b")), "A7"),
        (group_faults.WindowLeaked, GROW, "A5"),
        (group_faults.GroupsShareABlock, GROW, "A2"),
        (group_faults.CopiedInOneGroup, FORKED, "C2"),
        (group_faults.GroupLeftOutOfTheKey, SHARED, "P2"),
        (group_faults.WindowHitsNothing, SHARED, "P12"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_fault_is_convicted_without_looking_inside(
    manager: type[GroupedCache], steps: Sequence[Operation], invariant: str
) -> None:
    blind = without_inspection(DECLARATION)
    assert played(GroupedCache, *steps, declaration=blind).verdict is None
    assert convicted(played(manager, *steps, declaration=blind)) == invariant


@pytest.mark.parametrize("reference", [group_controls.__name__, "kvassay.impls.faulty.grouped"])
def test_what_is_correct_is_acquitted(reference: str) -> None:
    for entry in find(reference):
        outcome = Campaign(entry, "prefix", Budget(20)).run()
        assert not outcome.findings, (entry.name, outcome.findings)
        assert outcome.met[Seen.WINDOW_PASSED] > 20
        seen = outcome.met[Seen.WINDOW_HIT] > 0
        assert seen or entry.name == "control-whole-prefixes", entry.name


def test_a_refusal_drops_only_what_is_declared() -> None:
    steps = (Admit("a", key(1, 2, 3, 4)), Commit("a"), Append("a", (5,) * 9))
    late = group_controls.WindowDroppedLate
    declared = replace(DECLARATION, refusal="may_drop_window")  # type: ignore[arg-type]
    shape: dict[str, Any] = {"groups": ONLY, "num_blocks": 2}
    run = played(late, *steps, declaration=declared, **shape)
    assert run.verdict is None
    assert run.met[Seen.DROPPED_AT_REFUSAL] == 1
    assert convicted(played(late, *steps, **shape)) == "A4"
    assert played(GroupedCache, *steps, **shape).verdict is None


def test_what_a_window_has_passed_counts_as_used_or_not() -> None:
    for manager in (GroupedCache, group_controls.WindowKept, group_controls.WindowShown):
        run = played(manager, *GROW)
        assert run.verdict is None, manager
        assert run.met[Seen.COUNTED]
        assert run.met[Seen.WINDOW_PASSED] == 2
        assert (run.met[Seen.NULL_SEEN] > 0) == (manager is GroupedCache)


def test_what_was_looked_at_is_counted() -> None:
    run = played(GroupedCache, *GROW[:-1], Release("a"), Admit("b", key(1, 2, 3, 4, 5, 6)))
    assert run.verdict is None
    assert run.met[Seen.GROUPS_READ]
    assert run.met[Seen.GROUP_HIT] == run.met[Seen.WINDOW_HIT] == 1
    alone = played(GroupedCache, *GROW, groups=ONLY)
    assert not alone.met[Seen.GROUPS_READ]
    full = played(GroupedCache, *GROW, groups=(FULL,))
    assert not full.met[Seen.WINDOW_PASSED]


class HandsOutTwice(group_controls.WindowShown):
    """Gives a block that was taken last to the next one too."""

    def admit(self, request: str, key: CacheKey) -> int:
        if request == "c":
            last = self._strands["b"][-1].table[-1]
            self._references[last] = 0
            self._free.appendleft(last)
        return super().admit(request, key)


def test_who_only_shows_a_block_is_not_named_as_its_owner() -> None:
    shape: dict[str, Any] = {"groups": ONLY, "num_blocks": 4}
    grown = (*GROW[:-1], Admit("b", key(9, 8, 7, 6)), Admit("c", key(5)))
    blind = without_inspection(DECLARATION)
    run = played(HandsOutTwice, *grown, declaration=blind, **shape)
    assert convicted(run) == "A2"
    assert run.scenario.num_blocks == 4
    assert "which belongs to b in group window (logical block 1)" in str(run.verdict)


class Pruned(group_controls.WindowForgotten):
    """A tree: what hangs below a forgotten block goes with it, and whole prefixes alone are hit."""

    def __init__(self, num_blocks: int, block_size: int, groups: Sequence[GroupSpec]) -> None:
        super().__init__(num_blocks, block_size, groups)
        self._above: dict[bytes, bytes | None] = {}

    def _keys(self, entry: LiveRequest, count: int) -> list[bytes]:
        keys = super()._keys(entry, count)
        self._above.update(zip(keys, [None, *keys], strict=False))
        return keys

    def _has(self, strand: Strand, count: int) -> bool:
        return all(self._lookup(key) is not None for key in self._keys(strand, count))

    def release(self, request: str, outcome: Outcome = Outcome.FINISHED) -> None:
        super().release(request, outcome)
        for block in list(self._idle):
            key: bytes | None = self._key_of[block]
            while key in self._blocks_of:
                key = self._above[key]
            if key is not None:
                del self._idle[block]
                self._unmap(block)
                self._give_back(block)


class Forgetful(GroupedCache):
    """Caches nothing of who has left."""

    def release(self, request: str, outcome: Outcome = Outcome.FINISHED) -> None:
        super().release(request, outcome)
        self.evict(self.num_blocks)


def test_what_a_forgotten_block_leads_to_need_not_be_cached() -> None:
    first = (Admit("a", key(1, 9)), Commit("a"), Release("a"))
    longer = (Admit("b", key(1, 2, 3, 4)), Commit("b"), Release("b"))
    for groups in (BOTH, ONLY):
        for last in (Evict(9), Quiesce()):
            shape: dict[str, Any] = {"groups": groups, "block_size": 1}
            assert played(Pruned, *first, *longer, last, **shape).verdict is None
            assert convicted(played(Forgetful, *first, last, **shape)) == "P8"


def test_leaves_may_be_evicted_whole() -> None:
    declared = replace(DECLARATION, granularity=Granularity.LEAF)
    outcome = Campaign(registration(GroupedCache, declared), "prefix", Budget(20)).run()
    assert not outcome.findings
    assert outcome.met[Seen.PRESSURE]
    assert outcome.met[Seen.EVICT_CALLED]


# -------------------------------------------------------------------------------------- in pieces


class Chunked(GroupedCache):
    """A look-up that pins what it counts, and slots piece by piece."""

    def __init__(self, num_blocks: int, block_size: int, groups: Sequence[GroupSpec]) -> None:
        super().__init__(num_blocks, block_size, groups)
        self._prompts: dict[str, list[int]] = {}

    def begin(self, request: str, key: CacheKey) -> int:
        strands = self._new_strands(key)
        count = self._count(strands)
        hit = count * self.block_size
        self._prompts[request] = list(key.tokens)
        for strand in strands:
            strand.table = self._found(strand, count)
            strand.committed, strand.published = hit, count
            del strand.tokens[hit:]
            self._forget_keys(strand)
            for block in strand.table:
                if block != NULL:
                    self._reuse(block)
        self._strands[request], self._live[request] = strands, strands[0]
        return hit

    def reserve(self, request: str, num_tokens: int) -> int:
        start = len(self._live[request].tokens)
        self.append(request, self._prompts[request][start : start + num_tokens])
        return len(self._live[request].tokens)


def test_prompts_in_pieces_are_judged_too() -> None:
    declared = replace(DECLARATION, capabilities=DECLARATION.capabilities | {Capability.CHUNKED})
    outcome = Campaign(registration(Chunked, declared), "allocator", Budget(40)).run()
    assert not outcome.findings
    assert outcome.met[Seen.PINNED_PRESSURE]

    class Short(Chunked):
        def _first(self, strand: Strand, num_tokens: int) -> int:
            return group_faults.WindowShortByOne._first(self, strand, num_tokens)  # type: ignore[arg-type]

    outcome = Campaign(registration(Short, declared), "allocator", Budget(40)).run()
    assert {"A7", "P1"} & set(outcome.findings)


# --------------------------------------------------------------------------------------- contract


def test_who_has_no_groups_is_checked_without_a_thought_of_them() -> None:
    (paged,) = find("paged")
    assert type(build(paged, 4, 2)) is Checker
    (grouped,) = find("kvassay.impls.faulty.grouped")
    assert type(build(grouped, 4, 2)) is GroupChecker


def test_the_usual_groups_have_a_pool_each() -> None:
    (grouped,) = find("kvassay.impls.faulty.grouped")
    checker = build(grouped, 4, 2)
    assert isinstance(checker, GroupChecker)
    assert checker.groups == default_groups(2)
    assert checker.model.num_blocks == 8
    assert build(grouped, 4, 2, ONLY).model.num_blocks == 4


def test_a_declared_window_is_one_group_with_plain_tables() -> None:
    (entry,) = (one for one in find(group_controls.__name__) if one.name == "control-one-window")
    checker = build(entry, 4, 2)
    assert isinstance(checker, GroupChecker)
    assert checker.groups == (GroupSpec("window", window=7),)
    run = explore(entry, Random(0), 4, 2, length=12)
    assert isinstance(run.scenario, Scenario)
    assert run.scenario.groups is None, "it has but one"


def test_groups_are_drawn_of_every_kind() -> None:
    drawn = [drawn_groups(Random(seed), 4) for seed in range(200)]
    kinds = {tuple(spec.window is None for spec in groups) for groups in drawn}
    assert {(True,), (False,), (True, False), (False, True), (True, False, False)} <= kinds
    windows = {spec.window for groups in drawn for spec in groups} - {None}
    assert windows == {1, 2, 4, 5, 8, 9, 12}


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        (None, "a sequence of GroupSpec"),
        ((), "a sequence of GroupSpec"),
        (("full",), "a GroupSpec with a name"),
        ((GroupSpec(""),), "a GroupSpec with a name"),
        ((GroupSpec("a", window=0),), "a window >= 1"),
        ((GroupSpec("a"), GroupSpec("a")), "names that differ"),
        ((GroupSpec("a", block_size=3),), "not driven yet"),
    ],
)
def test_what_are_no_groups_is_said(groups: Any, told: str) -> None:
    with pytest.raises(ContractError, match=told):
        groups_of(SimpleNamespace(groups=groups, block_size=2), DECLARATION)


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ({"capabilities": {"groups"}, "window": 4}, "each GroupSpec"),
        ({"capabilities": {"groups", "truncate"}}, "TRUNCATE is not defined"),
        ({"capabilities": {"drafts"}, "window": 4}, "DRAFTS is not defined"),
    ],
)
def test_what_cannot_be_beside_windows_is_said(declared: dict[str, Any], told: str) -> None:
    with pytest.raises(ContractError, match=told):
        Declaration(**declared)


@pytest.mark.parametrize("declared", [DECLARATION, Declaration(window=4)])
def test_the_rig_which_reads_everything_takes_none_of_them(declared: Declaration) -> None:
    with pytest.raises(ContractError, match="the rig cannot drive a manager with"):
        Managed(GroupedCache(4, 2), declared, lambda: 0.0)


def test_a_scenario_keeps_its_groups() -> None:
    scenario = Scenario(4, 2, GROW, groups=BOTH)
    text = to_json(scenario)
    assert '"groups": [{"name": "full"}, {"name": "window", "window": 3}]' in text
    assert from_json(text) == scenario
    assert "groups" not in to_json(replace(scenario, groups=None))
    with pytest.raises(BadScenario, match="groups"):
        from_json(text.replace('"window": 3', '"width": 3'))


def test_a_counterexample_is_told_with_its_groups() -> None:
    told = Told()
    scenario = Scenario(12, 2, GROW, groups=BOTH)
    lines = "\n".join(explain(registration(group_faults.WindowGivenBackPerSharer), scenario, told))
    assert told.verdict is None
    assert "a in group window null #" in lines
    lines = "\n".join(explain(registration(NullInFull), scenario, told))
    assert "group full, group window (window 3)" in lines
    assert isinstance(told.verdict, Violation)
    assert set(told.verdict.tables) == {"a in group full", "a in group window"}


def test_wrong_calls_are_tried_on_groups_too() -> None:
    (grouped,) = find("kvassay.impls.faulty.grouped")
    tried = {answer.misuse for answer in answers(grouped)}
    assert {"block_table of an unknown request", "block_table in an unknown group"} <= tried
