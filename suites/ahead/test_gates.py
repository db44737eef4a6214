"""Every launch of the built-in kernel that matters, on every target, passes every gate."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version

import pytest

from kvassay.harness.ahead.gates import GATES
from kvassay.harness.ahead.report import Report
from kvassay.harness.ahead.targets import TARGETS

PHASES = {"decode": 10, "prefill": 5, "other": 3}
"""Launches of each kind that there are at least."""
KNOWN: Mapping[tuple[str, str, str], Mapping[str, list[str]]] = {
    ("3.6", "sm_100", "fits"): {"decode D=64 G=8 window sinks": ["spills 24 bytes"]},
    ("3.6", "gfx942", "fits"): {"prefill 8-bit head scales": ["spills 2 registers"]},
}
"""By Triton, target and gate: what the Triton that the kernel is written for does not do."""


@pytest.mark.parametrize("target", TARGETS)
def test_there_is_enough_to_look_at(target: str, shipped: list[Report]) -> None:
    reports = [report for report in shipped if report.target == target]
    for phase, least in PHASES.items():
        assert sum(report.phase == phase for report in reports) >= least


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("target", TARGETS)
def test_no_gate_objects(target: str, gate: str, shipped: list[Report]) -> None:
    problems = {
        report.name: found
        for report in shipped
        if report.target == target and (found := GATES[gate](report))
    }
    triton = ".".join(version("triton").split(".")[:2])
    assert problems == KNOWN.get((triton, target, gate), {})
