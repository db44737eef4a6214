"""Beside `vllm bench serve`: its result is read with suspicion, and a difference is seen."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any

import pytest

from kvassay.harness.load.session import Load, measured
from kvassay.harness.load.workloads import recorded
from kvassay.harness.record import read_all
from kvassay.harness.serving.http import HTTP
from kvassay.harness.serving.openai import OpenAIEngine
from kvassay.harness.workloads import arrivals
from kvassay.harness.workloads.sharing import unrelated
from kvassay.suites.benchmarks import agreement, agreement_vllm
from kvassay.suites.benchmarks.agreement_comparing import QUANTITIES, Compared, Round, compare
from kvassay.suites.benchmarks.agreement_scripted import EMPTY_FIRST, FIRST, PLAIN, scripted
from kvassay.suites.benchmarks.agreement_vllm import (
    BadResult,
    Sample,
    Shape,
    Tool,
    read_result,
    write_trace,
)

needs_vllm = pytest.mark.skipif(
    any(find_spec(name) is None for name in agreement.NEEDED), reason=agreement.WANTED
)
SHAPE = Shape(turns=3, burst=2, gap=0.25, prompt_tokens=600, output_tokens=5)


def result(**changes: Any) -> dict[str, Any]:
    """As vLLM writes it: two requests of 0.1 s and 0.3 s, then 10 ms and 30 ms for each token."""
    ttfts, tpots = [0.1, 0.3], [0.01, 0.03]
    told: dict[str, Any] = {
        "completed": 2,
        "failed": 0,
        "errors": ["", ""],
        "start_times": [7.0, 8.0],
        "queue_times": [0.0, 0.5],
        "ttfts": ttfts,
        "latencies": [first + 4 * each for first, each in zip(ttfts, tpots, strict=True)],
        "input_lens": [600, 600],
        "output_lens": [5, 5],
    }
    for name, values in (("ttft", ttfts), ("tpot", tpots)):
        told[f"median_{name}_ms"] = 1000 * median(values)
        told[f"mean_{name}_ms"] = 1000 * fmean(values)
    return told | changes


def test_a_result_is_read_request_by_request() -> None:
    one, other = read_result(result(), 2)
    assert (one.sent, one.waited, one.ttft) == (7.0, 0.0, 0.1)
    assert (other.sent, other.waited, other.ttft) == (8.0, 0.5, 0.3)
    assert one.tpot == pytest.approx(0.01)
    assert one.ended == pytest.approx(7.14)
    assert (one.prompt_tokens, one.output_tokens) == (600, 5)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"completed": 1, "errors": ["", "Traceback\nOSError: gone"]}, "got 1: OSError: gone"),
        ({"errors": ["", "OSError: gone"]}, "gone"),
        ({"median_ttft_ms": 201.0}, "median ttft is 201 ms, and 200 ms by its own samples"),
        ({"mean_tpot_ms": 19.9}, "mean tpot is 19.9 ms"),
        ({"output_lens": [5, 1]}, "ZeroDivisionError"),
        ({"ttfts": [0.1]}, "no detailed result"),
        ({"queue_times": None}, "no detailed result"),
    ],
)
def test_a_result_that_cannot_be_compared_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(BadResult, match=told):
        read_result(result(**changes), 2)


def test_a_summary_alone_is_no_detailed_result() -> None:
    summary = {name: value for name, value in result().items() if not isinstance(value, list)}
    with pytest.raises(BadResult, match="start_times"):
        read_result(summary, 2)


def test_both_tools_replay_what_the_shape_says(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "trace.jsonl", SHAPE)
    made, rows = recorded(path, "mooncake", 0, 1000)
    assert list(arrivals.recorded(rows)) == [0, 0, 0.25, 0.25, 0.5, 0.5]
    assert {(len(one.prompt), len(one.output)) for one in made.requests} == {(600, 5)}
    told = [json.loads(line) for line in path.read_text().splitlines()]
    ids = [block for row in told for block in row["hash_ids"]]
    assert len(ids) == len({*ids}) == 2 * SHAPE.requests


# --------------------------------------------------------------------------------------- comparing


def sample(sent: float, ttft: float, waited: float = 0.0, tpot: float = 0.01) -> Sample:
    return Sample(sent, waited, ttft, tpot, SHAPE.prompt_tokens, SHAPE.output_tokens)


def rounds(slower: float = 1.0, noise: float = 0.01, waited: float = 0.0) -> list[Round]:
    """Two tools that see the same but for noise; ours `slower` times as long."""
    rng = Random(1)

    def samples(factor: float, begin: float) -> list[Sample]:
        return [
            sample(
                begin + turn,
                factor * 0.1 * rng.lognormvariate(0, noise),
                waited,
                factor * 0.01 * rng.lognormvariate(0, noise),
            )
            for turn in range(40)
        ]

    return [Round(1, samples(1, 0), samples(slower, 0.5), 0.25) for _ in range(3)]


def compared(some: list[Round]) -> dict[str, Compared]:
    return {one.name: compare(one, some) for one in QUANTITIES}


SENT, INTENDED, OWN, TPOT = (one.name for one in QUANTITIES)


@pytest.mark.parametrize(
    ("slower", "noise", "verdict"),
    [
        (1.0, 0.01, "agree"),
        (1.03, 0.01, "agree"),
        (1.1, 0.01, "DISAGREE"),
        (0.9, 0.01, "DISAGREE"),
        (1.05, 0.01, "not decided"),
        (1.0, 0.6, "not decided"),
    ],
)
def test_a_verdict_takes_an_interval_on_one_side(slower: float, noise: float, verdict: str) -> None:
    found = compared(rounds(slower, noise))
    for name in (SENT, INTENDED, TPOT):
        assert found[name].median.verdict == verdict
        assert found[name].median.low <= found[name].median.ratio <= found[name].median.high
        assert len(found[name].rounds) == 3
    if noise < 0.1:
        assert found[SENT].median.ratio == pytest.approx(slower, abs=0.01)
        assert found[SENT].quartile.verdict == verdict


def test_waiting_in_the_client_is_where_the_definitions_part() -> None:
    found = compared(rounds(waited=0.3))
    assert found[SENT].median.verdict == "agree"
    assert found[INTENDED].median.verdict == "agree"
    assert found[OWN].median.verdict == "DISAGREE"
    assert not found[OWN].quantity.same


def test_a_turn_is_the_mean_of_its_requests_and_overlaps_are_counted() -> None:
    theirs = [sample(0, 0.1), sample(0, 0.3), sample(2, 0.1), sample(2, 0.5)]
    ours = [replace(one, sent=one.sent + 1) for one in theirs]
    one = Round(2, theirs, ours)
    assert one.turns(lambda each: each.ttft, theirs) == pytest.approx([0.2, 0.3])
    assert one.overlaps() == 0
    early = [replace(each, sent=each.sent - 0.5) for each in ours]
    assert Round(2, theirs, early).overlaps() == 1


def test_requests_that_the_server_counts_otherwise_are_no_round() -> None:
    good = [sample(at, 0.1) for at in range(SHAPE.requests)]
    assert agreement.checked(SHAPE, good, good).burst == SHAPE.burst
    for other in (replace(good[0], prompt_tokens=599), replace(good[0], output_tokens=4)):
        with pytest.raises(BadResult, match="kvassay: expected"):
            agreement.checked(SHAPE, good, [other, *good[1:]])
        with pytest.raises(BadResult, match="vllm bench serve: expected"):
            agreement.checked(SHAPE, [other, *good[1:]], good)


# ------------------------------------------------------------------------------------- the process


def tool(folder: Path) -> Tool:
    trace = write_trace(folder / "trace.jsonl", SHAPE)
    return Tool("http://127.0.0.1:1", "m", folder, trace, replace(SHAPE, turns=1), 1, {})


def run(one: Tool) -> list[Sample]:
    async def both() -> list[Sample]:
        return await one.finish(await one.start())

    return asyncio.run(both())


def test_the_process_is_waited_for_and_its_result_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = tool(tmp_path)
    code = f"""
print({agreement_vllm.BEGIN!r})
open({str(one.result)!r}, "w").write({json.dumps(result())!r})
"""
    monkeypatch.setattr(agreement_vllm, "CODE", code)
    assert run(one) == read_result(result(), 2)
    limit = one.command().index("--max-concurrency")
    assert one.command()[limit + 1] == "1"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("print('no such model')", "did not begin:\nno such model"),
        (f"print({agreement_vllm.BEGIN!r}); print('then'); raise SystemExit(3)", "with 3:\nthen"),
    ],
)
def test_a_process_that_fails_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, told: str
) -> None:
    monkeypatch.setattr(agreement_vllm, "CODE", code)
    with pytest.raises(BadResult, match=told):
        run(tool(tmp_path))


# ------------------------------------------------------------------------------------- the command


def playing(monkeypatch: pytest.MonkeyPatch, *, interrupted: bool, **made: float) -> None:
    """Instead of a server."""

    def run(bench: agreement.Bench) -> None:
        for scene in agreement.SCENES[: 1 if interrupted else None]:
            bench.rounds[scene] = rounds(**made)
        if interrupted:
            raise KeyboardInterrupt

    monkeypatch.setattr(agreement.Bench, "run", run)
    monkeypatch.setattr(agreement, "NEEDED", ())


def test_it_leaves_a_table_a_page_and_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    playing(monkeypatch, interrupted=False)
    page, folder = tmp_path / "agreement.md", tmp_path / "records"
    assert agreement.main(["--page", str(page), "--record", str(folder)]) == 0
    assert "one at a time" in capsys.readouterr().out
    rows = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + len(agreement.SCENES) * len(QUANTITIES)
    assert "{" not in page.read_text()
    assert str(tmp_path) not in page.read_text()
    found = read_all([folder])
    assert {one.options["scene"] for one in found} == {one.name for one in agreement.SCENES}
    metrics = {metric.name: metric for metric in found[0].metrics}
    assert len(metrics[f"{SENT}: kvassay"].samples) == 3 * 40
    assert metrics[f"{SENT}: ratio of medians"].value == pytest.approx(1, abs=0.01)


def test_a_difference_is_its_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    playing(monkeypatch, interrupted=False, slower=1.1)
    assert agreement.main([]) == 1


def test_an_interrupted_run_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    playing(monkeypatch, interrupted=True)
    page, folder = tmp_path / "agreement.md", tmp_path / "records"
    assert agreement.main(["--page", str(page), "--record", str(folder)]) == 130
    assert "one at a time" in capsys.readouterr().out
    assert not page.exists()
    assert len(read_all([folder])) == 1


def test_without_vllm_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(agreement, "NEEDED", ("no_such_module",))
    assert agreement.main([]) == 2
    assert "pip install vllm" in capsys.readouterr().err


def test_one_token_has_no_time_per_token(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        agreement.main(["--output-tokens", "1"])
    assert "at least 2" in capsys.readouterr().err


def test_the_scripted_server_says_what_kvassay_measures() -> None:
    for model in (PLAIN, EMPTY_FIRST):
        (one,) = asyncio.run(asked(model))
        assert (one.prompt_tokens, one.output_tokens) == (9, 3)
        assert FIRST <= one.ttft < FIRST + 2
        assert one.tpot >= 0


async def asked(model: str) -> list[Sample]:
    load = Load(unrelated(0, prompts=1, prompt_tokens=9, output_tokens=3), block_size=None)
    with scripted() as served:
        async with HTTP(served.url) as transport:
            engine = OpenAIEngine(transport, model)
            return agreement.seen(await measured(engine, load, time.monotonic))


def test_what_differs_on_purpose_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(bench: agreement.Bench) -> None:
        for scene in bench.scenes:
            bench.rounds[scene] = rounds(1.0 if scene.alike else 2.0)

    monkeypatch.setattr(agreement.Bench, "run", run)
    monkeypatch.setattr(agreement, "NEEDED", ())
    page = tmp_path / "page.md"
    arguments = ["--server", "scripted", "--page", str(page)]
    assert agreement.main(arguments) == 0
    last = page.read_text().split("| an empty chunk first | ")[1:]
    assert len(last) == len(QUANTITIES)
    assert all("differ on purpose" in row.splitlines()[0] for row in last)
    monkeypatch.setattr(agreement.Bench, "run", slow)
    assert agreement.main(arguments) == 1


def slow(bench: agreement.Bench) -> None:
    for scene in bench.scenes:
        bench.rounds[scene] = rounds(2.0)


@needs_vllm
@pytest.mark.long
@pytest.mark.filterwarnings("default")
def test_a_short_run_on_a_real_server_compares_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[agreement.Bench] = []
    tell = agreement._tell

    def listen(bench: agreement.Bench, *others: Any, **more: Any) -> None:
        kept.append(bench)
        tell(bench, *others, **more)

    monkeypatch.setattr(agreement, "_tell", listen)
    sized = ["--rounds", "1", "--turns", "6", "--prompt-tokens", "64", "--output-tokens", "8"]
    page = tmp_path / "agreement.md"
    assert agreement.main([*sized, "--page", str(page)]) in (0, 1)
    (bench,) = kept
    assert isinstance(bench.options, argparse.Namespace)
    assert [*bench.rounds] == [*agreement.SCENES]
    for scene, (one,) in bench.rounds.items():
        assert len(one.theirs) == len(one.ours) == 6 * scene.burst
    limited = compared(bench.rounds[agreement.SCENES[2]])
    assert limited[OWN].median.ratio > 1.2, "waits in the client are in kvassay's TTFT alone"
    assert "differ on purpose" in page.read_text()
