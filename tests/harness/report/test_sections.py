"""Findings, releases, hit laws and rooflines are told where there is something to tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvassay.harness.record import BadRecord, Direction, Metric, Record, write
from kvassay.harness.report import findings, laws, releases, rooflines
from kvassay.harness.report.building import page
from kvassay.harness.report.command import stored
from kvassay.harness.verdict import Status

FINDING = """# Pages of a <window> are freed twice

- engine: [vLLM](https://example.org/vllm)
- **version**: 0.32.0
- kind: double free

It takes three operations:

    admit r1 [0 1]
"""


def test_nothing_there_is_nothing_told(tmp_path: Path) -> None:
    assert list(findings.section(tmp_path)) == []
    assert list(releases.section(tmp_path)) == []
    assert list(laws.section([])) == list(rooflines.section([])) == []


def test_a_finding_has_its_fields_and_its_text(tmp_path: Path, records: list[Record]) -> None:
    folder = tmp_path / "findings"
    folder.mkdir()
    (folder / "README.md").write_text("# Findings\n")
    (folder / "window.md").write_text(FINDING)
    (folder / "bare.md").write_text("# Bare\n\nNothing else.\n")
    (found,) = findings.section(tmp_path)
    assert found.tables[0].rows == [
        ("Bare", "-", "-", "-", "findings/bare.md"),
        (
            "Pages of a <window> are freed twice",
            "vLLM",
            "0.32.0",
            "double free",
            "findings/window.md",
        ),
    ]
    text = page(records, tmp_path)
    assert "Pages of a &lt;window&gt; are freed twice" in text
    assert "admit r1 [0 1]" in text
    assert text.index('id="verdicts"') < text.index('id="findings"') < text.index('id="numbers"')


def of_version(record: Record, version: str) -> Record:
    subject = record.subject.model_copy(update={"version": version})
    return record.model_copy(update={"subject": subject, "id": f"{version}-{record.id}"})


def test_releases_stand_side_by_side(tmp_path: Path, records: list[Record]) -> None:
    for version in ("0.10", "0.9"):
        write(of_version(records[0], version), tmp_path / "releases")
    repaired = records[0].model_copy(update={"verdicts": records[0].verdicts[1:]})
    write(of_version(repaired, "1.0"), tmp_path / "releases")
    (found,) = releases.section(tmp_path)
    assert [(row[2], row[3], row[4]) for row in found.tables[0].rows] == [
        ("0.9", "1 fail, 1 not reached, 1 pass", "A1"),
        ("0.10", "1 fail, 1 not reached, 1 pass", "A1"),
        ("1.0", "1 not reached, 1 pass", "nothing"),
    ]
    # Other versions do not stand in for the present one.
    write(records[0], tmp_path / "verdicts")
    assert stored(tmp_path) == [tmp_path / "verdicts"]
    (tmp_path / "releases" / "x.json").write_text("{}")
    with pytest.raises(BadRecord, match=r"x\.json"):
        list(releases.section(tmp_path))


def test_a_hit_law_is_what_is_declared_and_kept(records: list[Record]) -> None:
    declared = {"capabilities": "peek,prefix_cache", "unit": "1", "order": "lru"}
    subject = records[1].subject.model_copy(update={"declaration": declared})
    caching = records[1].model_copy(update={"subject": subject})
    (found,) = laws.section([caching, records[2]])
    ((name, _, unit, reserve, _, publish, order, *_), *others) = found.tables[0].rows
    assert (name, unit, reserve, publish, order) == ("mine 1.2", "1", "1", "commit", "lru")
    assert not others  # who claims no prefix cache has no law
    assert found.tables[0].rows[0][-4:] == (
        str(Status.PASS),
        "not judged",
        "not judged",
        "not judged",
    )


def test_kernels_stand_beside_the_roofline(records: list[Record]) -> None:
    metrics = [
        Metric(name=name, unit=unit, direction=Direction.LOWER, value=value)
        for name, unit, value in (
            ("latency, long", "s", 2e-4),
            ("latency / floor, long", "1", 1.25),
            ("latency, short", "s", None),
        )
    ]
    more = {"suite": "kernels", "metrics": metrics, "options": {"device": "a GPU"}}
    (found,) = rooflines.section([records[0], records[1].model_copy(update=more)])
    (table,) = found.tables
    assert (table.caption, table.headings) == ("a GPU", ["shape", "mine", "mine, of floor"])
    assert table.rows == [("long", "200 µs", "1.25"), ("short", "-", "-")]
