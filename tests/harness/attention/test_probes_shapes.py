"""Which shapes a probe gets: the first that are accepted, asked for once, and rows not too long."""

from __future__ import annotations

import time
from typing import Any

import torch

from kvassay.harness.attention.case import CacheLayout, Case, Contents
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.oracle_kernel import OracleKernel
from kvassay.harness.attention.probes.shapes import (
    LONG,
    buffered,
    fitted,
    in_turn,
    lattice,
    long_lengths,
    taken,
)
from kvassay.harness.contract import AttentionBatch, AttentionResult, Capability, Declaration

CLAIMS = Declaration(capabilities={Capability.CAUSAL, Capability.OUTPUT})  # type: ignore[arg-type]


class Choosy(OracleKernel):
    """Computes one shape, and counts what it is asked for."""

    def __init__(self, **only: Any) -> None:
        super().__init__(CLAIMS)
        self.only = only
        self.calls = 0

    def __call__(self, batch: AttentionBatch) -> AttentionResult:
        self.calls += 1
        shape = {
            "dtype": batch.query.dtype,
            "head_dim": batch.query.shape[2],
            "block_size": batch.key_cache.shape[1],
            "buffers": batch.output is not None,
        }
        if any(shape[name] != value for name, value in self.only.items()):
            raise NotImplementedError(f"only {self.only}")
        return super().__call__(batch)


def test_the_first_shape_that_is_accepted_is_taken() -> None:
    kernel = Kernel(Choosy(dtype=torch.bfloat16, head_dim=128, block_size=64), CLAIMS)
    case = fitted(kernel)
    assert case is not None
    assert (case.dtype, case.cache_dtype) == ("bfloat16", "bfloat16")
    assert (case.head_dim, case.head_dim_v, case.block_size) == (128, 128, 64)
    assert case.causal
    assert fitted(kernel, head_dims=(64,)) is None
    assert fitted(kernel, dtypes=("float16", "bfloat16")) == case


def test_nothing_is_asked_twice() -> None:
    choosy = Choosy(dtype=torch.float16)
    kernel = Kernel(choosy, CLAIMS)
    first = fitted(kernel)
    calls = choosy.calls
    marked = fitted(kernel, contents=Contents.NEEDLE, mark=2)
    assert choosy.calls == calls
    assert first is not None
    assert marked is not None
    assert (marked.contents, marked.mark, marked.dtype) == (Contents.NEEDLE, 2, "float16")


def test_who_accepts_none_of_the_usual_shapes_is_left_alone() -> None:
    choosy = Choosy(head_dim=7)
    kernel = Kernel(choosy, CLAIMS)
    assert fitted(kernel) is None
    calls = choosy.calls
    assert fitted(kernel, window_left=3) is None
    assert buffered(kernel) is None
    assert choosy.calls == calls


def test_buffers_are_used_where_they_are_taken() -> None:
    case = buffered(Kernel(Choosy(), CLAIMS))
    assert case is not None
    assert case.buffers
    case = buffered(Kernel(Choosy(buffers=False), CLAIMS))
    assert case is not None
    assert not case.buffers


def test_what_is_no_case_is_not_taken() -> None:
    kernel = Kernel(Choosy(), CLAIMS)
    case = Case(((3, 1),), head_dim=32, head_dim_v=16)
    assert taken(kernel, case)
    assert not taken(kernel, case, cache_layout=CacheLayout.INTERLEAVED)


class Slow(OracleKernel):
    """Takes a hundredth of a second for every four keys."""

    def __call__(self, batch: AttentionBatch) -> AttentionResult:
        time.sleep(2.5e-3 * int(batch.seq_lens.max()))
        return super().__call__(batch)


def test_a_slow_kernel_gets_no_long_rows() -> None:
    case = Case(((3, 1),))
    quick, slow = Kernel(OracleKernel(CLAIMS), CLAIMS), Kernel(Slow(CLAIMS), CLAIMS)
    assert long_lengths(quick, case)[:2] == LONG[:2]
    assert long_lengths(slow, case) == ()


def test_lengths_lie_at_the_edges_of_blocks() -> None:
    assert lattice(16) == (1, 15, 16, 17, 31, 32, 33, 83)
    assert lattice(1) == (1, 2, 3, 8)


def test_sources_take_turns_until_all_are_used_up() -> None:
    cases = [Case(((n, 1),)) for n in range(1, 6)]
    mixed = in_turn(iter(cases[:1]), iter(cases[1:]))
    assert [case.seqs[0][0] for case in mixed] == [1, 2, 3, 4, 5]
    mixed = in_turn(iter(cases[:2]), iter(cases[2:]))
    assert [case.seqs[0][0] for case in mixed] == [1, 3, 2, 4, 5]
