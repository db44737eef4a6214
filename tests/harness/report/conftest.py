"""Records as suites write them, one with a failure in it."""

from __future__ import annotations

import pytest

from kvassay.harness.environment import capture
from kvassay.harness.record import Direction, Metric, Record, Subject, VerdictEntry
from kvassay.harness.verdict import Status

DRAWN = ["  0  admit r1 [1 2]", "       r1: 3[ 1 2 ]", "  1  release r1   <-- here"]


def record(name: str, suite: str, verdicts: dict[str, Status], **more: object) -> Record:
    subject = Subject(
        name=name, kind="CacheManager", version="1.2", reference=f"./{name}.py", declaration={}
    )
    entries = [
        VerdictEntry(invariant=id, status=status, reason="it broke" * (status is Status.FAIL))
        for id, status in verdicts.items()
    ]
    content = {"suite": suite, "subject": subject, "environment": capture("0"), **more}
    return Record(verdicts=entries, **content)  # type: ignore[arg-type]


@pytest.fixture
def records() -> list[Record]:
    finding = {
        "invariant": "A1",
        "verdict": "A1 <script>alert(1)</script>",
        "operations": 2,
        "how": "shrunk",
        "drawn": DRAWN,
        "replay": "kvassay replay mine-A1.json --impl ./mine.py",
    }
    timed = Metric(
        name="admission <b>",
        unit="s",
        direction=Direction.LOWER,
        value=2e-6,
        samples=[1e-6, 2e-6, 3e-6],
    )
    failing = {"A1": Status.FAIL, "A2": Status.PASS, "P3": Status.NOT_REACHED}
    return [
        record("mine", "allocator", failing, findings=[finding], metrics=[timed]),
        record("mine", "prefix", {"P3": Status.PASS, "P9": Status.DEVIATION}),
        record("other", "allocator", {"A1": Status.PASS, "A2": Status.NOT_CLAIMED}),
    ]
