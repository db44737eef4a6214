"""``kvassay bench curve`` on a scripted server: its records, its page, and what it survives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvassay.harness.load.session import Load, Report
from kvassay.harness.record import Record, read_all
from kvassay.harness.serving.script import Script, plain
from kvassay.harness.serving.scripted import Answering, Asked
from kvassay.suites.benchmarks import load_curves, load_curves_page

pytest.importorskip("aiohttp", reason="talking to a server needs aiohttp")
Serving = Callable[[Answering], Any]
SERVICE = 0.01
QUICK = ("--workload", "unrelated", "--set", "prompt_tokens=8", "--set", "output_tokens=2")
RATES = ("--rates", "50,1000", "--requests", "40", "--seconds", "0", "--refine", "0")


class OneSlot:
    """A hundred requests per second, one at a time."""

    free = 0.0

    def __call__(self, asked: Asked) -> Script:
        self.free = max(self.free, asked.time) + SERVICE
        return plain(self.free - asked.time, (0.0,), prompt=8, cached=0)


def bench(serving: Serving, folder: Path, *more: str) -> int:
    url = serving(OneSlot()).url
    where = ("--server", f"one={url}", "--model", "scripted", "--record", str(folder))
    patience = ("--patience", "0.3", "--slo", "ttft=0.2")
    return load_curves.main([*where, *QUICK, *RATES, *patience, *more])


def test_points_are_recorded_and_the_page_is_made_of_them(
    serving: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, page = tmp_path / "load_curves", tmp_path / "load_curves.md"
    assert bench(serving, folder, "--page", str(page)) == 0
    assert "one, 1000/s: departures" in " ".join(capsys.readouterr().err.split())
    slow, fast = sorted(read_all([folder]), key=lambda one: int(one.options["row"]))
    assert (slow.options["rate"], fast.options["rate"]) == ("50", "1000")
    assert slow.options["salt"] == fast.options["salt"]
    _require_samples(slow)
    given_up = fast.counters["requests_cancelled"]
    assert given_up > 4
    assert given_up + fast.counters["requests_complete"] == 40
    text = page.read_text(encoding="utf-8")
    (line,) = (one for one in text.splitlines() if one.startswith("| one | 1000 |"))
    cells = dict(zip(load_curves_page.HEADINGS, line[2:-2].split(" | "), strict=True))
    assert cells["given up"] == str(given_up)
    assert cells["ttft p99, ms"] == "never"
    assert cells["saturated"].startswith("departures")
    assert f"- one, 1000 per second: {given_up} x cancelled: not finished after 0.3 s." in text

    here = ["--results", str(tmp_path)]
    assert load_curves_page.main(here) == 0
    assert page.read_text(encoding="utf-8") == text
    assert (tmp_path / "charts" / "load_curves.png").stat().st_size > 10_000
    assert load_curves_page.main([*here, "--check"]) == 0
    page.write_text(text.replace("never", "0.1"))
    assert load_curves_page.main([*here, "--check"]) == 1
    assert "load_curves.md is another" in capsys.readouterr().out


def _require_samples(record: Record) -> None:
    """Of requests every one, of gaps percentiles alone."""
    found = {one.name: one for one in record.metrics}
    assert len(found["ttft"].samples) == record.counters["requests_complete"]
    assert found["itl"].samples == []
    assert found["itl_p99"].value is not None
    assert found["departure_rate"].value == pytest.approx(found["arrival_rate"].value, rel=0.5)


@pytest.mark.parametrize(("gap", "scale"), [(0.0, "linear"), (0.004, "log")])
def test_gaps_of_nothing_have_no_logarithm(gap: float, scale: str) -> None:
    values = {metric.tag: 9.0 for metric in load_curves_page.METRICS}
    values |= {"arrival_rate": 10.0, "departure_rate": 10.0, "goodput": 10.0}
    counts = (2, *(0 for _ in load_curves_page.ENDINGS[1:]))
    samples = {"ttft": (0.1, 0.2), "tpot": (gap, gap)}
    point = load_curves_page.Point("one", 10.0, counts, dict(values), samples, ())
    first, gaps, _ = load_curves_page.chart([point]).axes
    assert (first.get_yscale(), gaps.get_yscale()) == ("log", scale)


def test_ctrl_c_keeps_the_points_that_are_whole(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = load_curves.Bench.ask
    seen: list[str] = []

    def ask(self: load_curves.Bench, name: str, load: Load) -> Report:
        seen.append(name)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return whole(self, name, load)

    monkeypatch.setattr(load_curves.Bench, "ask", ask)
    page = tmp_path / "page.md"
    folder = tmp_path / load_curves_page.RECORDS
    assert bench(serving, folder, "--page", str(page)) == load_curves.INTERRUPTED
    (kept,) = read_all([folder])
    assert (kept.options["rate"], kept.options["complete"]) == ("50", "no")
    assert not page.exists()
    assert load_curves_page.main(["--results", str(tmp_path)]) == load_curves.USAGE_ERROR


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--engine", "radix"), "not enough values to unpack"),
        (("--engine", "nobody"), "no implementation 'nobody'"),
        (("--server", "one"), "expected NAME=URL and --model"),
        (("--server", "one=http://127.0.0.1:1"), "expected NAME=URL and --model"),
        (("--set", "nonsense=1", "--server", "a=b", "--model", "m"), "expected one of questions"),
        (("--slo", "nonsense=1"), "slo: expected one of ttft"),
    ],
)
def test_a_wrong_call_is_said_in_one_line(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load_curves.main([*arguments]) == load_curves.USAGE_ERROR
    assert said in capsys.readouterr().err


def test_nobody_there_is_no_point(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--server", "one=http://127.0.0.1:1", "--model", "scripted")
    assert load_curves.main([*where, *QUICK, "--record", str(tmp_path)]) == load_curves.FAILED
    assert "no server" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
