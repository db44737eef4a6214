"""Misuse is refused with an error that says what was wrong, and changes nothing.

Part of the verdict only where VALIDATES_INPUT is claimed; elsewhere it is told, and no more.
"""

import pytest

from kvassay.harness.assay import Assay
from kvassay.harness.contract import Capability
from kvassay.harness.misuse import answers
from kvassay.harness.violation import Crash, Violation

pytestmark = pytest.mark.suite("allocator")


def test_misuse_is_refused(assay: Assay) -> None:
    shape = assay.plan.geometry
    try:
        found = answers(assay.registration, shape.num_blocks or 16, shape.block_size or 2)
    except (Violation, Crash, ValueError, KeyError) as problem:
        pytest.skip(f"not reached: the state for it cannot be prepared: {problem}")
    wrong = [f"{answer.misuse}: {answer.problem}" for answer in found if answer.problem]
    if not assay.registration.declaration.has(Capability.VALIDATES_INPUT):
        assay.tell_misuse(len(found), wrong)
        pytest.skip("not claimed: needs VALIDATES_INPUT; what became of misuse is told apart")
    assert found, "no misuse was tried"
    assert not wrong, "\n".join(wrong)
