"""The verdict table and the state of the runs, at the end of the terminal output."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from kvassay.harness.record import write
from kvassay.harness.recording import record_of
from kvassay.harness.verdict import Status
from kvassay.harness.verdict_table import as_text

PROPERTY = "kvassay"


class Summary:
    """Collects what the tests reported, in whichever process they ran."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.verdicts: dict[str, dict[str, list[Status]]] = defaultdict(lambda: defaultdict(list))
        self.runs: list[dict[str, Any]] = []
        self.entries: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        """Verdicts by implementation and suite, for the records."""
        self.misuse: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call":
            return
        for name, payload in report.user_properties:
            if name == PROPERTY and isinstance(payload, dict):
                self._take(payload)

    def _take(self, payload: dict[str, Any]) -> None:
        if "verdict" in payload:
            verdict = payload["verdict"]
            statuses = self.verdicts[verdict["implementation"]][verdict["invariant"]]
            statuses.append(Status(verdict["status"]))
            self.entries[verdict["implementation"], payload["suite"]].append(verdict)
        if "run" in payload:
            self.runs.append(payload["run"])
        if "misuse" in payload:
            self.misuse[payload["misuse"]["implementation"]] = payload["misuse"]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.verdicts:
            return
        terminalreporter.section("kvassay verdicts")
        terminalreporter.write_line(as_text(self.verdicts, terminalreporter.hasmarkup))
        for line in self.lines():
            terminalreporter.write_line(line)

    def pytest_sessionfinish(self) -> None:
        """Write the records that ``--record`` asks for, in the process that sees all reports."""
        folder = self.config.getoption("record")
        if folder and not hasattr(self.config, "workerinput"):
            for run in self.runs:
                entries = self.entries[run["implementation"], run["suite"]]
                write(record_of(run, entries), Path(folder))

    # ---------------------------------------------------------------------------------- below it

    def lines(self) -> list[str]:
        """Declarations, health of the runs, what was never met, and the findings."""
        out = []
        for name in sorted({run["implementation"] for run in self.runs}):
            runs = [run for run in self.runs if run["implementation"] == name]
            out += ["", *_about(name, runs), *_misused(self.misuse.get(name))]
        return out


def _about(name: str, runs: list[dict[str, Any]]) -> list[str]:
    operations = sum(run["operations"] for run in runs)
    seconds = sum(run["seconds"] for run in runs)
    examples = sum(run["examples"] for run in runs)
    declared = "; ".join(f"{key}={value}" for key, value in runs[0]["declared"].items())
    lines = [
        f"{name}: {examples} examples, {operations} operations in {seconds:.1f} s",
        f"  declares {declared or 'nothing beyond the defaults'}",
        f"  {_health(runs, operations)}",
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
