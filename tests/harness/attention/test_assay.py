"""Verdicts of an assay: a pass has looked, what is refused is not required, gaps are told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from kvassay.harness.assay import AssayError, Plan
from kvassay.harness.attention.assay import KernelAssay
from kvassay.harness.attention.campaign import Effort, run
from kvassay.harness.attention.case import Case
from kvassay.harness.attention.check import CHECKS
from kvassay.harness.attention.checks import find
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.offered import offered
from kvassay.harness.attention.oracle_kernel import OracleKernel
from kvassay.harness.attention.reach import NEEDED, Reach, counted
from kvassay.harness.campaign import Budget
from kvassay.harness.contract import (
    AttentionBatch,
    AttentionResult,
    Capability,
    Declaration,
    PagedAttention,
    Rounding,
)
from kvassay.harness.registry import Registration
from kvassay.harness.verdict import Status, worst

Takes = Callable[[AttentionBatch], bool]
ALL = Declaration(
    capabilities=frozenset(
        {
            Capability.CAUSAL,
            Capability.WINDOW,
            Capability.SOFTCAP,
            Capability.ALIBI,
            Capability.SINKS,
            Capability.SCALES,
            Capability.LSE,
        }
    )
)


class Choosy:
    """A right kernel that refuses what `takes` does not."""

    def __init__(self, takes: Takes) -> None:
        self.takes = takes
        self.right = OracleKernel(ALL)

    def __call__(self, batch: AttentionBatch) -> AttentionResult:
        if not self.takes(batch):
            raise NotImplementedError("not offered")
        return self.right(batch)


def kernel(takes: Takes) -> Kernel:
    return Kernel(Choosy(takes), ALL)


def verdicts(folder: Path, takes: Takes, *names: str) -> dict[str, tuple[Status, str]]:
    """Status and last reason of each invariant, after these checks and the reach of all."""
    entry = Registration("mine", PagedAttention, lambda: Choosy(takes), ALL)
    plan = Plan(Budget(200), examples=200, seconds=20.0, counterexamples=folder)
    assay = KernelAssay(entry, "attention", plan)
    for require in [
        *(lambda name=name: assay.require(name) for name in names),
        assay.require_reach,
    ]:
        try:
            require()
        except pytest.skip.Exception:
            continue
    told = [each["verdict"] for each in assay.take_news() if "verdict" in each]
    by_invariant: dict[str, list[tuple[Status, str]]] = {}
    for each in told:
        by_invariant.setdefault(each["invariant"], []).append(
            (Status(each["status"]), each["reason"])
        )
    return {
        invariant: (
            (status := worst([each for each, _ in entries])),
            [reason for each, reason in entries if each is status][-1],
        )
        for invariant, entries in by_invariant.items()
    }


def anything(batch: AttentionBatch) -> bool:
    return True


def decode(batch: AttentionBatch) -> bool:
    return bool((batch.query_start.diff() == 1).all())


def scaled_as_one(batch: AttentionBatch) -> bool:
    """Scales of 8-bit caches alone, one number each: as vLLM's CPU kernel has it."""
    scales = [scale for scale in (batch.k_scale, batch.v_scale) if scale is not None]
    if batch.key_cache.element_size() > 1:
        return not scales
    return all(not getattr(scale, "ndim", 0) for scale in scales)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[Case], bool]], None]:
    """Take cases away from a check, and what is pinned altogether."""
    monkeypatch.setattr("kvassay.harness.attention.assay.pinned", lambda declaration: [])

    def take_away(name: str, unwanted: Callable[[Case], bool]) -> None:
        whole = CHECKS[name]

        def fewer(of: Kernel, rng: Random) -> Iterator[Case]:
            return (case for case in whole.cases(of, rng) if not unwanted(case))

        monkeypatch.setitem(CHECKS, name, replace(whole, cases=fewer))

    return take_away


# ------------------------------------------------------------------------------- K9 and K10


def test_what_a_decode_kernel_refuses_is_not_required(tmp_path: Path) -> None:
    found = verdicts(tmp_path, decode, "score-pipeline", "scales")
    assert found["K9"] == (Status.PASS, "")
    assert found["K10"] == (Status.PASS, "")


def test_what_a_decode_kernel_offers_is_required(
    tmp_path: Path, without: Callable[..., None]
) -> None:
    """The control of the test above: `oracle` meets the state, where it need not be seen."""
    without("score-pipeline", lambda case: case.softcap is not None)
    found = verdicts(tmp_path, decode, "oracle", "score-pipeline")
    assert found["K9"] == (Status.NOT_REACHED, "never met: soft cap at decode")


def test_scales_are_required_at_the_phases_that_are_offered(
    tmp_path: Path, without: Callable[..., None]
) -> None:
    without("scales", lambda case: case.seqs[0][1] > 1)
    assert verdicts(tmp_path, decode, "oracle", "scales")["K10"] == (Status.PASS, "")
    status, reason = verdicts(tmp_path, anything, "oracle", "scales")["K10"]
    assert (status, reason) == (
        Status.NOT_REACHED,
        "never met: key scale at prefill; value scale at prefill",
    )


@pytest.mark.parametrize("offers", [True, False])
def test_a_modifier_refused_at_one_phase_is_not_required_there(
    tmp_path: Path, without: Callable[..., None], offers: bool
) -> None:
    without("score-pipeline", lambda case: case.softcap is not None and case.seqs[0][1] > 1)
    takes = anything if offers else lambda batch: batch.softcap is None or decode(batch)
    status, reason = verdicts(tmp_path, takes, "score-pipeline")["K9"]
    assert (status, reason) == (
        (Status.NOT_REACHED, "never met: soft cap at prefill") if offers else (Status.PASS, "")
    )


def test_a_check_that_is_refused_does_not_hide_what_the_others_looked_at(tmp_path: Path) -> None:
    names = ("scales", "powers-of-two-in-scales", "scale-of-every-token")
    assert verdicts(tmp_path, scaled_as_one, *names)["K10"] == (Status.PASS, "")
    status, reason = verdicts(tmp_path, scaled_as_one, "scale-of-every-token")["K10"]
    assert status is Status.NOT_REACHED, "alone, it has looked at nothing"
    assert "key scale at decode; " in reason


def test_who_refuses_all_scales_has_claimed_nothing(tmp_path: Path) -> None:
    def unscaled(batch: AttentionBatch) -> bool:
        return batch.k_scale is None and batch.v_scale is None

    status, reason = verdicts(tmp_path, unscaled, "powers-of-two-in-scales")["K10"]
    assert status is Status.NOT_CLAIMED
    assert "were refused, the last with: not offered" in reason


def test_who_refuses_everything_has_passed_nothing(tmp_path: Path) -> None:
    found = verdicts(tmp_path, lambda batch: False, "oracle", "halves", "needle")
    assert {status for status, _ in found.values()} == {Status.NOT_REACHED}


# ----------------------------------------------------------------------------- refused cases


def even_blocks(batch: AttentionBatch) -> bool:
    size = batch.key_cache.shape[1]
    return size & (size - 1) == 0


def test_refused_sizes_count_nothing() -> None:
    """The control is a kernel that computes them."""
    effort = Effort(cases=60, seconds=20.0)
    some, every = (
        run(find("sizes"), kernel(takes), effort, []) for takes in (even_blocks, anything)
    )
    assert every.met[Reach.ODD_BLOCK] > 3
    assert every.refused == 0
    assert some.met[Reach.ODD_BLOCK] == 0
    assert some.refused == every.met[Reach.ODD_BLOCK]
    assert some.judged + some.refused == every.judged
    assert some.control_seen


@pytest.mark.parametrize("takes", [even_blocks, anything])
def test_odd_blocks_are_required_of_those_who_offer_them(
    tmp_path: Path, without: Callable[..., None], takes: Takes
) -> None:
    without("sizes", lambda case: case.block_size & (case.block_size - 1) > 0)
    status, reason = verdicts(tmp_path, takes, "sizes")["K11"]
    expected = "" if takes is even_blocks else "never met: block size that is no power of two"
    assert (status, reason) == (Status.NOT_REACHED if expected else Status.PASS, expected)


def test_head_counts_that_must_be_refused_exercise_nothing() -> None:
    outcome = run(find("heads-refused"), kernel(anything), Effort(), [])
    assert outcome.judged
    assert not outcome.met
    assert run(find("head-map"), kernel(anything), Effort(cases=4), []).met


# --------------------------------------------------------------------------------- offers


def needed() -> Iterable[Reach]:
    return {reach for groups in NEEDED.values() for group in groups for reach in group}


def test_a_kernel_that_takes_anything_is_found_to_offer_every_state_and_a_picky_one_few() -> None:
    open_one, picky = kernel(anything), kernel(lambda b: decode(b) and scaled_as_one(b))
    assert [reach for reach in needed() if not offered(reach, open_one)] == []
    refused = {reach for reach in needed() if not offered(reach, picky)}
    prefills = {r for r in needed() if r.name.endswith("PREFILL")} | {Reach.CHUNK}
    assert prefills <= refused
    assert not {Reach.K_SCALE_DECODE, Reach.SOFTCAP_DECODE, Reach.TAIL, Reach.BATCH} & refused


def test_modifiers_count_where_forgetting_them_shows() -> None:
    met = run(find("oracle"), kernel(anything), Effort(cases=40, seconds=20.0), []).met
    assert any(reach.name.startswith("SOFTCAP") for reach in met)
    assert not any(reach.name.startswith("SOFTCAP") for reach in counted(met, telling=False))
    assert counted(met, telling=True) == met
    assert counted(met, telling=False)[Reach.DECODE] == met[Reach.DECODE]


def test_a_class_that_is_not_modelled_is_refused_before_anything_runs(tmp_path: Path) -> None:
    declared = replace(ALL, rounding=Rounding.FP8)
    entry = Registration("mine", PagedAttention, lambda: Choosy(anything), declared)
    with pytest.raises(AssayError, match="not modelled yet"):
        KernelAssay(entry, "attention", Plan(Budget(5), counterexamples=tmp_path))
