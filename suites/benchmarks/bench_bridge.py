"""Operations per second over `exec:`, bare and checked: the same examples beside the same process.

Bare is a proxy driven in a loop, tables read after every operation; checked is with model and
shadow device, inspection included. ``python -m kvassay.suites.benchmarks.bench_bridge`` prints
medians; ``taskset -c 0 python -m ...`` is one core for both sides.
"""

from __future__ import annotations

import shlex
import statistics
import sys
import time
from collections.abc import Callable
from random import Random

from kvassay.harness.campaign import LENGTHS, Geometry
from kvassay.harness.contract import CacheKey
from kvassay.harness.registry import Registration, find
from kvassay.harness.session import explore, replay

FAR = """
from kvassay.impls.bridge.kvassay_adapter import serve
from kvassay.impls.faulty.hashed import DECLARATION, HashedCache

serve(HashedCache, name="far-hashed", declaration=DECLARATION)
"""
REFERENCE = "exec:" + shlex.join([sys.executable, "-c", FAR])
EXAMPLES = 100
LIVES = 300
ROUNDS = 7
KEY = CacheKey((1, 2, 3, 4, 5))

Round = Callable[[], int]
"""Does a round and returns how many operations it had."""


def bare(registration: Registration) -> Round:
    """Lives of eight decodes; every table is read after every operation."""

    def a_round() -> int:
        manager = registration.build(num_blocks=64, block_size=4)
        for _ in range(LIVES):
            manager.admit("a", KEY)
            manager.block_table("a")
            for token in range(8):
                manager.append("a", [token])
                manager.block_table("a")
            manager.release("a")
        return LIVES * 10

    return a_round


def checked(registration: Registration) -> Round:
    """Generated examples of the usual mix, replayed."""
    scenarios = []
    for seed in range(EXAMPLES):
        rng = Random(seed)
        num_blocks, block_size = Geometry().draw(rng)
        run = explore(registration, rng, num_blocks, block_size, length=rng.choice(LENGTHS))
        assert run.verdict is None, run.verdict
        scenarios.append(run.scenario)

    def a_round() -> int:
        runs = [replay(registration, scenario) for scenario in scenarios]
        return sum(sum(run.effects.values()) for run in runs)

    return a_round


def speed(a_round: Round) -> float:
    """Operations per second: the median over rounds, after one to warm up."""
    a_round()
    figures = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        operations = a_round()
        figures.append(operations / (time.perf_counter() - start))
    return statistics.median(figures)


def main() -> None:
    """Print the figures of both sides."""
    (far,) = find(REFERENCE)
    find("kvassay.impls.faulty.hashed")
    (near,) = find("hashed")
    for registration in (far, near):
        for kind in (bare, checked):
            figure = speed(kind(registration))
            print(f"{registration.name}, {kind.__name__}: {figure:,.0f} operations/s")


if __name__ == "__main__":
    sys.exit(main())
