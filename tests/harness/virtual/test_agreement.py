"""Fitting a machine, and how far virtual time is from a real engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvassay.harness.contract import GenerationRequest, TokenEvent
from kvassay.harness.environment import capture
from kvassay.harness.metrics.timeline import Ending, Timeline
from kvassay.harness.roofline import Ceiling
from kvassay.harness.virtual import agreement, probing
from kvassay.harness.virtual.agreement import Agreement, compare
from kvassay.harness.virtual.cost import Cost, Machine, StepWork
from kvassay.harness.virtual.fitting import Observed, fit, largest_miss
from kvassay.harness.virtual.model import RANDOM_LLAMA

TRUE = Machine("true", Ceiling(3e10, 9e10), 0, 1.0, 1.0, 1e-3, 8e-5, 1.5e-3, "")


def observed(machine: Machine) -> list[Observed]:
    cost = Cost(RANDOM_LLAMA, machine)
    steps = [probing._prefilled(length) for length in probing.PREFILLS]
    steps += [probing._decoded(*case) for case in probing.DECODES]
    return [Observed(step, cost.seconds(step)) for step in steps]


def test_finds_the_constants_that_steps_were_made_from() -> None:
    found = fit(observed(TRUE), RANDOM_LLAMA, "found", "")
    assert found.peak.matmul == pytest.approx(9e10, rel=0.02)
    assert found.entry_seconds == pytest.approx(1.5e-3, rel=0.05)
    assert found.chunk_seconds == pytest.approx(8e-5, rel=0.05)
    assert largest_miss(observed(TRUE), Cost(RANDOM_LLAMA, found)) < 0.02


def test_one_strange_step_does_not_turn_the_others() -> None:
    steps = observed(TRUE)
    steps[9] = replace(steps[9], seconds=4 * steps[9].seconds)
    found = fit(steps, RANDOM_LLAMA, "found", "")
    assert found.peak.matmul == pytest.approx(9e10, rel=0.1)
    assert largest_miss(steps, Cost(RANDOM_LLAMA, found)) > 2


def test_needs_as_many_steps_as_constants() -> None:
    with pytest.raises(ValueError, match="at least 5 steps, got 4"):
        fit(observed(TRUE)[:4], RANDOM_LLAMA, "found", "")


class Clockwork:
    """An engine on a clock of its own: a prefill takes 1 ms a token, a step of n decodes n ms."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waiting: list[GenerationRequest] = []

    async def stream(self, request: GenerationRequest) -> AsyncIterator[TokenEvent]:
        self.waiting.append(request)
        await asyncio.sleep(0)  # whoever was asked together is there
        batch = len(self.waiting)
        first = self.now + 0.001 * len(request.prompt)
        times = [first + 0.001 * batch * step for step in range(request.max_tokens)]
        await asyncio.sleep(0)
        self.waiting.remove(request)
        for time in times:
            yield TokenEvent(request.request, (1,), time)
        self.now = max(self.now, times[-1])


def test_probes_prefills_and_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Clockwork()
    monkeypatch.setattr(probing, "PAUSE", 0.0)
    monkeypatch.setattr(probing, "time", SimpleNamespace(monotonic=lambda: engine.now))
    prober = probing.Prober(engine, 100)
    found = asyncio.run(prober.observe((16, 64), ((1, 8), (4, 8)), rounds=1))
    assert [one.seconds for one in found] == pytest.approx([0.016, 0.064, 0.001, 0.004])
    assert [one.work.tokens for one in found] == [16, 64, 1, 4]
    assert [one.work.entered for one in found] == [1, 1, 0, 0]


def line(name: str, first: float, gap: float, ending: Ending = Ending.COMPLETE) -> Timeline:
    events = tuple(TokenEvent(name, (1,), first + gap * n, cached_tokens=4) for n in range(3))
    return Timeline(name, 10, 0.0, 0.0, events, 9.0, ending, "broke")


def test_errors_and_noise_by_hand() -> None:
    virtual = [line("a", 1.2, 0.1), line("b", 1.2, 0.1)]
    runs = [
        [line("a", first, 0.2), line("b", other, 0.2)] for first, other in ((1.0, 1.5), (2.0, 1.0))
    ]
    rows = {(row.metric, row.percentile): row for row in compare(virtual, runs)}
    assert rows["ttft", 50].real == 1.0
    assert rows["ttft", 50].error == pytest.approx(0.2)
    assert rows["ttft", 50].runs == [1.25, 1.5]
    assert rows["ttft", 50].noise == pytest.approx(0.5)
    assert rows["tpot", 90].error == pytest.approx(-0.5)
    assert agreement.hits(virtual) == 8


def test_a_request_that_failed_is_not_compared_away() -> None:
    good, bad = [line("a", 1.0, 0.1)], [line("a", 1.0, 0.1, Ending.FAILED)]
    with pytest.raises(ValueError, match="a: failed: broke"):
        compare(good, [bad])


def test_what_is_kept_is_told_and_what_is_missing_too(tmp_path: Path) -> None:
    good = [line("a", 1.0, 0.1)]
    kept = Agreement(
        engine="some-engine 1",
        model="small",
        trace="some trace",
        requests=1,
        rate=1.0,
        hit_virtual=4,
        hit_real=[4],
        compared=compare([line("a", 1.25, 0.1)], [good]),
        machine={},
        largest_miss=0.1,
        load=[0.5],
        environment=capture("0").model_dump(),
    )
    file = tmp_path / "error.json"
    assert agreement.sentence(file) == agreement.NOT_COMPARED
    agreement.write(kept, file)
    assert "against some-engine 1" in agreement.sentence(file)
    assert "p50 +25 %" in agreement.sentence(file)
    file.write_text("{}", encoding="utf-8")
    assert agreement.sentence(file) == agreement.NOT_COMPARED


def test_the_published_comparison_can_be_read() -> None:
    assert agreement.sentence() != agreement.NOT_COMPARED


def test_work_of_a_probe() -> None:
    work = probing._decoded(2, 100)
    assert (work.chunks, work.tokens, work.samples) == (2, 2, 2)
    assert work.keys == 2 * (100 + (probing.STEPS + 2) // 2 + 1)
    assert isinstance(work, StepWork)
