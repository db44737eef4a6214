"""Faults of workers, schedulers and pools are convicted from inside; what is right is not."""

from __future__ import annotations

from functools import cache

import pytest

from kvassay.harness.inside.evidence import Met
from kvassay.harness.inside.playing import Stuck
from kvassay.harness.inside.scene import Scene
from kvassay.harness.inside.watch import Watch
from kvassay.harness.violation import Anomaly
from kvassay.impls.faulty.inside import CONTROLS, FAULTS, scene_of
from kvassay.impls.faulty.paged_engine import PagedEngine


def convicted(scene: Scene) -> set[str]:
    """Invariants that the first pass with a conviction breaks."""
    try:
        watch = scene.play(to_the_first=True).watch
    except Stuck:
        return {"S2"}
    return {one.invariant for one in watch.convictions.values()}


@cache
def of_the_host(windows: tuple[int | None, ...]) -> Watch:
    return scene_of(lambda: PagedEngine(windows=windows, num_blocks=24 * len(windows))).play().watch


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_convicted_and_its_host_is_not(name: str) -> None:
    fault = FAULTS[name]
    assert convicted(fault.scene) <= fault.accepted
    assert convicted(fault.scene)
    windows = tuple(group.window for group in fault.host.build().watch.groups)
    assert not of_the_host(windows).convictions


@pytest.mark.parametrize("name", CONTROLS)
def test_an_unusual_engine_that_is_right_is_acquitted_on_evidence(name: str) -> None:
    scene, _ = CONTROLS[name]
    watch = scene.play().watch
    assert not watch.convictions
    assert not watch.never_met
    assert len(watch.verdicts()) > 270  # of 300: some are aborted before they are computed


@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("windows", [(None,), (7,), (None, 5), (4, None, 9)])
def test_other_traffic_convicts_nobody(seed: int, windows: tuple[int | None, ...]) -> None:
    engine = PagedEngine(windows=windows, num_blocks=18 * len(windows), budget=13)
    watch = Scene(lambda: engine, longest=50, vocabulary=9, seed=seed, requests=120).play().watch
    assert not watch.convictions
    assert watch.met[Met.HIT]


def test_the_fault_is_named_where_it_is_seen() -> None:
    (one, *_) = FAULTS["row-not-moved"].scene.play(to_the_first=True).watch.convictions.values()
    assert (one.invariant, one.anomaly) == ("A7", Anomaly.TABLE)
    assert f"position {one.position} of {one.request}" in str(one)
