"""``kvassay bench serve`` against a scripted server: what it prints, keeps and survives."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvassay.harness import record
from kvassay.harness.cli import app
from kvassay.harness.load.known.cached import Remembering
from kvassay.harness.serving.script import Cut, Error, Script, Silence, Tokens, plain
from kvassay.harness.serving.scripted import Answering, Asked

pytest.importorskip("aiohttp", reason="talking to a server needs aiohttp")
Serving = Callable[[Answering], Any]
QUICK = ("--rate", "200", "--warm-up", "0", "--requests", "8")
SMALL = ("--set", "example_tokens=40", "--set", "question_tokens=8", "--set", "output_tokens=3")


def bench(url: str, *options: object, model: str = "scripted") -> Any:
    arguments = ["bench", "serve", "--url", url, "--model", model, *SMALL, *map(str, options)]
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})


def flat(text: str) -> str:
    return " ".join(text.split())


class Quick(Remembering):
    """Answers sooner."""

    def __call__(self, asked: Asked) -> Script:
        super().__call__(asked)
        return plain(0.01, (0.01,), prompt=len(asked.body["prompt"]), cached=self.found[-1])


def answering(asked: Asked) -> Script:
    return plain(0.01, (0.01, 0.01), prompt=48, cached=32)


def test_a_server_is_measured_and_recorded(serving: Serving, tmp_path: Path) -> None:
    lines = tmp_path / "timelines.jsonl"
    kept = ("--record", tmp_path / "records", "--timelines", lines)
    url = serving(answering).url.replace("//", "//user:secret@")
    result = bench(url, *QUICK, "--slo", "ttft=5", *kept)
    assert result.exit_code == 0, result.output
    assert re.search(r"^ttft +│ s +│ +│ +[\d.]+ │", result.output, re.MULTILINE)
    (read,) = record.read_all([tmp_path / "records"])
    assert "secret" not in read.model_dump_json()
    found = {metric.name: metric for metric in read.metrics}
    assert read.counters["requests_complete"] == 8
    assert len(found["ttft"].samples) == 8
    assert all(0.01 <= sample < 5 for sample in found["ttft"].samples)
    assert len(found["itl"].samples) == 16
    assert found["ttft_p99"].value is not None
    assert found["preemptions"].value is None
    assert found["goodput"].value == found["request_throughput"].value
    assert found["cached_tokens"].samples == [32.0] * 8
    assert len(found["intended"].samples) == len(found["sent"].samples) == 8
    assert read.options["salt"].isdigit()
    stamps = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [len(one["events"]) for one in stamps] == [5] * 8


def test_a_warm_server_is_no_help_to_the_next_run(serving: Serving, tmp_path: Path) -> None:
    server = serving(Quick())
    one_by_one = ("--clients", 1, "--requests", 6, "--record", tmp_path, "--seed", 3)
    for _ in range(2):
        result = bench(server.url, *one_by_one)
        assert result.exit_code == 0, result.output
        assert "realised" not in result.output  # as intended
    first, second = record.read_all([tmp_path])
    rates = {
        m.name: m.value for r in (first, second) for m in r.metrics if m.name.startswith("hit")
    }
    assert rates["hit_rate"] == rates["hit_rate_declared"] == 5 * 32 / (6 * 48)
    same = ("--salt", 5, *one_by_one)
    assert "realised" not in bench(server.url, *same).output
    warm = bench(server.url, *same)
    assert "note: hit rate: 100" not in warm.output
    assert re.search(r"hit rate: [\d.]+% realised, 55.6% intended", flat(warm.output))


def test_every_way_to_fail_is_told_and_nothing_is_lost(serving: Serving, tmp_path: Path) -> None:
    ways = (
        plain(0.01, (0.01, 0.01), cached=0),
        Script((Tokens(0.01, (1,)), Error(0.02, "worker died"))),
        Script((Tokens(0.01, (1,)), Cut(0.02))),
        Script((Tokens(0.01, (1,)),)),
        Script(status=503, problem="overloaded"),
        Script((Tokens(0.01, (1,)), Silence(60.0))),
    )
    server = serving(lambda asked: ways[asked.number % len(ways)])
    limits = ("--requests", 12, "--stall-limit", 1.5, "--record", tmp_path)
    result = bench(server.url, *QUICK, *limits)
    assert result.exit_code == 1, result.output
    told = flat(result.output)
    for error in (
        "failed: worker died",
        "truncated: the stream ended without a finish_reason",
        "failed: HTTP 503: overloaded",
        "cancelled: stalled: no chunk for 1.5 s",
    ):
        assert f"2 x {error}" in told
    assert "10 requests are not complete, and latencies are of the others" in told
    assert "ttft p99 of all never" in told
    (read,) = record.read_all([tmp_path])
    assert sum(read.counters.values()) == 12
    assert sum(finding.get("requests", 0) for finding in read.findings) == 10


def test_a_server_that_dies_leaves_what_it_answered(serving: Serving) -> None:
    def then_dies(asked: Asked) -> Script:
        if asked.number == 6:
            server.kill()
        return plain(0.01, (0.01, 0.01)) if asked.number < 4 else plain(30.0)

    server = serving(then_dies)
    result = bench(server.url, *QUICK, "--rate", 8, "--requests", 12)
    assert result.exit_code == 1, result.output
    assert "4 " in re.search(r"requests_complete.*", result.output).group()  # type: ignore[union-attr]
    assert "8 requests are not complete" in result.output


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--model", "other"), "model: expected one of scripted, got 'other'"),
        (("--url", "http://127.0.0.1:9"), "no server: http://127.0.0.1:9: "),
        (("--url", "localhost:8000"), "url: expected http://"),
        (("--workload", "none"), "workload: expected one of few-shot"),
        (("--set", "shots=1"), "few-shot: expected one of questions"),
        (("--set", "questions=many"), "expected parameter=number"),
        (("--clients", "2"), "expected --rate (open loop) or --clients (closed loop), got both"),
        (("--slo", "speed=1"), "slo: expected one of ttft, tpot, e2e"),
        (("--rate", "0"), "rate: expected a number above 0"),
    ],
)
def test_what_cannot_be_done_is_said_at_once(
    serving: Serving, options: tuple[str, ...], told: str
) -> None:
    result = bench(serving(answering).url, *QUICK, *options)
    assert result.exit_code == 2
    assert told in flat(result.stderr)


def test_without_a_load_there_is_nothing_to_do() -> None:
    result = bench("http://127.0.0.1:9")
    assert result.exit_code == 2
    assert "got neither" in result.stderr


def test_a_missing_aiohttp_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    result = bench("http://127.0.0.1:9", *QUICK)
    assert result.exit_code == 2
    assert "pip install aiohttp" in result.stderr


def test_a_recorded_trace_comes_as_it_was_recorded(serving: Serving, tmp_path: Path) -> None:
    rows = [
        {"timestamp": 1000 * n, "input_length": 600, "output_length": 3, "hash_ids": [1, n + 2]}
        for n in range(4)
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    server = serving(Quick())
    options = ("--trace", trace, "--speed", 10, "--record", tmp_path / "records", "--warm-up", 0)
    result = bench(server.url, *options)
    assert result.exit_code == 0, result.output
    (read,) = record.read_all([tmp_path / "records"])
    found = {metric.name: metric for metric in read.metrics}
    assert found["intended"].samples == pytest.approx([0, 0.1, 0.2, 0.3])
    assert found["cached_tokens"].samples == [0.0, 512.0, 512.0, 512.0]


def test_ctrl_c_keeps_what_there_is(serving: Serving, tmp_path: Path) -> None:
    heard: list[Asked] = []

    def slowly(asked: Asked) -> Script:
        heard.append(asked)
        return plain(0.01, (0.01, 0.01)) if asked.number < 2 else plain(60.0)

    server = serving(slowly)
    command = [sys.executable, "-c", "from kvassay.harness.cli import main; main()"]
    command += ["bench", "serve", "--url", server.url, "--model", "scripted", *SMALL]
    command += ["--rate", "50", "--requests", "20", "--warm-up", "0", "--record", str(tmp_path)]
    # Who runs this in the background may have it ignored, and children inherit that.
    heeds = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ}, preexec_fn=heeds
    ) as run:
        while len(heard) < 6:
            assert run.poll() is None
            time.sleep(0.01)
        time.sleep(0.5)  # the first two have long been answered
        run.send_signal(signal.SIGINT)
        output, _ = run.communicate(timeout=30)
    assert run.returncode == 130, output
    assert "interrupted: these are the results until then" in output
    (read,) = record.read_all([tmp_path])
    assert read.counters["requests_complete"] == 2
    assert sum(read.counters.values()) == 20
