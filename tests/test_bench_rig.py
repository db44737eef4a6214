"""The benchmark of the rig: a cost that is recovered, loads counted by hand, and a short run."""

from __future__ import annotations

import importlib.util
import json
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kvassay.harness.contract import CacheManager
from kvassay.harness.record import read_all
from kvassay.harness.registry import find
from kvassay.harness.rig.choosing import Forced
from kvassay.harness.rig.rig import Rig
from kvassay.harness.rig.tagged import TaggedDevice
from kvassay.suites.benchmarks import rig
from kvassay.suites.benchmarks.rig_cost import Load, fit
from kvassay.suites.benchmarks.rig_playing import Measured, closed_loop, patterns, serial

SHORT = ("--shared", "64", "--rounds", "1", "--num-blocks", "80", "--max-tokens", "512")
FEW_SHOT = ("--pattern", "few-shot", "--clients", "2", "--impl", "radix", "--impl", "paged")
needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None,
    reason="transformers is not here: pip install 'kvassay[rig]'",
)


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (0, 7), (5, 9), (12, 13)])
def test_a_load_counts_what_every_query_sees(start: int, stop: int) -> None:
    pairs = sum(position + 1 for position in range(start, stop))
    assert Load.of([(start, stop)]) == Load(stop - start, pairs, stop)
    twice = Load.of([(start, stop), (0, 3)])
    assert twice == Load(stop - start + 3, pairs + 6, stop + 3)


def test_a_planted_cost_is_recovered_and_sums_over_steps() -> None:
    rng, planted = Random(1), (2e-3, 5e-5, 4e-8, 1e-6)
    spans = [(start, start + rng.randint(1, 99)) for start in range(0, 4000, 37)]
    loads = [Load.of([span]) for span in spans]
    took = [sum(c * x for c, x in zip(planted, load.row(), strict=True)) for load in loads]
    cost = fit(loads, took)
    assert cost.coefficients == pytest.approx(planted, rel=1e-6)
    assert cost.error < 1e-9
    assert cost.steps == len(loads)
    steps = [(30, 94), (94, 158), (158, 200)]
    by_hand = sum(cost.seconds(Load.of([span])) for span in steps)
    assert cost.prompt(200, 30, 64) == pytest.approx(by_hand)
    with pytest.raises(ValueError, match="at least 4 steps"):
        fit(loads[:3], took[:3])


def test_the_patterns_share_what_they_say() -> None:
    found = patterns(0, 950, 512)
    assert len(found) == 4
    for workload in found.values():
        cold, *warm = workload.requests
        assert cold.hit() == 0
        assert all(one.hit() >= 950 and one.prompt[:950] == cold.prompt[:950] for one in warm)
    few_shot = found["few-shot"].requests[1]
    assert few_shot.hit() / len(few_shot.prompt) == 0.95


class Bench:
    """Without a model; every look at the clock takes a second."""

    def __init__(self, num_blocks: int = 64) -> None:
        self.num_blocks = num_blocks

    def rig(self, manager: Any, workload: Any) -> Rig:
        clock = count()
        made = manager.build(num_blocks=self.num_blocks, block_size=4)
        device = TaggedDevice(4)
        outputs = {one.name: one.output for one in workload.requests}
        return Measured(
            made,
            manager.declaration,
            device,
            choose=Forced(outputs),
            clock=lambda: float(next(clock)),
        )


def managers(*names: str) -> list[Any]:
    return [entry for name in names for entry in find(name) if entry.kind is CacheManager]


def test_every_rig_answers_every_request_and_finds_what_is_intended() -> None:
    for workload in patterns(0, 38, 512).values():
        rows = [rig.Row(workload.name, entry) for entry in managers("radix", "paged")]
        for planned, rigs in serial(Bench(), managers("radix", "paged"), workload):  # type: ignore[arg-type]
            for row, each in zip(rows, rigs, strict=True):
                row.take(planned, each.timelines[planned.name])
        radix, paged = rows
        assert radix.hit == radix.intended == workload.hits()
        assert paged.hit == 0
        assert radix.tokens == paged.tokens == workload.prompt_tokens
        for one in workload.requests:
            assert rigs[0].ended[one.name].outputs == (one.output,)


def test_a_request_without_an_answer_is_no_measurement() -> None:
    few_shot = patterns(0, 38, 512)["few-shot"]
    with pytest.raises(RuntimeError, match=r"q0 was not answered: .* blocks"):
        list(serial(Bench(4), managers("paged"), few_shot))  # type: ignore[arg-type]


def test_a_closed_loop_counts_tokens_and_slots() -> None:
    few_shot = patterns(0, 38, 512)["few-shot"]
    radix, pow2 = (
        closed_loop(Bench(), entry, few_shot, 2)  # type: ignore[arg-type]
        for entry in managers("radix", "contiguous-pow2")
    )
    assert radix.throughput > 0
    assert radix.waste is not None
    assert pow2.waste is not None
    assert 0 < radix.waste < 0.1
    assert pow2.waste > 0.2


def test_without_transformers_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rig, "find_spec", lambda name: None)
    assert rig.main([]) == 2
    assert "kvassay[rig]" in capsys.readouterr().err


@needs_transformers
@pytest.mark.filterwarnings("default")
def test_a_short_run_leaves_a_table_records_and_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, folder = tmp_path / "ttft.md", tmp_path / "records"
    arguments = [*SHORT, "--page", str(page), "--record", str(folder)]
    assert rig.main([*arguments, *FEW_SHOT, "--impl", "contiguous"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in ("few-shot", "radix", "paged", "contiguous"))
    text = page.read_text()
    assert "times faster than paged" in text
    assert str(tmp_path) not in text
    found = {record.subject.name: record for record in read_all([folder])}
    assert found.keys() == {"radix", "paged", "contiguous"}
    radix = found["radix"]
    assert radix.counters["hit_tokens"] == radix.counters["intended_tokens"] > 0
    values = {metric.name: metric.value for metric in radix.metrics}
    assert all(value is not None for value in values.values())
    assert json.loads(radix.model_dump_json())["options"]["pattern"] == "few-shot"


@needs_transformers
@pytest.mark.filterwarnings("default")
def test_an_interrupted_run_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: Any) -> Any:
        for number, answered in enumerate(serial(*arguments)):
            if number == 1:
                raise KeyboardInterrupt
            yield answered

    monkeypatch.setattr(rig, "serial", interrupted)
    page = tmp_path / "ttft.md"
    assert rig.main([*SHORT, *FEW_SHOT, "--page", str(page)]) == 130
    assert "radix" in capsys.readouterr().out
    assert not page.exists()
