"""Probes: what is right passes, whatever its habits; each sees its own control and its faults."""

from __future__ import annotations

from itertools import islice
from random import Random

import pytest

from kvassay.harness.attention import probes
from kvassay.harness.attention.campaign import Effort, run, verdict_on
from kvassay.harness.attention.case import Case
from kvassay.harness.attention.check import CHECKS, Check
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.oracle_kernel import OracleKernel
from kvassay.harness.attention.wrong import Refused, Wrong
from kvassay.harness.contract import Capability, Declaration, Determinism, Tail
from kvassay.harness.registry import find
from kvassay.harness.violation import Crash
from kvassay.impls.faulty.kernel_controls import ALL, CONTROLS
from kvassay.impls.faulty.kernels import FAULTS

PROBES = {
    check.name: check
    for check in CHECKS.values()
    if check.judge.__module__.startswith(f"{probes.__name__}.")
}
APART = "guard-pages"
"""Needs a kernel that another process finds."""
HERE = [name for name in PROBES if name != APART]
FEW = Effort(cases=5, seconds=1.0)
ORACLE = Declaration(
    capabilities=ALL | {Capability.VALIDATES_INPUT},
    tail=Tail.ANY,
    determinism=Determinism.PREFIX,
)


def oracle(declaration: Declaration = ORACLE) -> Kernel:
    return Kernel(OracleKernel(declaration), declaration, "oracle")


def faulty(name: str) -> Kernel:
    fault = FAULTS[name]
    return Kernel(fault.build(), fault.declaration, name)


def first(check: Check, kernel: Kernel, most: int = 200) -> Wrong | Crash | None:
    """The first conviction."""
    for number, case in enumerate(check.cases(kernel, Random(0))):
        if number == most:
            break
        try:
            verdict = verdict_on(check, kernel, case)
        except Refused:
            continue
        if verdict is not None:
            return verdict
    return None


def test_the_probes_are_all_there() -> None:
    assert len(PROBES) == 15
    assert {name for check in PROBES.values() for name in check.invariants} == {
        *("K1", "K2", "K3", "K4", "K5", "K6", "K7", "K8", "K12", "K13", "K14")
    }


@pytest.mark.parametrize("name", HERE)
def test_the_oracle_passes_every_case_of_every_probe(name: str) -> None:
    kernel = oracle()
    outcome = run(PROBES[name], kernel, Effort(cases=40, seconds=60.0), [])
    assert outcome.finding is None, outcome.finding
    assert outcome.judged >= 4
    assert outcome.refused == 0
    assert outcome.control_seen


def test_the_control_is_seen_on_the_first_cases_already() -> None:
    for name in HERE:
        cases = Effort(cases=3)
        assert run(PROBES[name], oracle(), cases, []).control_seen, name


def test_the_built_in_kernel_passes_every_probe() -> None:
    registration = find("torch")[0]
    for name, check in PROBES.items():
        if name != APART:
            outcome = run(check, Kernel.of(registration), FEW, [])
            assert outcome.finding is None, f"{name}: {outcome.finding}"
            assert outcome.control_seen, name


@pytest.mark.parametrize("control", ["decode-only", "few-sizes", "bare", "empty-untouched"])
def test_a_kernel_that_refuses_most_is_still_looked_at(control: str) -> None:
    """All unusual kernels, and all checks, are in `tests/faults/test_kernels.py`."""
    entry = CONTROLS[control]
    kernel = Kernel(entry.build(), entry.declaration, control)
    judged = 0
    for name in HERE:
        check = PROBES[name]
        if check.unclaimed(entry.declaration) is None:
            outcome = run(check, kernel, FEW, [])
            assert outcome.finding is None, f"{name}: {outcome.finding}"
            judged += outcome.judged
            assert outcome.control_seen or outcome.judged == 0, name
    assert judged > 15


KILLS = {
    "length-tomography": "first-key-lost lse-base-2 tail-read part-in-fp8 slot-off-by-one",
    "causal-tomography": "causal-one-late not-causal causal-one-early causal-top-left",
    "window-tomography": "window-one-wide window-one-narrow window-in-decode-only",
    "needle": "causal-one-late window-one-wide long-cut-off last-split-dropped",
    "halves": "merge-in-base-2 merge-without-weights total-not-decayed decay-forgotten",
    "dont-care": "tail-read tail-times-zero slot-off-by-one random-order",
    "wild-tail": "tail-read tail-times-zero",
    "footprint": "query-scaled-in-place writes-past-the-row last-row-unwritten",
    "empty-rows": "empty-row-nan empty-row-one causal-one-late",
    "magnitude": "no-maximum rows-share-a-maximum",
    "row-isolation": "rows-leak rows-share-a-maximum table-of-first-sequence",
    "head-map": "next-kv-head heads-interleaved",
    "heads-refused": "ratio-not-checked",
    "addressing": "ids-in-16-bit offsets-in-32-bit",
}
"""Faults that each probe must see by itself."""


@pytest.mark.parametrize(
    ("check", "fault"), [(check, name) for check, names in KILLS.items() for name in names.split()]
)
def test_a_probe_sees_the_faults_that_it_is_for(check: str, fault: str) -> None:
    verdict = first(PROBES[check], faulty(fault))
    assert isinstance(verdict, Wrong), verdict
    assert verdict.invariant in FAULTS[fault].accepted, verdict


BLAMED = {
    "causal-one-early": "halves magnitude",
    "causal-top-left": "halves head-map",
    "first-key-lost": "head-map magnitude",
    "heads-interleaved": "addressing needle",
    "last-row-unwritten": "addressing dont-care",
    "lse-without-sink": "magnitude",
    "merge-without-weights": "window-tomography",
    "scale-missing": "halves needle addressing",
    "sinks-missing": "magnitude empty-rows",
    "slot-off-by-one": "causal-tomography head-map magnitude",
    "table-of-first-sequence": "dont-care wild-tail halves",
    "tail-times-zero": "addressing",
    "window-one-narrow": "magnitude",
}
"""Faults that show, or could, in probes of other invariants, which they must not be blamed for."""


@pytest.mark.parametrize(
    ("fault", "check"),
    [(fault, check) for fault, names in BLAMED.items() for check in names.split()],
)
def test_no_probe_blames_another_invariant(fault: str, check: str) -> None:
    verdict = first(PROBES[check], faulty(fault))
    assert verdict is None or isinstance(verdict, Wrong), verdict
    assert verdict is None or verdict.invariant in FAULTS[fault].accepted, verdict


@pytest.mark.parametrize("name", HERE)
def test_cases_follow_from_the_seed(name: str) -> None:
    def cases(seed: int) -> list[Case]:
        return list(islice(PROBES[name].cases(oracle(), Random(seed)), 6))

    assert cases(1) == cases(1)
    assert cases(1) != cases(2)


def test_a_kernel_that_accepts_nothing_has_no_cases() -> None:
    def refuses(batch: object) -> None:
        raise NotImplementedError("nothing")

    kernel = Kernel(refuses, ORACLE)
    for name in HERE:
        assert list(PROBES[name].cases(kernel, Random(0))) == [], name
