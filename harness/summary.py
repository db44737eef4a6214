"""The verdict table and the state of the runs, at the end of the terminal output."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from kvassay.harness import job_summary
from kvassay.harness.record import write
from kvassay.harness.recording import record_of
from kvassay.harness.verdict import Status
from kvassay.harness.verdict_table import Judged, as_text, by_column

PROPERTY = "kvassay"


class Summary:
    """Collects what the tests reported, in whichever process they ran."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.judged: list[Judged] = []
        self.runs: list[dict[str, Any]] = []
        self.entries: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        """Verdicts by implementation and suite, for the records."""
        self.misuse: dict[tuple[str, str], dict[str, Any]] = {}
        """By implementation and kind."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call":
            return
        for name, payload in report.user_properties:
            if name == PROPERTY and isinstance(payload, dict):
                self._take(payload)

    def _take(self, payload: dict[str, Any]) -> None:
        if "verdict" in payload:
            verdict = payload["verdict"]
            told = verdict["implementation"], payload["kind"], verdict["invariant"]
            self.judged.append((*told, Status(verdict["status"])))
            self.entries[verdict["implementation"], payload["suite"]].append(verdict)
        if "run" in payload:
            self._take_run(payload["run"])
        if "misuse" in payload:
            told = payload["misuse"]
            self.misuse[told["implementation"], payload["kind"]] = told

    def _take_run(self, run: dict[str, Any]) -> None:
        """A kernel's run grows with every check: the newest account is the whole one."""
        same = (run["suite"], *_subject(run))
        self.runs = [known for known in self.runs if (known["suite"], *_subject(known)) != same]
        self.runs.append(run)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.judged:
            return
        terminalreporter.section("kvassay verdicts")
        terminalreporter.write_line(as_text(by_column(self.judged), terminalreporter.hasmarkup))
        for line in self.lines():
            terminalreporter.write_line(line)

    def pytest_sessionfinish(self) -> None:
        """Records and a job's summary, where asked for, in the process that sees all reports."""
        folders = self.config.getoption("record") or []
        asked = folders or os.environ.get(job_summary.VARIABLE)
        if not asked or hasattr(self.config, "workerinput"):
            return
        records = [
            record_of(run, self.entries[run["implementation"], run["suite"]]) for run in self.runs
        ]
        for folder in folders:
            for record in records:
                write(record, Path(folder))
        job_summary.append(records)

    # ---------------------------------------------------------------------------------- below it

    def lines(self) -> list[str]:
        """Declarations, health of the runs, what was never met, and the findings."""
        out = []
        for name, kind in sorted({_subject(run) for run in self.runs}):
            runs = [run for run in self.runs if _subject(run) == (name, kind)]
            told = self.misuse.get((name, kind))
            out += ["", *_about(f"{name} ({kind})", runs), *_misused(told)]
        return out


def _subject(run: dict[str, Any]) -> tuple[str, str]:
    return run["implementation"], run["kind"]


def _about(name: str, runs: list[dict[str, Any]]) -> list[str]:
    operations = sum(run["operations"] for run in runs)
    seconds = sum(run["seconds"] for run in runs)
    examples = sum(run["examples"] for run in runs)
    declared = "; ".join(f"{key}={value}" for key, value in runs[0]["declared"].items())
    lines = [
        f"{name}: {examples} examples, {operations} operations in {seconds:.1f} s",
        f"  declares {declared or 'nothing beyond the defaults'}",
        f"  {runs[0].get('health') or _health(runs, operations)}",
    ]
    stale = _everywhere([run["stale_declarations"] for run in runs])
    lines += [f"  stale declaration: {text}" for text in stale]
    for run in runs:
        lines += [f"  stale deviation: {text}" for text in run["stale_deviations"]]
        for finding in run["findings"]:
            lines.append(
                f"  {finding['invariant']} in suite {run['suite']}: {finding['operations']} "
                f"operations, {finding['how']}: {finding['replay']}"
            )
    return lines


def _misused(told: dict[str, Any] | None) -> list[str]:
    """Misuse, where input validation is not claimed; no part of the verdict."""
    if told is None:
        return []
    wrong = told["wrong"]
    lines = [f"  misuse (not judged): {len(wrong)} of {told['tried']} not refused cleanly"]
    return lines + [f"    {' '.join(entry.split())[:110]}" for entry in wrong]


def _health(runs: list[dict[str, Any]], operations: int) -> str:
    def total(kind: str, what: str) -> int:
        return sum(int(run[kind].get(what, 0)) for run in runs)

    skipped = total("effects", "skipped")
    parts = [f"{1 - skipped / max(1, operations):.1%} took effect"]
    for what, label in (
        ("pool full: refusal", "refused"),
        ("hit", "hits"),
        ("split: key left an earlier one", "diverged"),
        ("eviction", "evictions"),
        ("fork, then write", "fork-then-write"),
    ):
        parts.append(f"{label} {total('met', what) / max(1, operations):.1%}")
    return "health: " + ", ".join(parts)


def _everywhere(lists: list[list[str]]) -> list[str]:
    """Texts that stand in every list."""
    return [text for text in lists[0] if all(text in other for other in lists)]
