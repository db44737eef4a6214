"""Kernels with one planted fault are convicted by what they break; unusual correct ones are not.

Each takes seconds, and a part of them is tried by ``tox run -e trial -- --profile ci``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kvassay.harness.attention import checks
from kvassay.harness.attention.campaign import Effort, Finding, run
from kvassay.harness.attention.check import CHECKS, Check
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.contract import ContractError
from kvassay.harness.trial.planted import Family
from kvassay.impls.faulty import registry
from kvassay.impls.faulty.kernel_controls import CONTROLS
from kvassay.impls.faulty.kernel_paths import FAULTS
from kvassay.impls.faulty.kernels import TORCH, KernelFault, edited

FEW = Effort(cases=8, seconds=0.4)
SMALL = 260
"""Keys of a shrunk case, all sequences together."""
LONG = {
    "alibi-in-nine-bits",
    "key-1024-lost",
    "long-cut-off",
    "scale-for-512-keys",
    "short-beside-long",
    "twelfth-tile-lost",
}
"""Faults that need more."""
SUBJECTS = {one.name: one.subject for one in registry.everything() if one.family is Family.TORCH}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def in_order(fault: KernelFault) -> list[Check]:
    """The check that is asked first, those that vouch for what the fault breaks, all others."""

    def far(check: Check) -> tuple[bool, bool]:
        return check.name != fault.first, not fault.accepted & {*check.invariants}

    return sorted(CHECKS.values(), key=far)


def first_finding(fault: KernelFault) -> Finding | None:
    for check in in_order(fault):
        outcome = run(check, SUBJECTS[fault.name](), Effort(), [])
        if outcome.finding is not None:
            return outcome.finding
    return None


def test_there_are_enough_faults_and_their_checks_exist() -> None:
    assert len(FAULTS) >= 30
    vouched = {invariant for check in CHECKS.values() for invariant in check.invariants}
    assert {invariant for fault in FAULTS.values() for invariant in fault.accepted} <= vouched
    assert {fault.first for fault in FAULTS.values()} <= {"", *CHECKS}
    assert checks.find("oracle").name == "oracle"


@pytest.mark.long
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_convicted_by_an_invariant_that_it_breaks(name: str) -> None:
    fault = FAULTS[name]
    finding = first_finding(fault)
    assert finding is not None, "not convicted"
    assert finding.invariant in fault.accepted, str(finding.verdict)
    assert sum(keys for keys, _ in finding.trial.case.seqs) <= SMALL or name in LONG


@pytest.mark.long
@pytest.mark.parametrize("name", CONTROLS)
def test_a_correct_kernel_passes_whatever_its_habits(name: str) -> None:
    control = CONTROLS[name]
    judged = 0
    for check in CHECKS.values():
        if check.unclaimed(control.declaration) is None:
            outcome = run(check, Kernel(control.build(), control.declaration, name), FEW, [])
            assert outcome.finding is None, f"{check.name}: {outcome.finding}"
            judged += outcome.judged
    assert judged > 50


def test_an_edit_has_to_hit_exactly_once() -> None:
    with pytest.raises(ValueError, match="once, found it 0 times"):
        edited(TORCH, "there is no such line", "")
    with pytest.raises(ValueError, match="once, found it"):
        edited(TORCH, "batch", "")
    with pytest.raises((ValueError, ContractError)):
        edited("kvassay.impls.nothing_of_the_kind", "", "")
