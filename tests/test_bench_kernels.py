"""The kernel benchmarks: contenders compute the same, and what is reported is what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kvassay.harness.contract import AttentionResult
from kvassay.harness.record import Direction, read
from kvassay.harness.roofline import Ceiling, Shape
from kvassay.harness.timing import Timed
from kvassay.reference.attention import attend
from kvassay.suites.benchmarks.kernels import gpu, report, shapes, tune
from kvassay.suites.benchmarks.kernels.batches import batches, dense
from kvassay.suites.benchmarks.kernels.contenders import NotOffered, contender
from kvassay.suites.benchmarks.kernels.measure import Row, Table, measure

BF16 = torch.bfloat16
MACHINE = Ceiling(bandwidth=1e9, matmul=1e12)


def rows_of(result: object) -> torch.Tensor:
    """``[tokens, heads, dim]``, whatever form a contender gives its output."""
    if isinstance(result, AttentionResult):
        return result.output
    assert isinstance(result, torch.Tensor)
    return result.transpose(1, 2).flatten(0, 1)


@pytest.mark.parametrize("name", ["triton", "triton-batch-invariant", "torch", "sdpa-contiguous"])
@pytest.mark.parametrize("shape", shapes.TINY, ids=lambda shape: shape.name)
def test_contenders_compute_attention(name: str, shape: Shape) -> None:
    (batch,) = batches(shape, "cpu", BF16)
    try:
        call = contender(name)(batch)
    except NotOffered:
        assert name == "sdpa-contiguous"
        assert not shape.name.startswith(("decode", "prefill"))
        return
    expected = attend(batch).output
    assert torch.allclose(rows_of(call()).double(), expected, atol=0.02)


def test_block_tables_are_random_and_every_block_has_one_owner() -> None:
    (batch,) = batches(shapes.decode(3, 200), "cpu", BF16)
    ids = batch.block_table.flatten()
    assert sorted(ids.tolist()) == list(range(3 * 13))
    assert ids.tolist() != sorted(ids.tolist())


def test_dense_memory_holds_the_sequences_in_order() -> None:
    (batch,) = batches(shapes.TINY[0], "cpu", BF16)
    _, key, value = dense(batch)
    for number, position in ((0, 0), (1, 95)):
        block = batch.block_table[number, position // 16]
        assert (key[number, :, position] == batch.key_cache[block, position % 16]).all()
        assert (value[number, :, position] == batch.value_cache[block, position % 16]).all()
    with pytest.raises(ValueError, match="different lengths"):
        dense(batches(shapes.TINY[2], "cpu", BF16)[0])


def test_full_shapes_fit_the_memory_that_is_meant() -> None:
    assert all(sum(keys for keys, _ in s.seqs) <= shapes.MOST_KEYS for s in shapes.FULL)
    assert len({s.name for s in shapes.FULL}) == len(shapes.FULL)
    assert {s.name for s in shapes.TUNED} <= {s.name for s in shapes.DECODE}


def test_who_offers_nothing_is_told_with_the_reason() -> None:
    wanted = {name: contender(name) for name in ("torch", "sdpa-contiguous")}
    row = measure(shapes.TINY[3], wanted, "cpu", BF16, seconds=0.0)
    assert [*row.timed] == ["torch"]
    assert "decode rows or whole prompts" in row.not_offered["sdpa-contiguous"]
    assert "decode rows or whole prompts" in report.page(Table("cpu", MACHINE, [row]))


def table() -> Table:
    """One shape of which the floor is 98.9 ms; one contender faster than that."""
    row = Row(shapes.decode(1, 24064))
    row.timed = {
        "steady": Timed("steady", [0.2, 0.2, 0.3]),
        "sdpa-contiguous": Timed("sdpa-contiguous", [0.1, 0.1, 0.1]),
        "cached": Timed("cached", [0.05]),
    }
    return Table("cpu", MACHINE, [row])


def test_the_page_has_ratios_and_marks_what_was_not_read_from_memory() -> None:
    page = report.page(table())
    cells = [cell.strip() for cell in page.splitlines()[4].strip("|").split("|")]
    assert cells[:3] == ["decode 1 x 24064", "memory", "98588.5 us"]
    assert "(cached)" in cells[4]
    assert cells[-3:] == ["200000.0 us", "2.03", "2.00"]


def test_records_hold_samples_ratio_and_ceilings(tmp_path: Path) -> None:
    report.keep(table(), tmp_path)
    records = [read(path) for path in sorted(tmp_path.glob("*.json"))]
    assert sorted(r.subject.name for r in records) == ["cached", "sdpa-contiguous", "steady"]
    steady = next(r for r in records if r.subject.name == "steady")
    latency, ratio, *ceilings = steady.metrics
    assert latency.samples == [0.2, 0.2, 0.3]
    assert latency.value == 0.2
    assert latency.direction is Direction.LOWER
    assert ratio.value == pytest.approx(2.03, abs=0.01)
    assert [metric.value for metric in ceilings] == [1e9, 1e12]
    assert (tmp_path / "kernels.md").is_file()
    for chart in ("kernels.png", "kernels.svg"):
        assert (tmp_path / chart).stat().st_size > 1000


def test_variants_are_ranked_where_all_were_measured() -> None:
    ranking = tune.ranking(table())
    assert [name for _, name in ranking] == ["cached", "sdpa-contiguous", "steady"]


def test_the_suites_of_the_script_are_dealt_out_whole() -> None:
    commands = list(gpu.suite_commands(3, 1.0, "k5"))
    dealt = [part for command in commands for part in command if "::" in part]
    assert len(commands) == 3
    assert len(dealt) == len({*dealt}) > 3
    assert not any(gpu.REACH in each for each in dealt)


def test_a_stage_that_fails_is_reported_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = gpu.sys.executable
    fine = gpu.Stage("fine", ((python, "-c", "print('done')"),) * 2, 30)
    bad = gpu.Stage("bad", ((python, "-c", "raise SystemExit('it broke')"),), 30)
    slow = gpu.Stage("slow", ((python, "-c", "import time; time.sleep(60)"),), 0.5)
    assert [gpu.run(stage, tmp_path, {}) for stage in (bad, slow, fine)] == [False, False, True]
    printed = capsys.readouterr().out
    assert "it broke" in printed
    assert "fine: 2 of 2 passed" in printed
