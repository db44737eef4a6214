"""Kernels made from the oracle: one that is right, and twins with a fault planted in them.

Results are the oracle's, rounded once. The right one shows that a check accepts what is correct;
the broken ones are the controls that it must convict.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kvassay.harness.attention.check import Control
from kvassay.harness.attention.twists import TWISTS
from kvassay.harness.contract import AttentionBatch, AttentionResult, Declaration, EmptyRow
from kvassay.reference import attention as oracle
from kvassay.reference.attention import Attended

Spoil = Callable[[AttentionBatch, AttentionResult], AttentionResult]


class OracleKernel:
    """The oracle as a PagedAttention."""

    def __init__(
        self,
        declaration: Declaration,
        attend: Callable[[AttentionBatch], Attended] = oracle.attend,
        spoil: Spoil | None = None,
    ) -> None:
        self._attend = attend
        self._spoil = spoil
        self._empty_row = declaration.empty_row

    def __call__(self, batch: AttentionBatch) -> AttentionResult:
        right = self._attend(batch)
        output = right.output.to(batch.query.dtype).to(batch.query.device)
        lse = right.lse.float().to(batch.query.device)
        if self._empty_row is not EmptyRow.ZERO:
            output = torch.where(lse.isneginf()[..., None], torch.nan, output)
        if batch.output is not None:
            output = batch.output.copy_(output)
            lse = batch.lse.copy_(lse)
        result = AttentionResult(output, lse)
        return self._spoil(batch, result) if self._spoil is not None else result


def twisted(name: str) -> Control:
    """The control that reads its problem as the twist says."""
    return lambda declaration: OracleKernel(declaration, TWISTS[name].apply)


def spoiled(spoil: Spoil) -> Control:
    """The control that does something to the right result or around it."""
    return lambda declaration: OracleKernel(declaration, spoil=spoil)
