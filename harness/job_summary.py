"""What a run says in the summary of a CI job: its verdicts, and each failure with its scenario.

GitHub Actions names a file in `GITHUB_STEP_SUMMARY`; what is appended to it is shown on the job's
page as Markdown. A summary takes at most a mebibyte, so long scenarios are cut, and say so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kvassay.harness.record import Record
from kvassay.harness.verdict import Status
from kvassay.harness.verdict_table import as_markdown, merged

VARIABLE = "GITHUB_STEP_SUMMARY"
MOST_FINDINGS = 20
LONGEST = 12_000
"""Characters of one scenario."""


def append(records: Sequence[Record]) -> None:
    """To the file that the environment names; nothing without one, or without verdicts."""
    path = os.environ.get(VARIABLE)
    if path and any(record.verdicts for record in records):
        with Path(path).open("a", encoding="utf-8") as out:
            out.write(markdown(records))


def markdown(records: Sequence[Record]) -> str:
    """Verdicts, then failures."""
    verdicts = merged(records)
    broken = sum(
        status in (Status.FAIL, Status.ERROR)
        for record in records
        for status in (entry.status for entry in record.verdicts)
    )
    head = (
        f"## kvassay: {f'{broken} verdicts are fail or error' if broken else 'nothing is broken'}"
    )
    return "\n".join([head, "", as_markdown(verdicts, records), *_findings(records), ""])


def _findings(records: Sequence[Record]) -> Iterator[str]:
    found = [(record, finding) for record in records for finding in record.findings]
    for record, finding in found[:MOST_FINDINGS]:
        yield from _told(record, finding)
    if len(found) > MOST_FINDINGS:
        yield f"{len(found) - MOST_FINDINGS} further findings are in the records and in the log."


def _told(record: Record, finding: dict[str, Any]) -> Iterator[str]:
    story = "\n".join(finding.get("drawn") or finding.get("scenario") or ())
    if len(story) > LONGEST:
        story = f"{story[:LONGEST]}\n... ({len(story) - LONGEST} characters more)"
    yield f"### {record.subject.name}, suite {record.suite}: {finding.get('invariant', '')}"
    yield f"\n{finding.get('verdict', '')}\n\n```text\n{story}\n```\n"
    path = Path(str(finding.get("file", "")))
    if path.is_file() and path.stat().st_size <= LONGEST:
        text = path.read_text("utf-8").strip()
        yield f"Scenario `{path.name}`:\n\n```json\n{text}\n```\n"
    yield f"Replay: `{finding.get('replay', '')}`\n"
