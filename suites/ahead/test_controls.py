"""Each gate objects to a launch that is slow in its way, and the others tell what they see."""

from __future__ import annotations

import pytest

from kvassay.harness.ahead.gates import GATES
from kvassay.harness.ahead.report import Report


@pytest.mark.parametrize("gate", GATES)
def test_a_gate_objects_to_what_is_slow(gate: str, slow: list[Report]) -> None:
    controls = [report for report in slow if report.name.startswith(f"{gate}: ")]
    assert controls
    for report in controls:
        assert report.error is None, report.error
        assert GATES[gate](report), f"{report.name} on {report.target}: nobody objects"
