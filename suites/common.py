"""What several suites have in common; tests are to be imported into their modules."""

from collections.abc import Callable

import pytest

from kvassay.harness.assay import Assay
from kvassay.harness.contract import Capability
from kvassay.harness.misuse import Answer
from kvassay.harness.violation import Crash, Violation


def test_nothing_else_is_broken(assay: Assay) -> None:
    assay.require_nothing_else()


def test_the_run_was_healthy(assay: Assay) -> None:
    assay.require_health()


def test_no_deviation_is_stale(assay: Assay) -> None:
    assay.require_no_stale_deviation()


def require_misuse_refused(assay: Assay, answers: Callable[..., list[Answer]]) -> None:
    """Wrong calls are refused; part of the verdict only where VALIDATES_INPUT is claimed."""
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
