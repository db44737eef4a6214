"""Faults planted in kernels are blamed on the kernel, and said to be what they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvassay.harness.assay import corpus_folder
from kvassay.harness.attention.oracle_kernel import OracleKernel, spoiled, twisted
from kvassay.harness.attention.twists import TWISTS
from kvassay.harness.contract import AttentionBatch, AttentionResult, Capability, Declaration, Tail
from kvassay.harness.pairs.blame import Side
from kvassay.harness.pairs.campaign import Campaign, Effort, Outcome
from kvassay.harness.pairs.session import Pair
from kvassay.harness.scenario import load
from kvassay.harness.violation import Crash

DECLARED = Declaration(capabilities=frozenset({Capability.CAUSAL, Capability.LSE}), tail=Tail.ANY)
LOADED = (load(path) for path in sorted(corpus_folder().glob("*.json")))
CORPUS = [scenario for scenario in LOADED if not scenario.groups]
SHORT = 3


def outcome(pair: Pair) -> Outcome:
    return Campaign(pair, Effort(12, seconds=60.0), known=CORPUS).run()


@pytest.mark.parametrize("manager", ["paged", "radix"])
@pytest.mark.parametrize(
    "name",
    [
        "last-key",
        "first-key",
        "extra-key",
        "block-dropped",
        "block-repeated",
        "top-left",
        "not-causal",
        "next-head",
        "no-scale",
        "base-2",
        "gain",
    ],
)
def test_a_twist_is_blamed_on_the_kernel(
    make: Callable[..., Pair], manager: str, name: str
) -> None:
    finding = outcome(make(manager, lambda: twisted(name)(DECLARED))).finding
    assert finding is not None
    assert finding.verdict.side is Side.KERNEL
    assert finding.verdict.invariant == TWISTS[name].invariant
    assert finding.verdict.looks == f"it looks as if {TWISTS[name].words}"
    assert finding.scenario.num_counted <= SHORT


def test_what_looks_like_nothing_known_is_an_offence_against_the_oracle(
    make: Callable[..., Pair],
) -> None:
    def noise(batch: AttentionBatch, right: AttentionResult) -> AttentionResult:
        return AttentionResult(right.output + 0.01 * batch.query.sin(), right.lse)

    finding = outcome(make("paged", lambda: spoiled(noise)(DECLARED))).finding
    assert finding is not None
    assert (finding.verdict.side, finding.verdict.invariant) == (Side.KERNEL, "K1")
    assert not finding.verdict.looks


def test_writing_into_the_pool_is_an_offence_by_itself(make: Callable[..., Pair]) -> None:
    def scribble(batch: AttentionBatch, right: AttentionResult) -> AttentionResult:
        batch.key_cache[batch.block_table[0, 0], 0] *= 2
        return right

    finding = outcome(make("paged", lambda: spoiled(scribble)(DECLARED))).finding
    assert finding is not None
    assert (finding.verdict.side, finding.verdict.invariant) == (Side.KERNEL, "K13")


def test_a_crash_is_an_error_of_the_kernel(make: Callable[..., Pair]) -> None:
    class Fragile(OracleKernel):
        def __call__(self, batch: AttentionBatch) -> AttentionResult:
            if int(batch.seq_lens.max()) == 3:
                raise IndexError("three")
            return super().__call__(batch)

    finding = outcome(make("paged", lambda: Fragile(DECLARED))).finding
    assert finding is not None
    assert finding.verdict.side is Side.KERNEL
    assert isinstance(finding.verdict.verdict, Crash)
    assert "IndexError: three" in str(finding.verdict)


def refusing(when: Callable[[AttentionBatch], bool]) -> Callable[[], Any]:
    class Choosy(OracleKernel):
        def __call__(self, batch: AttentionBatch) -> AttentionResult:
            if when(batch):
                raise NotImplementedError("not of that kind")
            return super().__call__(batch)

    return lambda: Choosy(DECLARED)


def test_a_kernel_that_refuses_everything_has_shown_nothing(make: Callable[..., Pair]) -> None:
    seen = outcome(make("paged", refusing(lambda batch: True)))
    assert seen.finding is None
    assert seen.attended == 0
    assert seen.blind is not None
    assert "not of that kind" in seen.blind


@pytest.mark.parametrize(
    ("when", "dtype", "size"),
    [
        (lambda batch: str(batch.query.dtype) == "torch.float32", "bfloat16", None),
        (lambda batch: batch.key_cache.shape[1] % 16, "float32", 16),
        (lambda batch: batch.key_cache.shape[1] % 32, "float32", 32),
    ],
    ids=["no float32", "blocks of 16", "blocks of 32"],
)
def test_a_choosy_kernel_is_given_what_it_takes(
    make: Callable[..., Pair],
    when: Callable[[AttentionBatch], bool],
    dtype: str,
    size: int | None,
) -> None:
    pair = make("radix", refusing(when))
    assert pair.eyes is not None
    assert pair.eyes.form.dtype == dtype
    seen = outcome(pair)
    assert seen.finding is None
    assert seen.blind is None
    assert seen.attended > 50
    assert pair.offers(size or 1)


def test_batches_that_are_refused_are_counted_and_not_judged(make: Callable[..., Pair]) -> None:
    seen = outcome(make("paged", refusing(lambda batch: len(batch.seq_lens) > 2)))
    assert seen.finding is None
    assert seen.refused > 0
    assert seen.attended > 0
