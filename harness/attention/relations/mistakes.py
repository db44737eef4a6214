"""Mistakes of kernels that are no misreading of a batch: state, sums that start wrong, buffers.

Controls of relations, beside those made of twists.
"""

from __future__ import annotations

import torch

from kvassay.harness.attention.oracle_kernel import OracleKernel
from kvassay.harness.attention.twists import TWISTS
from kvassay.harness.contract import AttentionBatch, AttentionResult, Declaration, PagedAttention
from kvassay.reference import attention as oracle
from kvassay.reference.attention import Attended

SHARE = 0.5
"""Far more than any rounding."""


def keeps_the_last_result(declaration: Declaration) -> PagedAttention:
    """Something of each call's result turns up in the next one's."""
    left_over = [0.0]

    def spoil(batch: AttentionBatch, result: AttentionResult) -> AttentionResult:
        output = result.output + SHARE * left_over[0]
        left_over[0] = float(result.output.float().abs().nan_to_num(0.0).mean())
        return AttentionResult(output.to(result.output.dtype), result.lse)

    return OracleKernel(declaration, spoil=spoil)


def spills_over(batch: AttentionBatch, result: AttentionResult) -> AttentionResult:
    """Every row has a share of the sum over all rows of the batch."""
    shared = SHARE * result.output.float().nan_to_num(0.0).sum(dim=0, keepdim=True)
    return AttentionResult((result.output + shared).to(result.output.dtype), result.lse)


def starts_above_zero(batch: AttentionBatch, result: AttentionResult) -> AttentionResult:
    """The sum over the values does not start at 0."""
    return AttentionResult(result.output + SHARE, result.lse)


def leaves_the_last_row(batch: AttentionBatch, result: AttentionResult) -> AttentionResult:
    """The last row of the buffer given holds what it was filled with."""
    if batch.output is not None and len(result.output):
        result.output[-1] = torch.nan
    return result


def slips_with_modifiers(declaration: Declaration) -> PagedAttention:
    """The variant of the code for modifiers leaves out a key, whatever their values are."""

    def attend(batch: AttentionBatch) -> Attended:
        plain = batch.window_left is None and batch.softcap is None and batch.alibi_slopes is None
        return oracle.attend(batch) if plain else TWISTS["last-key"].apply(batch)

    return OracleKernel(declaration, attend)
