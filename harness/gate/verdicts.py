"""Conformance of both sides, by the suites themselves: what base kept, head must keep.

A verdict that is worse is a regression, whatever it costs or saves. Head may break what base broke
before: that is said, and is not this change's doing. What head did not meet is not known.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from kvassay.harness.gate.deciding import Decision
from kvassay.harness.gate.sides import Side, SideFailed
from kvassay.harness.record import Record, read_all
from kvassay.harness.verdict import Status, worst
from kvassay.harness.verdict_table import merged

BROKEN = (Status.FAIL, Status.ERROR)
PATIENCE = 1800.0
"""Seconds for all suites of one side."""
FINISHED = (0, 1)
"""Exit statuses of pytest after which records are complete."""


@dataclass(frozen=True)
class Changed:
    """One verdict that differs, or that is broken on both sides."""

    invariant: str
    base: Status | None
    """None: not judged."""
    head: Status | None
    decision: Decision
    why: str


def assayed(side: Side, options: Iterable[str] = ()) -> list[Record]:
    """The records of the suites on one side; `SideFailed` if they did not run to their end."""
    with TemporaryDirectory() as folder:
        command = [
            *(side.python, "-P", "-m", "pytest", "--pyargs", "kvassay.suites", "-q"),
            *("-p", "kvassay.harness.plugin", "-p", "no:cacheprovider"),
            *("--impl", side.absolute(), "--record", str(Path(folder) / "records")),
            *("--counterexamples", str(Path(folder) / "counterexamples"), *options),
        ]
        environment = {**side.environment(), "PYTEST_ADDOPTS": ""}
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        records = Path(folder) / "records"
        if done.returncode not in FINISHED or not records.exists():
            said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])
            raise SideFailed(f"{side.label} ({side.reference}): the suites did not run:\n{said}")
        found = read_all([records])
    return [record for record in found if side.name in ("", record.subject.name)]


def statuses(records: Iterable[Record]) -> dict[str, Status]:
    """The verdict on each invariant, of records of one implementation."""
    columns = merged(records)
    if len(columns) != 1:
        raise SideFailed(
            f"expected verdicts on one implementation, got {sorted(columns) or 'none'}"
        )
    (column,) = columns.values()
    return {invariant: worst(list(found)) for invariant, found in column.items()}


def changes(base: Mapping[str, Status], head: Mapping[str, Status]) -> Iterator[Changed]:
    """Verdicts that differ, and those that are broken on both sides."""
    for invariant in dict.fromkeys([*base, *head]):
        before, after = base.get(invariant), head.get(invariant)
        if before != after or after in BROKEN:
            yield Changed(invariant, before, after, *_judged(before, after))


def _judged(before: Status | None, after: Status | None) -> tuple[Decision, str]:
    if after in BROKEN:
        if before in BROKEN:
            return Decision.PASS, "base breaks it, too"
        return Decision.FAIL, "head breaks it, and base does not"
    if after is Status.DEVIATION and before is not Status.DEVIATION and before not in BROKEN:
        return Decision.FAIL, "head deviates, and base does not"
    if after is Status.PASS:
        return Decision.PASS, "head keeps it"
    if before is Status.PASS:
        if after is Status.NOT_CLAIMED:
            return Decision.FAIL, "head no longer claims what base kept"
        return Decision.INCONCLUSIVE, "base keeps it, and head was not seen to"
    return Decision.PASS, "neither was seen to keep it"
