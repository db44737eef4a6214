"""`kvassay bench control` and its page: what is shown is what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvassay.harness.bench import BENCHMARKS
from kvassay.harness.cli import app
from kvassay.harness.record import read_all
from kvassay.suites.benchmarks import control, control_page

QUICK = ["--rounds", "2", "--only", "share", "--only", "depth"]


def test_a_record_has_every_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert control.main([*QUICK, "--impl", "radix", "--record", str(tmp_path)]) == 0
    (record,) = read_all([tmp_path])
    assert record.options["beside"] == "radix"
    samples = {metric.name: metric.samples for metric in record.metrics}
    assert len(samples["share, 50 %: look_up"]) == len(samples["depth, 8 nodes: life"]) == 2
    shown = capsys.readouterr().out
    assert "share: us, median" in shown
    assert "64 nodes" in shown


def test_an_interruption_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(run: control.Run) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(control.Run, "share", interrupt)
    assert control.main([*QUICK, "--record", str(tmp_path)]) == control.INTERRUPTED
    (record,) = (each for each in read_all([tmp_path]) if each.subject.name == "radix")
    assert record.options["complete"] == "no"
    assert {metric.name.split(",")[0] for metric in record.metrics} == {"depth"}


@pytest.mark.parametrize("name", ["nobody", "torch"])
def test_who_cannot_be_timed_is_said(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert control.main(["--impl", name]) == control.USAGE_ERROR
    assert name in capsys.readouterr().err


def test_trees_are_looked_up_by_themselves(tmp_path: Path) -> None:
    arguments = ["--rounds", "2", "--only", "match", "--record", str(tmp_path)]
    assert control.main([*arguments, "--impl", "radix", "--impl", "radix-index"]) == 0
    records = {record.subject.name: record for record in read_all([tmp_path])}
    assert records["radix-index"].options["beside"] == "radix-index"
    assert records["radix-index"].metrics[0].name == "match, 100 tokens: match"
    assert records["radix"].metrics == []


def test_the_page_is_made_of_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "REQUESTS", (1, 64))
    record = ["--record", str(tmp_path / control_page.RECORDS)]
    arguments = ["--rounds", "2", "--only", "steps", *record]
    assert control.main([*arguments, "--impl", "radix", "--impl", "kvassay.impls.radix"]) == 0
    stored = tmp_path / control_page.RECORDS
    (run,) = control_page.together(read_all([stored]))
    text = control_page.page([run])
    assert "| 64 requests, pool full: append |" in text
    assert "## radix, block size 16" in text
    slower = run.seconds("radix", "steps, 64 requests: life")
    assert len(slower) == 2
    assert run.seconds("radix", "steps, 3 requests: life") == []


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmarks_are_found_by_name(name: str) -> None:
    result = CliRunner().invoke(app, ["bench", name, "--help"])
    assert result.exit_code == 0, result.output
    assert CliRunner().invoke(app, ["bench", name, "--nonsense"]).exit_code == 2
