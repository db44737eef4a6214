"""The checks of S1 to S3 on a device without a model: correct managers pass, faults are convicted.

A fault is planted either in how the rig uses a manager, or in the manager.
"""

from __future__ import annotations

from functools import cache

import pytest

from kvassay.harness.circumstances import Checked
from kvassay.harness.contract import CacheManager
from kvassay.harness.registry import Registration, find
from kvassay.harness.rig.checking import Answer, Met, Subject
from kvassay.harness.rig.conformance import CHECKS, Check, Progress
from kvassay.harness.rig.device import Device
from kvassay.harness.rig.jobs import Job
from kvassay.harness.rig.rig import Rig
from kvassay.harness.rig.tagged import Ranking, TaggedDevice, TaggedReference, follows
from kvassay.impls.faulty.rig import CONTROLS, FAULTS

BUILT_IN = ("paged", "radix", "contiguous", "contiguous-pow2", "contiguous-oracle")
UNUSUAL = ("bump", "drafts-at-release", "lookahead", "row-limit", "sparse-ids", "watermark")
LACKING = {"warm": BUILT_IN[:1] + BUILT_IN[2:], "in chunks": ("control-drafts-at-release",)}
UNREACHED = {("contiguous", Met.PREEMPTED), ("control-row-limit", Met.DROPPED)}
"""A run of the longest length never runs out; two branches at a time are no three beams."""


@cache
def registered(name: str) -> Registration:
    reference = name
    if name.startswith(("fault-", "control-")):
        module = "managers" if name.startswith("fault-") else "controls"
        reference = f"kvassay.impls.faulty.{module}"
    (entry,) = (e for e in find(reference) if e.kind is CacheManager and e.name == name)
    return entry


def subject(manager: str, rig: type[Rig] = Rig, block_size: int = 4) -> Subject:
    def device(num_blocks: int, size: int) -> Device:
        return TaggedDevice(size)

    return Subject(registered(manager), device, TaggedReference(), rig, block_size)


def problems(checked: list[Checked[Met]]) -> list[str]:
    return [f"{c.invariant}, {c.circumstance}: {c.problem}" for c in checked if c.problem]


@pytest.mark.parametrize("name", [*BUILT_IN, *(f"control-{name}" for name in UNUSUAL)])
def test_correct_managers_pass(name: str) -> None:
    checked = [check(subject(name)) for check in CHECKS]
    assert not problems(checked)
    unmet = {(name, met) for one in checked for met in one.missing}
    assert unmet <= UNREACHED
    claimed = [one for one in checked if one.unclaimed is None]
    assert all(one.passed or one.missing for one in claimed)
    for one in checked:
        lacking = name in LACKING.get(one.circumstance, ())
        assert lacking <= (one.unclaimed is not None), one.circumstance


@pytest.mark.parametrize("block_size", [1, 16])
def test_the_built_in_prefix_cache_passes_with_blocks_of_any_size(block_size: int) -> None:
    checked = [check(subject("radix", block_size=block_size)) for check in CHECKS]
    assert not problems(checked)
    assert all(one.passed for one in checked)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_engine_is_convicted_by_its_invariant(name: str) -> None:
    fault = FAULTS[name]
    checked = [check(subject("radix", fault.build)) for check in CHECKS]
    convicting = {one.invariant for one in checked if one.problem is not None}
    assert fault.accepted[0] in convicting
    assert convicting <= set(fault.accepted), problems(checked)
    assert not any(one.crashed for one in checked), problems(checked)


def test_every_invariant_has_faults_of_several_shapes() -> None:
    first = [fault.accepted[0] for fault in FAULTS.values()]
    assert all(first.count(invariant) >= 2 for invariant in ("S1", "S2", "S3"))
    assert all("\n" in fault.hides for fault in FAULTS.values())


@pytest.mark.parametrize("name", CONTROLS)
def test_unusual_correct_engines_pass(name: str) -> None:
    checked = [check(subject("radix", CONTROLS[name])) for check in CHECKS]
    assert not problems(checked)
    assert sum(one.passed for one in checked) >= 6


@pytest.mark.parametrize(
    ("name", "invariant"),
    [
        ("copy-forgotten", "S1"),
        ("fork-forgets-parent-reference", "S1"),
        ("key-drops-last-token", "S1"),
        ("recycled-keeps-key", "S1"),
        ("refusal-keeps-blocks", "S2"),
        ("abort-leaks", "S3"),
    ],
)
def test_a_fault_of_the_manager_shows_in_what_the_engine_answers(name: str, invariant: str) -> None:
    found = [check(subject(f"fault-{name}")) for check in CHECKS if check.invariant == invariant]
    assert any(one.problem is not None and not one.crashed for one in found)


def test_a_crash_is_told_apart() -> None:
    class Breaks(Rig):
        def work_of(self, chunk: object) -> object:  # type: ignore[override]
            raise ZeroDivisionError("of no use")

    checked = Progress()(subject("paged", Breaks))
    assert checked.crashed
    assert checked.problem == "ZeroDivisionError: of no use"
    assert not checked.passed


def test_circumstances_that_were_not_met_are_no_pass() -> None:
    class Never(Check):
        wanted = (Met.HIT,)

        def runs(self, subject: Subject) -> object:  # type: ignore[override]
            return iter(())

    checked = Never()(subject("paged"))
    assert checked.problem is None
    assert checked.missing == (Met.HIT,)
    assert not checked.passed


def test_the_reference_sees_every_difference() -> None:
    job = Job("j", (1, 2, 3), 2)
    first = follows(job.prompt)
    second = follows((*job.prompt, first.first))
    output = (first.first, second.first)
    reference = TaggedReference()
    assert reference.problem([Answer(job, output, (first, second))]) is None
    other = Ranking(second.first + 1)
    assert "token 1" in str(reference.problem([Answer(job, output, (first, other))]))
    assert "token 1" in str(reference.problem([Answer(job, output, (first, None))]))
    swapped = Answer(job, (other.first, second.first), (first, second))
    assert "token 0" in str(reference.problem([swapped]))
