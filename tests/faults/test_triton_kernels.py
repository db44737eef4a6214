"""Faults planted in the Triton kernel are convicted by the check that the list names for each."""

from __future__ import annotations

import pytest

from kvassay.harness.attention import checks
from kvassay.harness.attention.campaign import Effort, run
from kvassay.harness.attention.driver import Kernel
from kvassay.impls.faulty.triton_edits import KERNELS, TritonFault
from kvassay.impls.faulty.triton_kernels import FAULTS
from kvassay.impls.interpreted import DECLARED

pytest.importorskip("triton")

EFFORT = Effort(seconds=10.0, shrink_seconds=0.0)


def test_there_are_enough_faults() -> None:
    assert len(FAULTS) >= 40


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_convicted_by_the_check_named(name: str) -> None:
    fault = FAULTS[name]
    kernel = Kernel(fault.build(), DECLARED, f"triton-fault-{name}")
    kernel.reference = "kvassay.impls.faulty.triton_kernels"
    outcome = run(checks.find(fault.check), kernel, EFFORT, [])
    assert outcome.finding is not None, f"not convicted on {outcome.judged} cases"
    assert outcome.finding.invariant in fault.accepted, str(outcome.finding.verdict)


def test_an_edit_has_to_hit_exactly_once() -> None:
    nowhere = TritonFault("nowhere", frozenset(), "oracle", KERNELS, "there is no such line", "")
    with pytest.raises(ValueError, match="once, found it 0 times"):
        nowhere.build()


def test_without_a_fault_the_copy_is_the_kernel() -> None:
    same = TritonFault(
        "same",
        frozenset(),
        "oracle",
        KERNELS,
        "split = tl.program_id(2)",
        "split = tl.program_id(2)",
    )
    outcome = run(
        checks.find("oracle"), Kernel(same.build(), DECLARED, "same"), Effort(cases=6), []
    )
    assert outcome.finding is None
    assert outcome.judged == 6
