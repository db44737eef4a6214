"""Faults planted in the Triton kernel are convicted by the check that the list names for each.

Each is tried in a fork: a kernel that reads or writes anywhere may end its process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator

import pytest
import torch

from kvassay.harness.attention import checks
from kvassay.harness.attention.campaign import Effort, Outcome, run
from kvassay.harness.attention.case import Case
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.offers import Offers
from kvassay.impls.faulty.triton_edits import KERNELS, TritonFault
from kvassay.impls.faulty.triton_kernels import FAULTS
from kvassay.impls.interpreted import DECLARED, triton_attention

pytest.importorskip("triton")

EFFORT = Effort(seconds=10.0, shrink_seconds=0.0)
PLANTED = [pytest.param(name, marks=pytest.mark.long) for name in FAULTS]
"""Each takes seconds in the interpreter; ``tox run -e trial -- --profile ci`` tries a third."""


@pytest.fixture(scope="module")
def accepted() -> Iterator[dict[Case, bool]]:
    """What the kernel accepts: asked once, as no fault changes it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    sound = Kernel(triton_attention(), DECLARED)
    Offers(sound)
    yield sound.accepted
    torch.set_num_threads(before)


def in_a_fork(work: Callable[[], list[object]]) -> list[object] | None:
    """What a function returns there; None if the process ended before."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answers:
        answer = answers.read()
    os.waitpid(child, 0)
    return json.loads(answer) if answer else None


def outcome_of(fault: TritonFault, accepted: dict[Case, bool], effort: Effort) -> Outcome:
    kernel = Kernel(fault.build(), DECLARED, f"triton-fault-{fault.name}")
    kernel.reference = "kvassay.impls.faulty.triton_kernels"
    kernel.accepted.update(accepted)
    return run(checks.find(fault.check), kernel, effort, [])


def test_there_are_enough_faults() -> None:
    assert len(FAULTS) >= 40


@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_is_convicted_by_the_check_named(name: str, accepted: dict[Case, bool]) -> None:
    fault = FAULTS[name]

    def convicted() -> list[object]:
        finding = outcome_of(fault, accepted, EFFORT).finding
        return [] if finding is None else [finding.invariant, str(finding.verdict)]

    told = in_a_fork(convicted)
    assert told is not None, "it ended its process"
    assert told, "not convicted"
    assert told[0] in fault.accepted, told[1]


def test_without_a_fault_the_copy_is_the_kernel(accepted: dict[Case, bool]) -> None:
    line = "split = tl.program_id(2)"
    same = TritonFault("same", frozenset(), "oracle", KERNELS, line, line)
    outcome = outcome_of(same, accepted, Effort(cases=6, seconds=60.0))
    assert outcome.finding is None
    assert outcome.judged == 6


def test_an_edit_has_to_hit_exactly_once() -> None:
    nowhere = TritonFault("nowhere", frozenset(), "oracle", KERNELS, "there is no such line", "")
    with pytest.raises(ValueError, match="once, found it 0 times"):
        nowhere.build()


def test_a_process_that_ends_is_told_from_an_answer() -> None:
    assert in_a_fork(lambda: ["an answer"]) == ["an answer"]
    assert in_a_fork(lambda: os._exit(1)) is None
