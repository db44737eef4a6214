"""The suite of a whole engine's first tokens, on an engine whose answers and hits are known."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvassay.harness.contract import Engine, GenerationRequest, TokenEvent
from kvassay.harness.metrics.timeline import UNSEEN
from kvassay.harness.record import BadRecord, read_all
from kvassay.harness.registry import implementation
from kvassay.harness.workloads.branching import tree_of_thought
from kvassay.harness.workloads.sessions import agents, multi_turn
from kvassay.suites.benchmarks import engine_answers, engine_page, engine_ttft
from kvassay.suites.benchmarks.stored import newest

pytestmark = pytest.mark.usefixtures("own_registry")


class Caching:
    """Finds whole blocks of what it has seen; each token it computes takes a second, it says."""

    found = True

    def __init__(self, *, prefix_caching: bool = True, **_: Any) -> None:
        self.caching = prefix_caching
        self.seen: set[tuple[int, ...]] = set()
        self.prompts: dict[str, tuple[int, ...]] = {}

    async def stream(self, request: GenerationRequest) -> AsyncIterator[TokenEvent]:
        prompt, size = tuple(request.prompt), engine_ttft.BLOCK_SIZE
        self.prompts[request.request] = prompt
        blocks = range(size, len(prompt), size)
        hit = next((end - size for end in blocks if prompt[:end] not in self.seen), blocks[-1])
        hit = hit if self.caching and self.found else 0
        answer = tuple((request.options["seed"] + n) % 1000 for n in range(request.max_tokens))
        computed = prompt + answer[:-1]
        self.seen |= {computed[:end] for end in range(size, len(computed) + 1, size)}
        start = asyncio.get_running_loop().time()
        for n, token in enumerate(answer):
            time = start + (len(prompt) - hit) + n
            reason = "length" if n == len(answer) - 1 else None
            yield TokenEvent(request.request, (token,), time, reason, hit)

    def close(self) -> None:
        """Nothing to end."""


class Forgetful(Caching):
    """Never finds anything."""

    found = False


def register(factory: type) -> None:
    implementation("known-engine", kind=Engine)(factory)


def played(engine: Any, workload: Any) -> dict[str, tuple[int, ...]]:
    """Prompts as the engine was asked for them."""

    async def play() -> None:
        answering = engine_answers.Answering(engine, workload)
        for one in workload.requests:
            request = GenerationRequest(one.name, one.prompt, len(one.output))
            async for _ in answering.stream(request):
                pass

    asyncio.run(play())
    prompts: dict[str, tuple[int, ...]] = engine.prompts
    return prompts


def test_real_answers_take_the_place_of_planned_ones() -> None:
    workload = multi_turn(1, chats=2, turns=3, vocabulary=1000)
    prompts = played(Caching(), workload)
    first = workload.requests[0]
    answer = tuple(n % 1000 for n in range(len(first.output)))  # of seed 0
    assert prompts["c0t0"] == first.prompt
    assert prompts["c0t1"][: len(first.prompt) + len(answer)] == first.prompt + answer
    assert [len(prompt) for prompt in prompts.values()] == [
        len(one.prompt) for one in workload.requests
    ]


def test_thoughts_go_on_with_the_thought_before() -> None:
    workload = tree_of_thought(1, problems=1, depth=3, branches=2, vocabulary=1000)
    prompts = played(Caching(), workload)
    before = prompts["t0.1"]
    assert prompts["t0.1.0"][: len(before)] == before
    assert prompts["t0.1.0"] == prompts["t0.1.1"] != prompts["t0.0.0"]


def test_a_prompt_that_was_replaced_is_left_as_planned() -> None:
    workload = agents(1, count=1, steps=12, vocabulary=1000)
    prompts = played(Caching(), workload)
    compacted = [
        one
        for before, one in zip(workload.requests, workload.requests[1:], strict=False)
        if len(one.prompt) < len(before.prompt)
    ]
    assert compacted
    assert all(prompts[one.name] == one.prompt for one in compacted)


def test_answers_without_ids_cannot_be_gone_on_with() -> None:
    class Mute(Caching):
        async def stream(self, request: GenerationRequest) -> AsyncIterator[TokenEvent]:
            yield TokenEvent(request.request, (UNSEEN,), 0.0, "length")

    with pytest.raises(engine_answers.NoIds, match="c0t0"):
        played(Mute(), multi_turn(1, chats=1, turns=1, vocabulary=1000))


@pytest.mark.parametrize(
    ("count", "places"), [(6, (0, 5)), (8, (0, 7)), (9, (1, 7)), (20, (5, 14))]
)
def test_the_interval_of_a_median(count: int, places: tuple[int, int]) -> None:
    assert engine_page.interval([float(n) for n in range(count)][::-1]) == places


def test_too_few_rounds_have_no_interval() -> None:
    with pytest.raises(ValueError, match="at least 6 samples, got 5"):
        engine_page.interval([1.0] * 5)


def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str]:
    command = ["--engine", "known-engine", "--rounds", "1", "--record", str(tmp_path), *more]
    status = engine_ttft.main(command)
    return status, capsys.readouterr().out


def rows(tmp_path: Path) -> list[engine_page.Row]:
    return [engine_page.row_of(one) for one in newest(read_all([tmp_path]), engine_page.SUITE)]


def test_hits_are_those_that_are_intended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register(Caching)
    status, said = run(tmp_path, capsys)
    assert status == 0
    assert "tax of prefix caching at 0 % hits, in process: on / off 1.000" in said
    assert "A/A: on / off 1.000 (too few rounds: 1)" in " ".join(said.split())
    found = rows(tmp_path)
    assert [one.workload for one in found] == [*engine_ttft.SHARING, "unrelated"]
    for one in found:
        assert one.found == one.intended
        assert (one.ratios[0] < 0.6) == (one.workload != "unrelated")


def test_the_page_is_made_of_the_times_in_the_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register(Caching)
    page = tmp_path / "engine.md"
    assert run(tmp_path, capsys, "--rounds", "6", "--page", str(page))[0] == 0
    text = page.read_text()
    assert engine_page.page(newest(read_all([tmp_path]), engine_page.SUITE)) == text
    (line,) = (one for one in text.splitlines() if one.startswith("| few-shot, in process |"))
    # 576 tokens of which 512 are found, a second each: but for the first, which finds nothing.
    assert line.split(" | ")[1:5] == ["6", "96", "83.33", "83.33"]
    assert float(line.split(" | ")[5]) == pytest.approx(64000, rel=1e-3)
    assert line.endswith(" | 0.111 | 0.111 to 0.111 |")
    assert "A/A: on / off 1.000 (1.000 to 1.000)" in text


def test_a_slower_engine_is_told_by_how_much(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Taxed(Forgetful):
        """Caching costs half a second for each second of a prompt."""

        async def stream(self, request: GenerationRequest) -> AsyncIterator[TokenEvent]:
            late = len(request.prompt) / 2 if self.caching else 0
            async for event in super().stream(request):
                yield replace(event, time=event.time + late)

    register(Taxed)
    page = tmp_path / "engine.md"
    arguments = ("--rounds", "6", "--workload", "unrelated", "--page", str(page))
    assert run(tmp_path, capsys, *arguments)[0] == 0
    tax = "Tax of prefix caching at 0 % hits, in process: on / off 1.500 (1.500 to 1.500)"
    (line,) = (line for line in page.read_text().splitlines() if line.startswith(tax))
    (change,) = re.findall(r"medians \+(.*) ms\.", line)
    assert float(change) == pytest.approx(288_000, rel=1e-3)
    assert "in process, A/A: on / off 1.000 (1.000 to 1.000)" in page.read_text()


def test_the_page_is_of_one_complete_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register(Caching)
    run(tmp_path, capsys, "--workload", "unrelated")
    stored = read_all([tmp_path])
    later = stored[0].environment.model_copy(update={"time": "2999-01-01T00:00:00+00:00"})
    options = stored[0].options | {"complete": "no"}
    partial = stored[0].model_copy(update={"environment": later, "options": options})
    assert newest([*stored, partial], engine_page.SUITE) == sorted(
        stored, key=lambda one: one.options["row"]
    )


def test_samples_that_are_no_whole_rounds_are_no_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register(Caching)
    run(tmp_path, capsys, "--workload", "unrelated")
    record = read_all([tmp_path])[0]
    broken = record.model_copy(update={"counters": {"requests": 24, "rounds": 7}})
    with pytest.raises(BadRecord, match="7 equal rounds"):
        engine_page.row_of(broken)


def test_a_cache_that_finds_nothing_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register(Forgetful)
    run(tmp_path, capsys)
    shared = [one for one in rows(tmp_path) if one.workload != "unrelated"]
    assert shared
    for one in shared:
        assert one.found == 0 < one.intended


def test_a_failed_request_ends_the_measurement_and_keeps_what_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Breaking(Caching):
        async def stream(self, request: GenerationRequest) -> AsyncIterator[TokenEvent]:
            if request.request == "c0t0":  # of the second workload
                yield TokenEvent(request.request, (1,), 0.0)
            else:
                async for event in super().stream(request):
                    yield event

    register(Breaking)
    command = ["--engine", "known-engine", "--record", str(tmp_path)]
    page = ["--page", str(tmp_path / "engine.md")]
    assert engine_ttft.main([*command, *page]) == engine_ttft.FAILED
    assert "multi-turn chat: c0t0: truncated" in capsys.readouterr().err
    (kept,) = read_all([tmp_path])
    assert (kept.options["workload"], kept.options["complete"]) == ("few-shot", "no")
    assert not (tmp_path / "engine.md").exists()


def test_ctrl_c_keeps_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(Caching):
        async def stream(self, request: GenerationRequest) -> AsyncIterator[TokenEvent]:
            if request.request == "c0t0":
                signal.raise_signal(signal.SIGINT)
                await asyncio.sleep(60)
            async for event in super().stream(request):
                yield event

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # may be ignored
    register(Interrupted)
    try:
        status, said = run(tmp_path, capsys)
    finally:
        signal.signal(signal.SIGINT, before)
    assert status == engine_ttft.INTERRUPTED
    assert "few-shot, in process" in said
    (kept,) = read_all([tmp_path])
    assert (kept.options["workload"], kept.options["complete"]) == ("few-shot", "no")
    monkeypatch.setattr(engine_page, "RECORDS", "")
    assert engine_page.main(["--results", str(tmp_path)]) == engine_ttft.USAGE_ERROR
    assert "no complete run" in capsys.readouterr().err


def test_says_when_an_engine_cannot_be_asked_over_http(capsys: pytest.CaptureFixture[str]) -> None:
    register(Caching)
    command = ["--engine", "known-engine", "--rounds", "1", "--http", "1"]
    assert engine_ttft.main(command) == engine_ttft.USAGE_ERROR
    shown = capsys.readouterr()
    assert "no `serving`" in shown.err
    assert shown.out == ""  # it is said before anything is measured
