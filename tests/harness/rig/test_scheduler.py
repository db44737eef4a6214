"""Who computes what in which step, on managers whose blocks can be counted by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kvassay.harness.contract import CacheManager, Capability, ContractError, Declaration, Outcome
from kvassay.harness.registry import Registration, find
from kvassay.harness.rig.jobs import Ended, Job, Reason
from kvassay.harness.rig.plan import StepPlan
from kvassay.harness.rig.scheduler import Limits, Scheduler

BLOCK = 4


def registered(name: str) -> Registration:
    reference = "kvassay.impls.faulty.controls" if name.startswith("control-") else name
    (entry,) = (e for e in find(reference) if e.kind is CacheManager and e.name == name)
    return entry


def scheduler(name: str, num_blocks: int, **limits: int) -> Scheduler:
    entry = registered(name)
    manager = entry.build(num_blocks=num_blocks, block_size=BLOCK)
    return Scheduler(manager, entry.declaration, Limits(**limits))


def job(name: str, length: int, max_tokens: int = 4, *, start: int = 0, **more: Any) -> Job:
    """Prompts with different starts have nothing in common."""
    return Job(name, tuple(range(start, start + length)), max_tokens, **more)


def go(running: Scheduler, plan: StepPlan, *tokens: int) -> tuple[Ended, ...]:
    """Complete a step; every branch gets these tokens, one unless said otherwise."""
    chosen = tokens or (9,)
    return running.complete(plan, {c.name: chosen for c in plan.chunks if c.samples})


def shape(plan: StepPlan) -> list[tuple[str, int, int]]:
    return [(chunk.name, chunk.start, chunk.stop) for chunk in plan.chunks]


def test_first_come_first_served_within_the_budget() -> None:
    running = scheduler("radix", 16, step_tokens=10)
    for number, name in enumerate("abc"):
        running.add(job(name, 6, start=100 * number))
    first = running.step()
    assert shape(first) == [("a", 0, 6), ("b", 0, 4)]
    assert [chunk.samples for chunk in first.chunks] == [True, False]
    assert [branch.name for branch in running.waiting] == ["c"]
    go(running, first)
    second = running.step()
    assert shape(second) == [("a", 6, 7), ("b", 4, 6), ("c", 0, 6)]
    assert [chunk.name for chunk in second.decodes] == ["a"]
    assert second.num_tokens == 9


def test_a_prompt_that_cannot_be_cut_is_computed_whole() -> None:
    running = scheduler("control-drafts-at-release", 16, step_tokens=5)
    running.add(job("a", 12))
    running.add(job("b", 6))
    first = running.step()
    assert shape(first) == [("a", 0, 12)]
    go(running, first)
    second = running.step()
    assert shape(second) == [("a", 12, 13)]
    assert [branch.name for branch in running.waiting] == ["b"]


def test_what_was_hit_is_not_computed() -> None:
    running = scheduler("radix", 16)
    running.add(job("a", 8, 1))
    go(running, running.step())
    running.add(job("b", 11, 1))
    plan = running.step()
    assert shape(plan) == [("b", 8, 11)]
    (admission,) = plan.admitted
    assert (admission.hit, admission.length, admission.again) == (8, 11, False)


def test_a_job_ends_with_its_last_token_or_a_stop_token() -> None:
    running = scheduler("paged", 16)
    running.add(job("long", 3, 2))
    running.add(job("stopped", 3, 9, start=50, stop=frozenset({9})))
    (ended,) = go(running, running.step())
    assert (ended.job.name, ended.reason, ended.outputs) == ("stopped", Reason.DONE, ((9,),))
    (ended,) = go(running, running.step())
    assert (ended.job.name, ended.outputs) == ("long", ((9, 9),))
    assert running.idle
    assert not running.step().chunks


def test_the_last_to_come_gives_way_and_comes_back_first() -> None:
    running = scheduler("paged", 3)
    for number, name in enumerate("abc"):
        running.add(job(name, 4, 2, start=100 * number))
    go(running, running.step())
    assert len(running.running) == 3
    plan = running.step()
    assert [branch.name for branch in plan.preempted] == ["c", "b"]
    assert shape(plan) == [("a", 4, 5)]
    assert [branch.name for branch in running.waiting] == ["b", "c"]
    assert [branch.output for branch in running.waiting] == [(9,), (9,)]
    (ended,) = go(running, plan)
    assert (ended.job.name, ended.preemptions) == ("a", 0)
    again = running.step()
    assert shape(again) == [("b", 0, 5)]
    assert [admission.again for admission in again.admitted] == [True]
    (ended,) = go(running, again)
    assert (ended.outputs, ended.preemptions) == (((9, 9),), 1)


def test_the_last_one_itself_may_be_the_victim() -> None:
    running = scheduler("paged", 3)
    running.add(job("a", 8, 6))
    running.add(job("b", 4, 6, start=100))
    go(running, running.step())
    plan = running.step()
    assert [branch.name for branch in plan.preempted] == ["b"]
    assert shape(plan) == [("a", 8, 9)]


def test_a_chunk_waits_while_others_go_on() -> None:
    running = scheduler("radix", 4, step_tokens=5)
    running.add(job("a", 4, 6))
    running.add(job("b", 11, 2, start=100))
    go(running, running.step())  # a, and one token of b
    plan = running.step()  # a takes the second block
    assert shape(plan) == [("a", 4, 5), ("b", 1, 5)]
    go(running, plan)
    stalled = running.step()
    assert shape(stalled) == [("a", 5, 6)]
    assert not stalled.preempted
    assert [branch.name for branch in running.running] == ["a", "b"]


@pytest.mark.parametrize("length", [17, 40])
def test_what_never_fits_is_told_so_and_nobody_waits_for_it(length: int) -> None:
    running = scheduler("paged", 4)
    running.add(job("giant", length))
    running.add(job("other", 4, start=100))
    plan = running.step()
    (ended,) = plan.ended
    assert (ended.job.name, ended.reason, ended.outputs) == ("giant", Reason.NO_ROOM, ((),))
    assert "4" in ended.detail
    assert shape(plan) == [("other", 0, 4)]


def test_what_outgrows_the_pool_keeps_what_it_has() -> None:
    running = scheduler("paged", 2)
    running.add(job("a", 7, 9))
    running.add(job("b", 4, 1, start=100))
    for _ in range(2):
        assert not go(running, running.step())
    plan = running.step()
    (ended,) = plan.ended
    assert (ended.job.name, ended.reason, ended.outputs) == ("a", Reason.NO_ROOM, ((9, 9),))
    assert shape(plan) == [("b", 0, 4)]


def test_a_run_that_is_too_short_is_made_anew_before_it_is_given_up() -> None:
    running = scheduler("contiguous-pow2", 4)
    running.add(job("a", 3, 9))
    for _ in range(2):
        go(running, running.step())
    plan = running.step()
    assert [branch.name for branch in plan.preempted] == ["a"]
    assert shape(plan) == [("a", 0, 5)]


def test_an_abort_between_steps_frees_at_once() -> None:
    running = scheduler("paged", 2)
    running.add(job("a", 8))
    running.add(job("b", 8, start=100))
    go(running, running.step())
    running.abort("a")
    plan = running.step()
    assert [ended.reason for ended in plan.ended] == [Reason.ABORTED]
    assert shape(plan) == [("b", 0, 8)]
    go(running, plan)
    running.abort("b")
    assert not running.step().chunks
    with pytest.raises(KeyError, match="no job 'b'"):
        running.abort("b")


def test_an_abort_within_a_step_waits_for_what_is_under_way() -> None:
    running = scheduler("radix", 8)
    running.add(job("a", 8))
    plan = running.step()
    running.abort("a")
    with pytest.raises(ValueError, match="in use"):
        running.add(job("a", 3))
    assert running.managed.table("a")
    (ended,) = running.complete(plan, {})
    assert ended.reason is Reason.ABORTED
    running.add(job("b", 9, 1))  # what was computed is there
    assert shape(running.step()) == [("b", 8, 9)]


def test_samples_share_the_prompt() -> None:
    running = scheduler("paged", 8)
    running.add(job("a", 5, 2, width=3))
    go(running, running.step(), 1, 2, 3)
    assert [branch.name for branch in running.running] == ["a", "a+1", "a+2"]
    assert len({tuple(running.managed.table(b.name)) for b in running.running}) == 1
    plan = running.step()
    assert shape(plan) == [("a", 5, 6), ("a+1", 5, 6), ("a+2", 5, 6)]
    assert sum(len(transfer.copies) for transfer in plan.transfers) == 2
    (ended,) = go(running, plan)
    assert ended.outputs == ((1, 9), (2, 9), (3, 9))


def test_samples_without_fork_are_admitted_on_their_own() -> None:
    running = scheduler("contiguous-pow2", 8)
    running.add(job("a", 5, 3, width=2))
    go(running, running.step(), 1, 2)
    assert [branch.name for branch in running.waiting] == ["a+1"]
    assert shape(running.step()) == [("a", 5, 6), ("a+1", 0, 6)]


def test_beams_advance_together_fork_and_are_dropped() -> None:
    running = scheduler("paged", 16)
    running.add(job("a", 6, 3, width=2, lockstep=True))
    go(running, running.step(), 1, 2)
    plan = running.step()
    assert not running.complete(plan, {"a": (3, 4), "a+1": ()})
    assert [branch.output for branch in running.running] == [(1, 3), (1, 4)]
    (ended,) = go(running, running.step(), 5)
    assert sorted(ended.outputs) == [(1, 3, 5), (1, 4, 5)]


def test_beams_are_preempted_together_and_meet_again() -> None:
    running = scheduler("contiguous-oracle", 6, step_tokens=64)
    running.add(job("first", 8, 9))
    running.add(job("a", 5, 4, width=2, lockstep=True, start=100))
    plan = running.step()
    running.complete(plan, {"first": (9,), "a": (1, 2)})
    seen = []
    for _ in range(30):
        plan = running.step()
        seen.append({chunk.stop for chunk in plan.chunks if chunk.samples and chunk.job == "a"})
        go(running, plan)
        if running.idle:
            break
    assert running.idle
    assert all(len(stops) <= 1 for stops in seen)
    assert {stop for stops in seen for stop in stops} == {6, 7, 8}


def test_beams_that_can_never_be_resident_together_end() -> None:
    running = scheduler("contiguous-oracle", 3)
    running.add(job("a", 8, 4, width=2, lockstep=True))
    running.add(job("b", 4, 1, start=100))
    plan = running.step()
    running.complete(plan, {"a": (1, 2), "b": (9,)})
    running.add(job("c", 4, 1, start=200))
    plan = running.step()
    assert [ended.reason for ended in plan.ended] == [Reason.NO_ROOM]
    assert shape(plan) == [("c", 0, 4)]


class Recorder:
    """A manager that commits, and what it was told."""

    num_blocks, block_size = 8, BLOCK

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def admit(self, request: str, key: Any) -> int:
        self.told.append(("admit", request))
        return 0

    def append(self, request: str, tokens: Sequence[int]) -> None:
        self.told.append(("append", request, list(tokens)))

    def commit(self, request: str, num_tokens: int) -> None:
        self.told.append(("commit", request, num_tokens))

    def block_table(self, request: str) -> list[int]:
        return [0, 1, 2]

    def release(self, request: str, outcome: Outcome = Outcome.FINISHED) -> None:
        self.told.append(("release", request, outcome))

    def take_zeroes(self) -> list[int]:
        self.told.append(("zeroes",))
        return [len(self.told)]


def test_nothing_is_committed_before_its_step_is_complete() -> None:
    manager = Recorder()
    declaration = Declaration(capabilities=frozenset({Capability.COMMIT}))
    running = Scheduler(manager, declaration, Limits(step_tokens=4))
    running.add(job("a", 6, 2))
    first = running.step()
    assert manager.told == [("admit", "a")]
    go(running, first)
    assert manager.told[1:] == [("commit", "a", 4)]
    go(running, running.step())
    go(running, running.step())
    assert manager.told[2:] == [
        ("commit", "a", 6),
        ("append", "a", [9]),
        ("commit", "a", 7),
        ("release", "a", Outcome.FINISHED),
    ]


def test_what_an_operation_asks_of_the_device_is_collected_in_order() -> None:
    manager = Recorder()
    declaration = Declaration(capabilities=frozenset({Capability.ZEROES}))
    running = Scheduler(manager, declaration)
    running.add(job("a", 3, 1))
    running.add(job("b", 3, 1))
    plan = running.step()
    assert [transfer.zeroes for transfer in plan.transfers] == [(2,), (4,)]
    go(running, plan)
    assert [transfer.zeroes for transfer in running.step().transfers] == [(6,), (8,)]


def test_steps_and_completions_take_turns() -> None:
    running = scheduler("paged", 4)
    running.add(job("a", 3))
    plan = running.step()
    with pytest.raises(RuntimeError, match="step 1 is not complete"):
        running.step()
    with pytest.raises(ValueError, match="expected tokens for"):
        running.complete(plan, {})
    go(running, plan)
    with pytest.raises(ValueError, match="the plan of the last step"):
        go(running, plan)


def test_wrong_jobs_are_refused() -> None:
    running = scheduler("paged", 4)
    running.add(job("a", 3))
    with pytest.raises(ValueError, match="'a' is in use"):
        running.add(job("a", 3))
    for wrong in ({"prompt": ()}, {"prompt": (-1,)}, {"max_tokens": 0}, {"width": 0}):
        with pytest.raises(ValueError, match="expected"):
            Job(**{"name": "b", "prompt": (1,), "max_tokens": 1, **wrong})
    with pytest.raises(ValueError, match="expected numbers of at least 1"):
        Limits(step_tokens=0)


def test_a_salt_is_honoured_or_refused() -> None:
    running = scheduler("radix", 8)
    for name, salt in (("a", "x"), ("b", "y"), ("c", "x")):
        running.add(job(name, 8, 1, salt=salt))
        plan = running.step()
        assert plan.admitted[0].hit == (7 if name == "c" else 0)
        go(running, plan)
    unsalted = Declaration(capabilities=frozenset({Capability.PREFIX_CACHE}))
    with pytest.raises(ValueError, match="SALT"):
        Scheduler(Recorder(), unsalted).add(job("a", 3, salt="x"))


def test_managers_with_storage_of_their_own_are_refused_unless_they_tell_their_copies() -> None:
    owns = Declaration(capabilities=frozenset({Capability.STORAGE}))
    with pytest.raises(ContractError, match="needs COPIES beside STORAGE"):
        Scheduler(Recorder(), owns)
    Scheduler(Recorder(), Declaration(capabilities=["storage", "copies"]))
