"""The benchmarks run: each is tried on a small part of its work."""

from random import Random

from kvassay.harness.registry import find
from kvassay.suites.benchmarks import bench_bridge, yardstick


def test_both_generators_convict_an_easy_fault() -> None:
    found = {entry.name: entry for entry in find("kvassay.impls.faulty.managers")}
    faulty, sound = found["fault-tail-leaked"], find("kvassay.impls.faulty.hashed")[0]
    for example in (yardstick.by_generator, yardstick.by_uniform):
        assert yardstick.needed(example, faulty, {"A1", "A4", "A5"}, seed=0) < 20
        assert example(sound, Random(0), 0).verdict is None


def test_the_factor_counts_hard_faults_only() -> None:
    rows = [yardstick.Row("easy", 1, 2), yardstick.Row("hard", 2, 200), yardstick.Row("x", 1, 90)]
    assert yardstick.median_factor(rows) == 95


def test_the_bridge_benchmark_has_an_entry() -> None:
    assert callable(bench_bridge.main)
