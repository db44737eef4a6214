"""K2 between the two: who must see to it that what lies past the end has no effect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from kvassay.harness.contract import (
    AttentionBatch,
    AttentionResult,
    Capability,
    Declaration,
    Tail,
)
from kvassay.harness.pairs.blame import Convicted, Side
from kvassay.harness.pairs.campaign import Campaign, Effort, Outcome
from kvassay.harness.pairs.evidence import Met
from kvassay.harness.pairs.session import Pair
from kvassay.impls.faulty.hashed import DECLARATION, HashedCache
from kvassay.impls.faulty.pairs import CLEARING, Clearing
from kvassay.reference import attention as oracle


class WholeBlocks:
    """Multiplies every value of a sequence's blocks by its weight, which is 0 past the end."""

    def __call__(self, batch: AttentionBatch) -> AttentionResult:
        right = oracle.attend(batch)
        output = right.output.clone()
        size = batch.value_cache.shape[1]
        for index, length in enumerate(batch.seq_lens.tolist()):
            blocks = batch.block_table[index, : -(-length // size)].long()
            past = batch.value_cache[blocks].flatten(0, 1)[length:].double()
            rows = slice(*batch.query_start[index : index + 2].tolist())
            group = output.shape[1] // past.shape[1]
            output[rows] += (0.0 * past).sum(dim=0).repeat_interleave(group, dim=0)
        return AttentionResult(output.to(batch.query.dtype), right.lse.float())


class ForgetsOne(Clearing):
    """Forgets the first of what a request gets."""

    def take_zeroes(self) -> list[int]:
        return super().take_zeroes()[1:]


def run(make: Callable[..., Pair], build: type, manager: Declaration, tail: Tail) -> Outcome:
    kernel = Declaration(capabilities=frozenset({Capability.CAUSAL, Capability.LSE}), tail=tail)
    pair = make(build, WholeBlocks, managing=manager, attending=kernel)
    return Campaign(pair, Effort(20, seconds=60.0)).run()


def verdict(outcome: Outcome) -> Convicted:
    assert outcome.finding is not None
    return outcome.finding.verdict


def test_a_manager_that_clears_suits_a_kernel_that_needs_it(make: Callable[..., Pair]) -> None:
    outcome = run(make, Clearing, CLEARING, Tail.FINITE)
    assert outcome.finding is None
    assert outcome.met[Met.ZERO_TAIL]
    assert not outcome.met[Met.NAN_TAIL]


def test_a_block_that_is_not_cleared_is_the_managers_fault(make: Callable[..., Pair]) -> None:
    found = verdict(run(make, ForgetsOne, CLEARING, Tail.FINITE))
    assert (found.side, found.invariant) == (Side.MANAGER, "K2")
    assert "take_zeroes()" in str(found)


def test_what_a_kernel_claims_it_must_not_need(make: Callable[..., Pair]) -> None:
    found = verdict(run(make, HashedCache, DECLARATION, Tail.ANY))
    assert (found.side, found.invariant) == (Side.KERNEL, "K2")
    assert "tail=any" in str(found)


def test_without_clearing_finite_garbage_is_all_that_is_asked(make: Callable[..., Pair]) -> None:
    outcome = run(make, HashedCache, DECLARATION, Tail.FINITE)
    assert outcome.finding is None
    assert outcome.met[Met.LOUD_TAIL]
    assert not outcome.met[Met.NAN_TAIL]


@pytest.mark.parametrize("tail", list(Tail))
def test_a_kernel_that_lets_finite_garbage_in_is_at_fault(
    make: Callable[..., Pair], tail: Tail
) -> None:
    class Leaks(WholeBlocks):
        def __call__(self, batch: AttentionBatch) -> AttentionResult:
            size = batch.key_cache.shape[1]
            room = (batch.seq_lens % size != 0).to(batch.seq_lens.dtype)
            longer = replace(batch, seq_lens=batch.seq_lens + room)
            right = oracle.attend(longer)
            output = torch.where(right.output.isnan(), 7.0, right.output)
            return AttentionResult(output.to(batch.query.dtype), right.lse.nan_to_num().float())

    kernel = Declaration(capabilities=frozenset({Capability.CAUSAL, Capability.LSE}), tail=tail)
    pair = make(HashedCache, Leaks, managing=DECLARATION, attending=kernel)
    found = verdict(Campaign(pair, Effort(20, seconds=60.0)).run())
    assert found.side is Side.KERNEL


class WrongOnce:
    """Every third answer is that of the call before, where the shape allows it."""

    def __init__(self) -> None:
        self._calls, self._last = 0, torch.empty(0)

    def __call__(self, batch: AttentionBatch) -> AttentionResult:
        right = oracle.attend(batch)
        output = right.output.to(batch.query.dtype)
        self._calls, last, self._last = self._calls + 1, self._last, output
        if self._calls % 3 == 0 and last.shape == output.shape:
            output = last
        return AttentionResult(output, right.lse.float())


def test_what_comes_out_right_when_asked_again_is_no_tail(make: Callable[..., Pair]) -> None:
    kernel = Declaration(
        capabilities=frozenset({Capability.CAUSAL, Capability.LSE}), tail=Tail.FINITE
    )
    pair = make(HashedCache, WrongOnce, managing=DECLARATION, attending=kernel)
    found = verdict(Campaign(pair, Effort(20, seconds=60.0)).run())
    assert (found.side, found.invariant) == (Side.KERNEL, "K4")
    assert "asked once more" in str(found)
