"""The benchmarks run: each is tried on a small part of its work."""

import os
from pathlib import Path
from random import Random

import pytest

from kvassay.harness.registry import find
from kvassay.suites.benchmarks import (
    bench_bridge,
    false_alarms,
    probe_power,
    rig_memory,
    yardstick,
)


def test_both_generators_convict_an_easy_fault() -> None:
    found = {entry.name: entry for entry in find("kvassay.impls.faulty.managers")}
    faulty, sound = found["fault-tail-leaked"], find("kvassay.impls.faulty.hashed")[0]
    for example in (yardstick.by_generator, yardstick.by_uniform):
        assert yardstick.needed(example, faulty, {"A1", "A4", "A5"}, seed=0) < 20
        assert example(sound, Random(0), 0).verdict is None


def test_both_generators_convict_an_easy_fault_of_an_index() -> None:
    found = {entry.name: entry for entry in find("kvassay.impls.faulty.indexes")}
    faulty, (sound,) = found["index-fault-insert-counts-new"], find("radix-index")
    for example in (yardstick.by_generator, yardstick.by_uniform):
        assert yardstick.needed(example, faulty, {"P2", "P3", "P5", "P12"}, seed=0) < 20
        assert all(example(sound, Random(seed), 0).verdict is None for seed in range(5))


def test_the_factor_counts_hard_faults_only() -> None:
    rows = [yardstick.Row("easy", 1, 2), yardstick.Row("hard", 2, 200), yardstick.Row("x", 1, 90)]
    assert yardstick.median_factor(rows) == 95
    text = yardstick.page({"manager": rows}, 150, 1)
    assert "| hard | 2 | >200 | >100.0 |" in text
    assert "1 of them not found by uniform operations in 150 examples" in text


def test_the_bridge_benchmark_has_an_entry() -> None:
    assert callable(bench_bridge.main)


def test_probes_see_one_wrong_key_and_none_where_there_is_none() -> None:
    for row in probe_power.rows((130,), 1):
        assert row.seeds == 1
        assert row.seen["any"] == (row.what not in probe_power.RIGHT), row.what


def probes_page() -> dict[tuple[str, int], dict[str, str]]:
    """The cells of the stored page by mistake and length."""
    lines = probe_power.RESULTS.read_text().splitlines()
    head, _, *body = ([c.strip() for c in ln.split("|")[1:-1]] for ln in lines if ln[:1] == "|")
    return {(row[0], int(row[1])): dict(zip(head[2:], row[2:], strict=True)) for row in body}


def test_the_stored_page_says_of_every_length_that_wrong_keys_are_seen() -> None:
    page, seeds = probes_page(), probe_power.SEEDS
    all_of_them = f"{seeds}/{seeds}"
    assert {length for _, length in page} == {*probe_power.LENGTHS}
    assert {what for what, _ in page} == {*probe_power.MISTAKES, *probe_power.RIGHT}
    needles = {*probe_power.MISTAKES} - {"8 splits merged in base 2", "page tail seen"}
    for (what, length), seen in page.items():
        if what in probe_power.RIGHT:
            assert {*seen.values()} == {f"0/{seeds}"}, (what, length)
            continue
        assert seen["tomography"] == seen["any"] == all_of_them, (what, length)
        assert seen["needle"] == all_of_them or what not in needles, (what, length)


def test_the_stored_page_is_what_is_measured() -> None:
    """A part of it: what all seeds, or none, see is seen by each of them, or by none."""
    page, decided = probes_page(), 0
    for row in probe_power.rows(probe_power.QUICK_LENGTHS, probe_power.QUICK_SEEDS):
        for name, cell in page[row.what, row.length].items():
            seen, of = map(int, cell.split("/"))
            if seen in (0, of):
                decided += 1
                assert row.seen[name] == (row.seeds if seen else 0), (row.what, row.length, name)
    assert decided > 60


def test_false_alarms_are_counted_and_each_kernel_keeps_one_row(tmp_path: Path) -> None:
    totals = false_alarms.count("torch", 5, seed=0)
    assert (totals.judged, totals.refused, totals.rejected) == (5, 0, [])
    assert 0 < totals.largest["row"] < 1
    table = tmp_path / "table.md"
    for row in (totals.row("torch", 0), totals.row("other", 0), totals.row("torch", 7)):
        false_alarms.keep(row, table)
    rows = [line for line in table.read_text().splitlines() if line.startswith("| ")][1:]
    assert [row.split("|")[1:3] for row in rows] == [[" other ", " 0 "], [" torch ", " 7 "]]


def test_children_are_told_to_keep_memory_in_the_block_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
    monkeypatch.setenv(names[0], "4096")
    monkeypatch.delenv(names[1], raising=False)
    with rig_memory.children_keep_memory():
        assert [os.environ[name] for name in names] == ["33554432", "2147483647"]
    assert [os.environ.get(name) for name in names] == ["4096", None]
