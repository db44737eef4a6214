"""SGLang's trees by themselves, on small examples whose numbers can be checked by hand."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from convicting import convict, registered

from kvassay.harness.campaign import Budget, Campaign, Geometry, Outcome
from kvassay.harness.contract import (
    CacheKey,
    Capability,
    Granularity,
    IndexCounters,
    Node,
    OutOfBlocks,
    Stamp,
)
from kvassay.harness.index.law import LAW
from kvassay.harness.registry import Registration
from kvassay.impls.engines import sglang_index as adapter
from kvassay.impls.faulty.sglang import FAULTS, INDEX_FAULTS

MODULE = "kvassay.impls.engines.sglang_index"
NAMES = [f"sglang-{tree}-index" for tree in adapter.TREES]
UNIFIED = NAMES[1:]
WALKING = NAMES[:2]
LOOKING = pytest.mark.parametrize("blind", [False, True], ids=["inspected", "blind"])


def test_importing_the_adapter_does_not_import_sglang() -> None:
    code = f"import {MODULE}, sys; sys.exit('sglang' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def stock(name: str, *, blind: bool = False) -> Registration:
    registration = registered(MODULE, name, blind=blind)
    if not registration.available:
        pytest.skip(registration.wanted)
    return registration


def build(name: str, capacity: int | None = None, page_size: int = 4) -> Any:
    return stock(name).build(capacity=capacity, page_size=page_size)


def key(num_tokens: int, **more: Any) -> CacheKey:
    return CacheKey(range(num_tokens), **more)


def store(index: Any, wanted: CacheKey, first: int) -> int:
    """Insert with the values first, first + 1, ...; the leading tokens that were there."""
    there: int = index.insert(wanted, range(first, first + len(wanted.tokens)))
    return there


@pytest.mark.parametrize("name", NAMES)
def test_finds_whole_pages_and_all_of_them(name: str) -> None:
    index = build(name)
    assert store(index, key(10), 100) == 0
    found = index.match(key(10))
    assert (found.length, list(found.values)) == (8, list(range(100, 108)))
    found = index.match(key(7))
    assert (found.length, list(found.values)) == (4, list(range(100, 104)))
    assert index.match(key(3)).length == 0
    assert index.counters() == IndexCounters(evictable=8, protected=0, total=8)


@pytest.mark.parametrize("name", NAMES)
def test_keeps_the_first_values_of_what_is_inserted_twice(name: str) -> None:
    index = build(name)
    store(index, key(8), 0)
    assert store(index, key(12), 100) == 8
    assert list(index.match(key(12)).values) == [*range(8), *range(108, 112)]
    assert sorted(index.evict(12)) == [*range(8), *range(108, 112)]


@pytest.mark.parametrize("name", NAMES)
def test_stops_at_what_an_insert_gives_back_beside_duplicates(name: str) -> None:
    index = build(name)
    store(index, key(8), 0)
    insert = index.tree.insert

    def give_back_too_much(params: Any) -> Any:
        index.ledger.free_segment(params.value, start_pos=0)
        return insert(params)

    index.tree.insert = give_back_too_much
    with pytest.raises(RuntimeError, match=r"expected the duplicates \[100, 101, .* 107\]"):
        store(index, key(12), 100)


@pytest.mark.parametrize("name", NAMES)
def test_protects_the_path_of_a_lock_as_often_as_it_is_locked(name: str) -> None:
    index = build(name)
    store(index, key(8), 0)
    handle = index.match(key(8)).handle
    index.lock(handle)
    index.lock(handle)
    assert index.match(key(4)).length == 4
    assert index.counters() == IndexCounters(evictable=0, protected=8, total=8)
    index.unlock(handle)
    assert index.evict(8) == []
    index.unlock(handle)
    assert sorted(index.evict(8)) == list(range(8))
    with pytest.raises(ValueError, match="without a receipt"):
        index.unlock(handle)


@pytest.mark.parametrize("name", NAMES)
def test_evicts_whole_leaves_least_recently_used_first(name: str) -> None:
    index = build(name)
    store(index, CacheKey((7,) * 8), 0)
    store(index, CacheKey((8,) * 4), 10)
    index.match(CacheKey((7,) * 8))
    assert index.evict(1) == [10, 11, 12, 13]
    assert sorted(index.evict(1)) == list(range(8))


@pytest.mark.parametrize("name", NAMES)
def test_refuses_what_a_pool_of_that_size_could_not_hold(name: str) -> None:
    index = build(name, capacity=12)
    store(index, key(8), 0)
    with pytest.raises(OutOfBlocks, match="16 tokens would be stored, 12 may be"):
        store(index, CacheKey((9,) * 8), 20)
    assert index.match(CacheKey((9,) * 8)).length == 0
    assert store(index, key(15), 40) == 8
    assert index.counters().total == 12


@pytest.mark.parametrize("name", NAMES)
def test_keeps_salts_and_adapters_apart_and_forgets_in_a_reset(name: str) -> None:
    index = build(name)
    keys = [key(4), key(4, salt="x"), key(4, adapter="x"), key(4, salt="x", adapter="x")]
    assert [store(index, each, 10 * at) for at, each in enumerate(keys)] == [0, 0, 0, 0]
    assert [index.match(each).values[0] for each in keys] == [0, 10, 20, 30]
    index.reset()
    assert [index.match(each).length for each in keys] == [0, 0, 0, 0]
    assert index.counters() == IndexCounters(evictable=0, protected=0, total=0)


@pytest.mark.parametrize("name", UNIFIED)
def test_peeks_without_an_access(name: str) -> None:
    index = build(name)
    store(index, CacheKey((7,) * 8, salt="s"), 0)
    store(index, CacheKey((8,) * 4), 10)
    assert index.peek(CacheKey((7,) * 9, salt="s")) == 8
    assert index.peek(CacheKey((7,) * 9)) == 0
    assert sorted(index.evict(1)) == list(range(8))


@pytest.mark.parametrize("name", WALKING)
def test_walks_over_nodes_with_tokens_values_and_locks(name: str) -> None:
    index = build(name)
    store(index, key(8), 0)
    index.lock(index.match(key(4)).handle)
    upper, lower = index.walk()
    assert upper == Node(upper.id, None, (0, 1, 2, 3), (0, 1, 2, 3), 1)
    assert lower == Node(lower.id, upper.id, (4, 5, 6, 7), (4, 5, 6, 7), 0)


# ------------------------------------------------------------------------------- what is declared


def assay(registration: Registration, page_size: int | None = None) -> Outcome:
    geometry = Geometry(block_size=page_size)
    return Campaign(registration, "index", Budget(120), geometry).run()


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("name", NAMES)
def test_a_stock_tree_passes_and_all_is_reached(name: str, page_size: int) -> None:
    registration = stock(name)
    outcome = assay(registration, page_size)
    assert outcome.findings == {}
    declared = registration.declaration
    claimed = [law for law in LAW.values() if law.claim(declared) is None]
    assert [law.id for law in claimed if law.missing(outcome.met, declared)] == []
    assert len(claimed) == len(LAW)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_declared_is_needed(name: str) -> None:
    registration = stock(name)
    declared = registration.declaration
    assert assay(registration).findings == {}
    by_page = replace(declared, granularity=Granularity.PAGE)
    assert "P9" in assay(replace(registration, declaration=by_page)).findings
    of_inserts = replace(declared, stamps=frozenset({Stamp.COMMIT}))
    assert "P10" in assay(replace(registration, declaration=of_inserts)).findings


def test_what_no_tree_can_be_asked_for_is_not_claimed() -> None:
    declared = {name: registered(MODULE, name, blind=False).declaration for name in NAMES}
    assert [name for name in NAMES if declared[name].has(Capability.WALK)] == WALKING
    assert [name for name in NAMES if declared[name].has(Capability.PEEK)] == UNIFIED


# ---------------------------------------------------------------------------------- tree by tree


MOVES = ("insert",) * 5 + ("match",) * 4 + ("unlock", "evict")


class Trio:
    """The three trees, doing the same and asked the same after every operation."""

    def __init__(self, rng: random.Random, page_size: int) -> None:
        self.rng = rng
        self.page_size = page_size
        self.indexes = [build(name, 8 * page_size, page_size) for name in NAMES]
        self.held: list[list[Any]] = []
        self.stems = [tuple(rng.choices(range(4), k=3 * page_size)) for _ in range(4)]
        self.next_value = 0
        self.counts = dict.fromkeys(("found", "refused", "evicted", "locked"), 0)

    def each(self, method: str, *arguments: Any) -> Any:
        answers = [_answer(index, method, arguments) for index in self.indexes]
        assert answers[1:] == answers[:-1], (method, arguments)
        counters = [index.counters() for index in self.indexes]
        assert counters[1:] == counters[:-1], (method, arguments)
        return answers[0]

    def step(self) -> None:
        rng = self.rng
        move = rng.choice(MOVES)
        if move == "insert":
            wanted = self._key()
            values = range(self.next_value, self.next_value + len(wanted.tokens))
            self.next_value = values.stop
            self.counts["refused"] += self.each("insert", wanted, values) == "refused"
        elif move == "match":
            self._match(self._key())
        elif move == "evict":
            self.counts["evicted"] += bool(self.each("evict", rng.randint(1, 3 * self.page_size)))
        elif self.held:
            self._unlock(self.held.pop(rng.randrange(len(self.held))))

    def _match(self, wanted: CacheKey) -> None:
        found = [index.match(wanted) for index in self.indexes]
        lengths = [(match.length, list(match.values)) for match in found]
        assert lengths[1:] == lengths[:-1], wanted
        self.counts["found"] += found[0].length > 0
        if found[0].length and self.rng.random() < 0.3:
            self.held.append([match.handle for match in found])
            self.counts["locked"] += 1
            for index, match in zip(self.indexes, found, strict=True):
                index.lock(match.handle)

    def _unlock(self, handles: list[Any]) -> None:
        for index, handle in zip(self.indexes, handles, strict=True):
            index.unlock(handle)

    def _key(self) -> CacheKey:
        rng = self.rng
        stem = rng.choice(self.stems)
        tokens = (*stem[: rng.randint(1, len(stem))], *rng.choices(range(4), k=rng.randint(0, 4)))
        return CacheKey(tokens, salt=rng.choice((None, None, "s")))


def _answer(index: Any, method: str, arguments: tuple[Any, ...]) -> Any:
    try:
        return getattr(index, method)(*arguments)
    except OutOfBlocks:
        return "refused"


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_the_three_trees_decide_alike(page_size: int) -> None:
    counts = dict.fromkeys(("found", "refused", "evicted", "locked"), 0)
    for seed in range(6):
        trio = Trio(random.Random(seed), page_size)
        for _ in range(150):
            trio.step()
        counts = {kind: count + trio.counts[kind] for kind, count in counts.items()}
    assert min(counts.values()) > 20, counts


# ----------------------------------------------------------------------------------- the faults


@LOOKING
@pytest.mark.parametrize("name", INDEX_FAULTS)
def test_a_fault_of_the_tree_is_convicted_by_itself(name: str, blind: bool) -> None:
    control = stock("sglang-radix-index", blind=blind)
    faulty = registered("kvassay.impls.faulty.sglang", f"sglang-index-fault-{name}", blind=blind)
    convict(faulty, INDEX_FAULTS[name].accepted, control)


@LOOKING
@pytest.mark.parametrize("name", NAMES)
def test_a_tree_without_a_fault_is_acquitted(name: str, blind: bool) -> None:
    outcome = assay(stock(name, blind=blind))
    assert outcome.findings == {}
    assert outcome.num_operations > 4_000


def test_most_faults_are_of_the_tree() -> None:
    assert INDEX_FAULTS.keys() < FAULTS.keys()
    assert len(INDEX_FAULTS) >= 6
    for name, fault in INDEX_FAULTS.items():
        assert fault.accepted <= set(LAW)
        assert fault.patch is FAULTS[name].patch
