"""How far a load has come is shown where somebody looks, and nowhere else."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from kvassay.harness.load.progress import Progress
from kvassay.harness.metrics.timeline import Ending, Timeline


def timeline(ending: Ending) -> Timeline:
    return Timeline("r", 1, 0.0, 0.0, (), 1.0, ending)


@pytest.mark.parametrize("looks", [True, False])
def test_ends_are_counted_and_shown_to_who_looks(looks: bool) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=looks, width=100)
    with Progress(3, console) as progress:
        for ending in (Ending.COMPLETE, Ending.FAILED, Ending.COMPLETE):
            progress.told(timeline(ending))
    assert progress.counts == {Ending.COMPLETE: 2, Ending.FAILED: 1}
    assert ("2 complete, 1 failed" in out.getvalue()) == looks
    assert ("3/3" in out.getvalue()) == looks
