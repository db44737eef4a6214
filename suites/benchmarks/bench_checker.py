"""Checked operations per second: implementation, model and shadow device included, one core.

A round replays (or generates) the same 200 examples; the figure is the median over rounds of
operations divided by time. `pytest suites/benchmarks/bench_checker.py` prints it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from kvassay.harness.campaign import LENGTHS, Geometry
from kvassay.harness.registry import find
from kvassay.harness.session import Run, explore, replay

EXAMPLES = 200
ROUNDS = 7


def generated(name: str) -> list[Run]:
    """The examples of a round, generated."""
    (registration,) = find(name)
    runs = []
    for seed in range(EXAMPLES):
        rng = Random(seed)
        num_blocks, block_size = Geometry().draw(rng)
        runs.append(explore(registration, rng, num_blocks, block_size, length=rng.choice(LENGTHS)))
    return runs


def replayed(name: str) -> Callable[[], list[Run]]:
    """The same examples, replayed from their scenarios."""
    (registration,) = find(name)
    scenarios = [run.scenario for run in generated(name)]
    return lambda: [replay(registration, scenario) for scenario in scenarios]


@pytest.mark.parametrize("mode", ["generated", "replayed"])
@pytest.mark.parametrize("name", ["paged", "radix"])
def test_checked_operations_per_second(
    benchmark: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], name: str, mode: str
) -> None:
    round_of = replayed(name) if mode == "replayed" else lambda: generated(name)
    runs = benchmark.pedantic(round_of, rounds=ROUNDS, warmup_rounds=1)  # type: ignore[attr-defined]
    assert all(run.verdict is None for run in runs)
    operations = sum(sum(run.effects.values()) for run in runs)
    speed = operations / benchmark.stats.stats.median  # type: ignore[attr-defined]
    benchmark.extra_info["operations_per_second"] = speed  # type: ignore[attr-defined]
    with capsys.disabled():
        print(f"\n{name}, {mode}: {speed:,.0f} checked operations/s ({operations} a round)")
