"""Kernels in another process: forbidden pages, and ends that are answers."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch

from kvassay.harness.attention.build import build
from kvassay.harness.attention.campaign import Effort, run
from kvassay.harness.attention.case import Case, Garbage, Placement
from kvassay.harness.attention.check import CHECKS
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.guarded import Fate, Guard, Guards, attempt
from kvassay.harness.attention.oracle_kernel import OracleKernel
from kvassay.harness.attention.probes import addressing, dont_care, guard_pages, head_map
from kvassay.harness.attention.probes.elsewhere import fatal, tried
from kvassay.harness.attention.wrong import Anomaly, Refused, Wrong
from kvassay.harness.contract import Declaration, PagedAttention
from kvassay.harness.registry import find
from kvassay.harness.violation import Crash

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forbidden pages need a fork")

CASE = Case(
    ((20, 1), (5, 1)),
    head_dim=16,
    head_dim_v=16,
    dtype="float32",
    cache_dtype="float32",
    placement=Placement.REVERSED,
)
SOURCE = """
import ctypes
import os
from kvassay.harness.contract import AttentionResult, Capability, Declaration, PagedAttention, Tail
from kvassay.harness.registry import implementation
import torch

CLAIMED = Declaration(capabilities={"causal"}, tail=Tail.ANY)

@implementation("NAME", kind=PagedAttention, declaration=CLAIMED)
class Odd:
    def __call__(self, batch):
        end = lambda t: t.data_ptr() + t.numel() * t.element_size()
        at = ctypes.string_at
        BODY
        shape = (*batch.query.shape[:2], batch.value_cache.shape[3])
        return AttentionResult(batch.query.new_zeros(shape))
"""
Make = Callable[[str], Kernel]


NUMBERS = count()
"""The process that tries kernels outlives a test: every kernel has a name of its own."""


@pytest.fixture
def odd(tmp_path: Path, own_registry: None) -> Make:
    """A kernel in a file, with a line of its own."""

    def make(body: str) -> Kernel:
        name = f"odd-{next(NUMBERS)}"
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(SOURCE).replace("BODY", body).replace("NAME", name))
        return Kernel.of(find(str(path))[0])

    return make


def torch_kernel() -> Kernel:
    return Kernel.of(next(each for each in find("torch") if each.kind is PagedAttention))


# ----------------------------------------------------------------------------- forbidden pages


@pytest.mark.parametrize("side", list(Guard))
def test_guarded_tensors_hold_the_same_problem(side: Guard) -> None:
    plain, guarded = build(CASE).batch, build(CASE, allocate=Guards(side), band=0).batch
    for name in ("query", "key_cache", "value_cache", "block_table", "seq_lens", "query_start"):
        one, other = getattr(plain, name), getattr(guarded, name)
        assert torch.equal(one, other), name
        page = 4096
        edge = other.data_ptr()
        if side is Guard.END:
            edge += other.numel() * other.element_size()
        assert edge % page == 0, name


def test_a_correct_kernel_touches_nothing_else() -> None:
    kernel = torch_kernel()
    outcome = run(CHECKS["guard-pages"], kernel, Effort(), [])
    assert outcome.finding is None, outcome.finding
    assert outcome.refused == 0
    assert outcome.judged >= 6
    assert outcome.control_seen


@pytest.mark.parametrize(
    ("body", "got"),
    [
        ("at(end(batch.key_cache), 1)", "past the end of key_cache"),
        ("at(batch.value_cache.data_ptr() - 1, 1)", "before the start of value_cache"),
        ("at(end(batch.block_table), 4)", "past the end of block_table"),
        ("at(end(batch.query) - 1, 2)", "past the end of query"),
        ("at(batch.seq_lens.data_ptr() - 4, 4)", "before the start of seq_lens"),
        ("ctypes.memset(end(batch.query_start), 0, 1)", "past the end of query_start"),
    ],
)
def test_an_access_outside_is_told_by_tensor_and_side(odd: Make, body: str, got: str) -> None:
    verdict = guard_pages.judge(odd(body), CASE)
    assert verdict is not None
    assert (verdict.invariant, verdict.anomaly) == ("K13", Anomaly.OUTSIDE)
    assert verdict.got == f"an access {got}"


@pytest.mark.parametrize(
    "body",
    [
        "at(end(batch.key_cache) - 1, 1), at(batch.key_cache.data_ptr(), 1)",
        "batch.value_cache.sum(), batch.key_cache.sum(), batch.block_table.sum()",
    ],
)
def test_all_of_a_tensor_may_be_read(odd: Make, body: str) -> None:
    assert guard_pages.judge(odd(body), CASE) is None


def test_a_buffer_is_guarded_too() -> None:
    """The buffers come last among the allocations."""
    case = replace(CASE, buffers=True)
    guards = Guards(Guard.END)
    build(case, allocate=guards, band=0)
    assert guards.number == 7


def test_what_crashes_anyway_is_a_crash(odd: Make) -> None:
    with pytest.raises(Crash, match="SIGABRT, with or without"):
        guard_pages.judge(odd("os.abort()"), CASE)
    with pytest.raises(Crash, match="RuntimeError: no"):
        guard_pages.judge(odd("raise RuntimeError('no')"), CASE)


def test_a_refusal_is_a_refusal(odd: Make) -> None:
    with pytest.raises(Refused, match="not this"):
        guard_pages.judge(odd("raise ValueError('not this')"), CASE)


def test_damage_is_wrong_there_too(odd: Make) -> None:
    wrong = guard_pages.judge(odd("batch.query.zero_()"), CASE)
    assert wrong is not None
    assert (wrong.invariant, wrong.anomaly) == ("K13", Anomaly.FOOTPRINT)
    assert wrong.got == "the input query was written"


# ----------------------------------------------------------------------------- who can be tried


def test_a_kernel_that_nobody_finds_is_not_tried() -> None:
    kernel = Kernel(OracleKernel(Declaration()), Declaration())
    with pytest.raises(Refused, match="not registered"):
        tried(kernel, CASE)
    assert fatal(kernel, CASE, beside=CASE) is None
    outcome = run(CHECKS["guard-pages"], kernel, Effort(), [])
    assert outcome.judged == 0
    assert "not registered" in outcome.refusal


def test_nor_is_one_elsewhere_or_one_that_is_gone() -> None:
    kernel = torch_kernel()
    kernel.device = "cuda"
    with pytest.raises(Refused, match="runs on cuda"):
        tried(kernel, CASE)
    kernel = torch_kernel()
    kernel.name = "nothing"
    with pytest.raises(Refused, match="cannot try the kernel: LookupError"):
        tried(kernel, CASE)


def test_an_end_leaves_the_others_alone(odd: Make) -> None:
    assert tried(odd("os.kill(os.getpid(), 11)"), CASE).outcome == "killed"
    assert tried(torch_kernel(), CASE) == Fate("ok")


def test_what_a_kernel_prints_is_no_answer(odd: Make) -> None:
    assert tried(odd("print('hello', flush=True)"), CASE) == Fate("ok")
    assert tried(odd("os.write(1, b'hello')"), CASE) == Fate("ok")


def test_an_attempt_tells_what_became_of_it() -> None:
    def fails(batch: object) -> None:
        raise RuntimeError("no")

    declaration = Declaration()
    assert attempt(Kernel(OracleKernel(declaration), declaration), CASE, None) == Fate("ok")
    fate = attempt(Kernel(fails, declaration), CASE, None)
    assert fate.outcome == "crash"
    assert "RuntimeError: no" in fate.text


# --------------------------------------------------------------- what would end this process here


def test_an_id_of_no_block_that_kills_is_a_verdict(odd: Make) -> None:
    """The kernel ends its process where a table holds 2**30 or -1, as a native one may."""
    wild = "(batch.block_table >= 2**20).any() and os.kill(os.getpid(), 11)"
    wrong = dont_care.judge_wild(odd(wild), CASE)
    assert wrong is not None
    assert (wrong.invariant, wrong.anomaly) == ("K2", Anomaly.TAIL)
    assert "SIGSEGV" in wrong.got
    assert dont_care.judge_tame(odd("pass"), CASE) is None


MANY = "batch.key_cache.shape[0] > 2**15"
UNEVEN = "batch.query.shape[1] % batch.key_cache.shape[2]"


def test_what_always_ends_its_process_says_nothing(odd: Make) -> None:
    """A fork may be what a kernel does not stand."""
    assert fatal(odd("os.kill(os.getpid(), 11)"), CASE, beside=CASE) is None


HIGH = replace(CASE, placement=Placement.HIGH)


def test_so_is_a_far_address_that_kills(odd: Make) -> None:
    wrong = addressing.judge(odd(f"{MANY} and os.kill(os.getpid(), 11)"), HIGH)
    assert wrong is not None
    assert (wrong.invariant, wrong.anomaly) == ("K8", Anomaly.ADDRESS)
    assert "SIGSEGV" in wrong.got


def test_a_far_address_that_happens_to_hold_something_is_judged_there(odd: Make) -> None:
    """Whether a wild read ends a process is chance: where it did not, it still might here."""
    home = os.getpid()
    wild = f"if {MANY}: os.getpid() == {home} and os.kill({home}, 11); batch.query.add_(1)"
    wrong = addressing.judge(odd(wild), HIGH)
    assert wrong is not None
    assert (wrong.invariant, wrong.got) == ("K13", "the input query was written")
    assert addressing.judge(odd("pass"), HIGH) is None
    with pytest.raises(Refused, match="not this"):
        addressing.judge(odd("raise ValueError('not this')"), HIGH)


def test_a_crash_there_is_told_of_here(odd: Make) -> None:
    with pytest.raises(Crash, match="no such slot"):
        addressing.judge(odd(f"if {MANY}: raise IndexError('no such slot')"), HIGH)


def test_so_are_head_counts_that_kill(odd: Make) -> None:
    case = replace(CASE, num_q_heads=3, num_kv_heads=2)
    wrong = head_map.judge_uneven(odd(f"{UNEVEN} and os.kill(os.getpid(), 11)"), case)
    assert isinstance(wrong, Wrong)
    assert wrong.anomaly is Anomaly.UNREFUSED
    assert head_map.judge_uneven(odd("raise ValueError('uneven')"), case) is None
    assert head_map.judge_uneven(odd("raise RuntimeError('uneven')"), case) is None


def test_a_crash_on_wild_ids_is_the_tails_fault(odd: Make) -> None:
    kernel = odd("if (batch.block_table >= 2**20).any(): raise IndexError('out of range')")
    wrong = dont_care.judge_wild(kernel, replace(CASE, garbage=Garbage.FINITE))
    assert wrong is not None
    assert wrong.invariant == "K2"
    assert "IndexError: out of range" in wrong.got
