"""The SGLang adapter on small examples whose numbers can be checked by hand, tree against tree."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import pytest
from convicting import convict, registered

from kvassay.harness import registry
from kvassay.harness.contract import CacheKey, Counters, EventKind, Outcome, OutOfBlocks
from kvassay.harness.control.contract_stages import contender
from kvassay.harness.control.steps import Step, measure
from kvassay.impls.engines import sglang as adapter
from kvassay.impls.faulty.sglang import FAULTS

RELEASE = [f"sglang-{tree}" for tree in adapter.TREES]
COMMIT = [f"{name}-commit" for name in RELEASE]
PEEKING = [name for name in (*RELEASE, *COMMIT) if "unified" in name]


def test_importing_the_adapter_does_not_import_sglang() -> None:
    code = "import kvassay.impls.engines.sglang, sys; sys.exit('sglang' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def build() -> Any:
    # Not importorskip: the whole package would want torchvision, transformers and Triton.
    registration = registry.find("sglang-radix")[0]
    if not registration.available:
        pytest.skip(registration.wanted)

    def new(name: str, num_blocks: int = 8, block_size: int = 4) -> Any:
        (found,) = registry.find(name)
        return found.build(num_blocks=num_blocks, block_size=block_size)

    return new


def key(num_tokens: int, **more: Any) -> CacheKey:
    return CacheKey(range(num_tokens), **more)


def serve(manager: Any, wanted: CacheKey, request: str = "served") -> int:
    hit: int = manager.admit(request, wanted)
    if manager.commits:
        manager.commit(request, len(wanted.tokens))
    manager.release(request)
    return hit


@pytest.mark.parametrize("name", [*RELEASE, *COMMIT])
def test_leaves_one_token_to_compute(build: Any, name: str) -> None:
    manager = build(name)
    assert serve(manager, key(16)) == 0
    assert manager.admit("a", key(16)) == 12
    assert manager.block_table("a") == [1, 2, 3, 5]
    assert manager.counters() == Counters(free=3, cached=1, used=4)


@pytest.mark.parametrize("size", [1, 16])
@pytest.mark.parametrize("name", [*RELEASE, *COMMIT])
def test_ships_pages_of_1_and_16(build: Any, name: str, size: int) -> None:
    manager = build(name, block_size=size)
    assert serve(manager, key(3 * size)) == 0
    assert manager.admit("a", key(3 * size)) == 2 * size
    manager.append("a", range(size))
    assert len(manager.block_table("a")) == 4
    assert set(manager.block_table("a")) <= set(range(1, 9))


@pytest.mark.parametrize("name", RELEASE)
def test_publishes_what_finished_and_was_aborted_but_not_what_was_retracted(
    build: Any, name: str
) -> None:
    manager = build(name)
    hits = {}
    for number, outcome in enumerate(Outcome):
        tokens = tuple(range(100 * number, 100 * number + 4))
        manager.admit("a", CacheKey(tokens))
        manager.release("a", outcome)
        hits[outcome] = manager.admit("a", CacheKey((*tokens, 0)))
        manager.release("a", Outcome.FAILED)
    assert hits == {
        Outcome.FINISHED: 4,
        Outcome.ABORTED: 4,
        Outcome.PREEMPTED: 0,
        Outcome.FAILED: 0,
    }


@pytest.mark.parametrize("name", RELEASE)
def test_publishes_appended_tokens_too(build: Any, name: str) -> None:
    manager = build(name)
    manager.admit("a", key(6))
    manager.append("a", [6])
    manager.append("a", [7, 8, 9])
    assert len(manager.block_table("a")) == 3
    manager.release("a")
    assert manager.counters() == Counters(free=6, cached=2, used=0)
    assert manager.admit("b", key(10)) == 8


@pytest.mark.parametrize("name", COMMIT)
def test_publishes_whole_pages_at_commit(build: Any, name: str) -> None:
    manager = build(name)
    manager.admit("a", key(10))
    assert manager.admit("b", key(10)) == 0
    manager.release("b")
    manager.commit("a", 7)
    assert manager.admit("b", key(10)) == 4
    manager.release("b")
    manager.append("a", [10, 11])
    manager.commit("a", 12)
    assert manager.admit("b", key(16)) == 12


@pytest.mark.parametrize("name", COMMIT)
def test_accepts_only_a_growing_commit_within_the_request(build: Any, name: str) -> None:
    manager = build(name)
    manager.admit("a", key(6))
    with pytest.raises(ValueError, match="0 < num_tokens <= 6, got 7"):
        manager.commit("a", 7)
    manager.commit("a", 6)
    with pytest.raises(ValueError, match="6 < num_tokens <= 6, got 6"):
        manager.commit("a", 6)


@pytest.mark.parametrize("name", COMMIT)
def test_moves_the_second_writer_to_the_pages_of_the_first(build: Any, name: str) -> None:
    manager = build(name)
    for request in ("a", "b"):
        manager.admit(request, key(9))
    assert manager.block_table("b") == [4, 5, 6]
    for request in ("a", "b"):
        manager.commit(request, 9)
    assert manager.block_table("a") == [1, 2, 3]
    assert manager.block_table("b") == [1, 2, 6]
    assert manager.counters() == Counters(free=4, cached=0, used=4)


@pytest.mark.parametrize("name", COMMIT)
def test_keeps_nothing_of_what_was_not_committed(build: Any, name: str) -> None:
    manager = build(name)
    manager.admit("a", key(8))
    manager.commit("a", 4)
    manager.release("a")
    assert manager.counters() == Counters(free=7, cached=1, used=0)


@pytest.mark.parametrize("name", [*RELEASE, *COMMIT])
def test_a_refusal_leaves_live_requests_alone(build: Any, name: str) -> None:
    manager = build(name, num_blocks=4)
    manager.admit("a", key(15))
    before = manager.block_table("a"), manager.counters()
    with pytest.raises(OutOfBlocks):
        manager.append("a", [15, 16])
    with pytest.raises(OutOfBlocks):
        manager.admit("b", key(1))
    assert (manager.block_table("a"), manager.counters()) == before
    manager.append("a", [15])
    assert len(manager.block_table("a")) == 4


@pytest.mark.parametrize("name", [*RELEASE, *COMMIT])
def test_takes_the_last_page_that_is_not_in_use(build: Any, name: str) -> None:
    manager = build(name, num_blocks=4)
    serve(manager, CacheKey((7,) * 12))
    assert manager.admit("a", CacheKey((*(7,) * 4, *range(9)))) == 4
    assert manager.counters() == Counters(free=0, cached=0, used=4)


@pytest.mark.parametrize("name", [*RELEASE, *COMMIT])
def test_evicts_the_leaf_that_was_not_used_for_longest(build: Any, name: str) -> None:
    manager = build(name)
    serve(manager, CacheKey((7,) * 8))
    serve(manager, CacheKey((8,) * 4))
    serve(manager, CacheKey((7,) * 9))
    assert manager.evict(1) == 1
    assert manager.evict(1) == 2
    assert manager.evict(1) == 0
    assert manager.counters() == Counters(free=8, cached=0, used=0)


@pytest.mark.parametrize("name", [*RELEASE, *COMMIT])
def test_resets_only_when_nobody_is_there(build: Any, name: str) -> None:
    manager = build(name)
    serve(manager, key(8))
    manager.admit("a", key(4))
    with pytest.raises(ValueError, match="no live request, got 1"):
        manager.reset()
    manager.release("a")
    manager.reset()
    assert manager.counters() == Counters(free=8, cached=0, used=0)
    assert serve(manager, key(8)) == 0


@pytest.mark.parametrize("name", [*RELEASE, *COMMIT])
def test_keeps_salts_and_adapters_apart(build: Any, name: str) -> None:
    manager = build(name, num_blocks=16)
    keys = [key(5), key(5, salt="x"), key(5, adapter="x"), key(5, salt="x", adapter="x")]
    assert [serve(manager, each) for each in keys] == [0, 0, 0, 0]
    assert [serve(manager, each) for each in keys] == [4, 4, 4, 4]


@pytest.mark.parametrize("name", PEEKING)
def test_peeks_without_an_access(build: Any, name: str) -> None:
    manager = build(name)
    serve(manager, CacheKey((7,) * 8, salt="s"))
    serve(manager, CacheKey((8,) * 4))
    assert manager.peek(CacheKey((7,) * 8, salt="s")) == 4
    assert manager.peek(CacheKey((7,) * 9, salt="s")) == 8
    assert manager.peek(CacheKey((7,) * 9)) == 0
    assert manager.evict(1) == 2


@pytest.mark.parametrize("name", [*RELEASE, *COMMIT])
def test_names_salt_and_adapter_in_every_event(build: Any, name: str) -> None:
    manager = build(name)
    manager.take_events()
    serve(manager, key(8, salt="s"))
    (first,) = manager.take_events()
    serve(manager, key(12, salt="s"))
    (second,) = manager.take_events()
    assert (first.kind, first.parent, first.tokens) == (EventKind.STORED, None, tuple(range(8)))
    assert (second.parent, second.tokens) == (first.entries[1], (8, 9, 10, 11))
    assert (first.salt, second.salt) == ("s", "s")
    serve(manager, key(4, adapter="s"))
    (third,) = manager.take_events()
    assert (third.salt, third.adapter) == (None, "s")
    assert third.entries[0] != first.entries[0]


@pytest.mark.parametrize("name", [*RELEASE, *COMMIT])
def test_reports_removals_and_the_reset(build: Any, name: str) -> None:
    manager = build(name)
    manager.take_events()
    serve(manager, key(8))
    (stored,) = manager.take_events()
    manager.evict(1)
    (removed,) = manager.take_events()
    assert (removed.kind, removed.entries) == (EventKind.REMOVED, stored.entries)
    manager.reset()
    assert [event.kind for event in manager.take_events()] == [EventKind.CLEARED]


# ---------------------------------------------------------------------------------- tree by tree


MOVES = ("admit",) * 4 + ("release",) * 3 + ("append", "commit", "evict")


class Trio:
    """The three trees, doing the same and asked the same after every operation."""

    def __init__(self, managers: list[Any], rng: random.Random) -> None:
        self.managers = managers
        self.rng = rng
        self.live: list[str] = []
        self.stems = [tuple(rng.choices(range(4), k=3 * managers[0].block_size)) for _ in range(4)]
        self.counts = dict.fromkeys(("hit", "refused", "evicted"), 0)

    def each(self, method: str, *arguments: Any) -> Any:
        """What all of them answer; a refusal is an answer too."""
        answers = [self._one(manager, method, arguments) for manager in self.managers]
        assert answers[1:] == answers[:-1], (method, arguments)
        assert self._seen(1) == self._seen(0) == self._seen(2), (method, arguments)
        self.counts["refused"] += answers[0] == "refused"
        return answers[0]

    @staticmethod
    def _one(manager: Any, method: str, arguments: tuple[Any, ...]) -> Any:
        try:
            return getattr(manager, method)(*arguments)
        except OutOfBlocks:
            return "refused"

    def _seen(self, number: int) -> Any:
        """Tables, with blocks renamed in the order in which they appear, and counters."""
        manager, names = self.managers[number], dict[int, int]()
        tables = [
            [names.setdefault(block, len(names)) for block in manager.block_table(request)]
            for request in self.live
            if request in manager._requests
        ]
        return tables, manager.counters()

    def step(self, number: int) -> None:
        rng = self.rng
        move = rng.choice(MOVES)
        if move == "admit":
            request = f"r{number}"
            hit = self.each("admit", request, self._key())
            if hit != "refused":
                self.live.append(request)
                self.counts["hit"] += hit > 0
                self.commit(request)
        elif move == "evict" and rng.random() < 0.5:
            self.counts["evicted"] += self.each("evict", rng.randint(1, 3))
        elif self.live and move == "append":
            self.each("append", rng.choice(self.live), rng.choices(range(4), k=rng.randint(1, 5)))
        elif self.live and move == "commit":
            self.commit(rng.choice(self.live))
        elif self.live and move == "release":
            request = self.live.pop(rng.randrange(len(self.live)))
            self.each("release", request, rng.choice(tuple(Outcome)))

    def commit(self, request: str) -> None:
        req = self.managers[0]._requests[request]
        committed, length = req.prefix_len, req.kv.kv_allocated_len
        if self.managers[0].commits and committed < length:
            self.each("commit", request, self.rng.randint(committed + 1, length))

    def _key(self) -> CacheKey:
        rng = self.rng
        stem = rng.choice(self.stems)
        tokens = (*stem[: rng.randint(1, len(stem))], *rng.choices(range(4), k=rng.randint(0, 4)))
        return CacheKey(tokens, salt=rng.choice((None, None, "s")))


@pytest.mark.parametrize("size", [1, 4, 16])
@pytest.mark.parametrize("names", [RELEASE, COMMIT], ids=["release", "commit"])
def test_the_three_trees_decide_alike(build: Any, names: list[str], size: int) -> None:
    counts = dict.fromkeys(("hit", "refused", "evicted"), 0)
    for seed in range(8):
        rng = random.Random(seed)
        num_blocks = rng.choice((8, 16, 24))
        trio = Trio([build(name, num_blocks, size) for name in names], rng)
        for number in range(120):
            trio.step(number)
        for request in trio.live:
            trio.each("release", request)
        counts = {kind: count + trio.counts[kind] for kind, count in counts.items()}
    assert min(counts.values()) > 20, counts


# ----------------------------------------------------------------------------------- the faults


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_leave_the_stock_adapter_alone(build: Any, name: str) -> None:
    build(f"sglang-fault-{name}")
    manager = build("sglang-radix-commit")
    for request in ("a", "b"):
        manager.admit(request, key(16))
    for request in ("a", "b"):
        manager.commit(request, 16)
        manager.release(request)
    assert manager.admit("c", CacheKey((1,) * 32)) == 0
    assert sorted(manager.block_table("c")) == list(range(1, 9))
    manager.release("c")
    assert manager.admit("d", key(16)) == 0


@pytest.mark.parametrize("blind", [False, True], ids=["inspected", "blind"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_convicted(build: Any, name: str, blind: bool) -> None:
    faulty = registered("kvassay.impls.faulty.sglang", f"sglang-fault-{name}", blind=blind)
    stock = registered("kvassay.impls.engines.sglang", "sglang-radix-commit", blind=blind)
    convict(faulty, FAULTS[name].accepted, stock)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("name", RELEASE)
def test_its_own_stages_hit_what_is_shared(build: Any, name: str, page_size: int) -> None:
    build(name)
    (registration,) = registry.find(name)
    step = Step(3, prompt=40, shared=32, block_size=page_size, full=page_size == 1)
    timed = measure(step, [contender(registration)], rounds=1)
    assert all(seconds > 0 for seconds in timed[name].total(["look_up", "reserve", "append"]))
