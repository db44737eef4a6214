"""One list of all faults: enough, of several shapes for each invariant, each told in full."""

from __future__ import annotations

from collections import defaultdict

import pytest

from kvassay.harness.attention.law import KERNEL_LAW, WHOLE_LAW
from kvassay.harness.index.law import LAW as INDEX_LAW
from kvassay.harness.inside.law import INSIDE_LAW
from kvassay.harness.invariants import LAW
from kvassay.harness.load.known.law import METRIC_LAW
from kvassay.harness.pairs.law import PAIR_LAW
from kvassay.harness.rig.law import ENGINE_LAW
from kvassay.harness.trial.checks import checks_of
from kvassay.harness.trial.planted import Family, Planted
from kvassay.impls.faulty import registry

EVERYTHING = registry.everything()
FAULTS = [one for one in EVERYTHING if one.is_fault]
CONTROLS = [one for one in EVERYTHING if not one.is_fault]
KERNELS = (Family.TORCH, Family.TRITON)
AT_LEAST = 96
LAWS = {
    (Family.MANAGER,): LAW,
    (Family.INDEX,): INDEX_LAW,
    KERNELS: KERNEL_LAW,
    (Family.RIG,): ENGINE_LAW,
    (Family.METRICS,): METRIC_LAW,
    (Family.INSIDE,): INSIDE_LAW,
}


def shapes(families: tuple[Family, ...]) -> dict[str, set[object]]:
    """By invariant, what was corrupted in the faults that name it."""
    found: dict[str, set[object]] = defaultdict(set)
    for one in FAULTS:
        for invariant in one.accepted if one.family in families else ():
            found[invariant].add(one.marks())
    return found


def test_there_are_enough_and_each_has_a_name_of_its_own() -> None:
    assert len(FAULTS) >= AT_LEAST
    assert len({one.key for one in EVERYTHING}) == len(EVERYTHING)
    assert {one.family for one in FAULTS} == set(Family)
    assert {one.family for one in CONTROLS} == set(Family) - {Family.TRITON}


@pytest.mark.parametrize("families", LAWS, ids=lambda families: families[0].value)
def test_every_invariant_has_faults_of_two_shapes(families: tuple[Family, ...]) -> None:
    found = shapes(families)
    few = {name: len(found[name]) for name in LAWS[families] if len(found[name]) < 2}
    # One function of a kernel may be edited in several ways: each is a shape.
    if families == KERNELS:
        edits = [name for one in FAULTS if one.family in KERNELS for name in one.accepted]
        few = {name: edits.count(name) for name in KERNEL_LAW if edits.count(name) < 2}
    assert not few


@pytest.mark.parametrize("one", FAULTS, ids=lambda one: one.key)
def test_a_fault_is_told_in_full(one: Planted) -> None:
    assert one.accepted
    assert one.accepted <= {*WHOLE_LAW, *PAIR_LAW, *INSIDE_LAW}
    assert one.marks(), "nobody could see whether its code is run"
    assert one.hides or one.family in KERNELS


def test_controls_are_told_apart_from_faults() -> None:
    assert len(CONTROLS) >= 40
    assert all(not one.accepted and not one.marks() for one in CONTROLS)


def test_every_check_of_a_family_is_known_by_name() -> None:
    known = {family: checks_of(family) for family in Family}
    assert {"hits._check_missed", "quiescence._fill", "mirror._enter"} <= {*known[Family.MANAGER]}
    assert {"index.checker._evict", "index.looking._stray"} <= {*known[Family.INDEX]}
    assert {"pairs.worker._read_table", "pairs.attending.judged"} <= {*known[Family.PAIR]}
    assert len(known[Family.TORCH]) > 40
    assert all(len(names) == len({*names}) for names in known.values())
    assert {family for family in Family if not known[family]} == {Family.TRITON, Family.INSIDE}
