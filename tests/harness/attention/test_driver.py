"""What becomes of a call: refused, crashed, answered, with damage."""

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from kvassay.harness.attention import driver
from kvassay.harness.attention.case import Case
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.oracle_kernel import OracleKernel
from kvassay.harness.attention.wrong import Refused, Wrong
from kvassay.harness.contract import AttentionBatch, AttentionResult, Capability, Declaration
from kvassay.harness.violation import Crash

CASE = Case(((9, 2), (4, 1)), head_dim=16, head_dim_v=8, block_size=4)
DECLARED = Declaration(capabilities=frozenset({Capability.CAUSAL, Capability.LSE}))
RIGHT = OracleKernel(DECLARED)


def kernel(call: Any, declaration: Declaration = DECLARED) -> Kernel:
    return Kernel(call, declaration)


def attend(call: Any, case: Case = CASE) -> AttentionResult:
    under_test = kernel(call)
    return under_test.attend(under_test.build(case))


def test_a_right_kernel_is_answered() -> None:
    result = attend(RIGHT)
    assert result.output.shape == (3, 4, 8)
    assert result.lse is not None


def test_an_lse_that_is_not_claimed_is_not_looked_at() -> None:
    under_test = kernel(RIGHT, Declaration())
    assert under_test.attend(under_test.build(CASE)).lse is None


def test_what_numpy_warns_of_is_no_crash() -> None:
    """Neither its floating-point state nor a warning: both are how an interpreter says NaN."""

    def compute(batch: AttentionBatch) -> AttentionResult:
        zeros = np.zeros(2)
        assert np.isnan(np.nanmax(zeros / zeros))
        return RIGHT(batch)

    with pytest.raises(RuntimeWarning):
        compute(kernel(RIGHT).build(CASE).batch)
    assert attend(compute).output.shape == (3, 4, 8)


@pytest.mark.parametrize("error", [ValueError("no"), NotImplementedError("no")])
def test_a_refusal_is_told_apart(error: Exception) -> None:
    def refuse(batch: AttentionBatch) -> AttentionResult:
        raise error

    under_test = kernel(refuse)
    with pytest.raises(Refused, match="no"):
        under_test.attend(under_test.build(CASE))
    assert under_test.calls == {"refused": 1}
    assert not under_test.accepts(CASE)
    assert kernel(RIGHT).accepts(CASE)


@pytest.mark.parametrize("error", [IndexError("gone"), SystemExit(1), RuntimeError("cuda")])
def test_everything_else_is_a_crash(error: BaseException) -> None:
    def crash(batch: AttentionBatch) -> AttentionResult:
        raise error

    with pytest.raises(Crash, match=type(error).__name__):
        attend(crash)


def test_a_hang_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "TIME_LIMIT", 0.1)
    with pytest.raises(Crash, match="it hangs") as told:
        attend(lambda batch: time.sleep(60))
    assert told.value.hangs


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda r: replace(r, output=r.output[:2]), "K11 wrong shape: expected output"),
        (lambda r: replace(r, output=r.output.double()), "K11 wrong shape: expected output"),
        (lambda r: replace(r, lse=r.lse.T), "K11 wrong shape: expected lse"),
    ],
)
def test_shape_and_type_of_the_answer_count(spoil: Any, message: str) -> None:
    with pytest.raises(Wrong, match=message):
        attend(lambda batch: spoil(RIGHT(batch)))


def test_an_answer_that_is_none_is_a_crash() -> None:
    with pytest.raises(Crash, match="expected an AttentionResult, got Tensor"):
        attend(lambda batch: RIGHT(batch).output)
    with pytest.raises(Crash, match="lse: expected a tensor, got NoneType"):
        attend(lambda batch: replace(RIGHT(batch), lse=None))


def test_a_written_input_is_damage_even_of_a_refusal() -> None:
    def scale_in_place(batch: AttentionBatch) -> AttentionResult:
        batch.query.mul_(2.0)
        return RIGHT(batch)

    def spoil_and_refuse(batch: AttentionBatch) -> AttentionResult:
        batch.query.mul_(2.0)
        raise ValueError("no")

    for call in (scale_in_place, spoil_and_refuse):
        with pytest.raises(Wrong, match=r"K13 writes what it must not: .*input query"):
            attend(call)


def test_buffers_are_to_be_used() -> None:
    case = replace(CASE, buffers=True)
    assert attend(RIGHT, case).output.shape == (3, 4, 8)
    with pytest.raises(Wrong, match=r"K13 .*expected output in the buffer given"):
        attend(lambda batch: RIGHT(replace(batch, output=None)), case)


def test_a_write_beside_the_buffer_is_damage() -> None:
    def spill(batch: AttentionBatch) -> AttentionResult:
        result = RIGHT(batch)
        end = batch.output.storage_offset() + batch.output.numel()
        batch.output.as_strided((1,), (1,), end)[0] = 0.0
        return result

    with pytest.raises(Wrong, match="memory beside the buffer output was written"):
        attend(spill, replace(CASE, buffers=True))


def test_paths_are_what_the_kernel_says() -> None:
    assert kernel(RIGHT).paths == {}
    telling = OracleKernel(DECLARED)
    telling.paths = {"decode": 2}  # type: ignore[attr-defined]
    assert kernel(telling).paths == {"decode": 2}


def test_the_answer_is_what_the_oracle_says_rounded_once() -> None:
    under_test = kernel(RIGHT)
    built = under_test.build(CASE)
    from kvassay.reference.attention import attend as exact

    expected = exact(built.batch).output.to(torch.bfloat16)
    assert torch.equal(under_test.attend(built).output, expected)
