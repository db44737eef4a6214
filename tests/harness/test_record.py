"""Records: whole or not at all, never changed, validated, and one call from a frame."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvassay.harness.cli import app
from kvassay.harness.environment import capture
from kvassay.harness.record import (
    BadRecord,
    Direction,
    Metric,
    Record,
    Subject,
    VerdictEntry,
    frame,
    json_schema,
    read,
    read_all,
    write,
)
from kvassay.harness.verdict import Status
from kvassay.harness.verdict_table import as_markdown, as_text, by_column, merged

HOUSE = Path(__file__).parents[2]


def record(name: str = "mine", status: Status = Status.PASS, time: str = "") -> Record:
    environment = capture("derandomized")
    if time:
        environment = environment.model_copy(update={"time": time})
    return Record(
        suite="allocator",
        subject=Subject(
            name=name, kind="CacheManager", version="1", reference=name, declaration={"unit": "1"}
        ),
        environment=environment,
        verdicts=[VerdictEntry(invariant="A1", status=status, met={"pool full": 3})],
        metrics=[
            Metric(
                name="speed", unit="1/s", direction=Direction.HIGHER, value=None, samples=[1.0, 2.0]
            )
        ],
    )


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    written = record()
    path = write(written, tmp_path)
    assert read(path) == written
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name], "no draft is left behind"


def test_a_record_is_never_overwritten(tmp_path: Path) -> None:
    written = record()
    path = write(written, tmp_path)
    before = path.read_text()
    changed = written.model_copy(update={"counters": {"n": 1}})
    with pytest.raises(FileExistsError):
        write(changed, tmp_path)
    assert path.read_text() == before
    assert write(record(), tmp_path) != path


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"schema_version": 2}, "schema_version"),
        ({"verdicts": [{"invariant": "A1", "status": "fine"}]}, "verdicts.0.status"),
        ({"colour": "red"}, "colour"),
        ({"subject": None}, "subject"),
    ],
)
def test_a_bad_record_says_what_is_wrong(
    tmp_path: Path, change: dict[str, object], complaint: str
) -> None:
    path = write(record(), tmp_path)
    raw = json.loads(path.read_text())
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(raw))
    assert read(bad) == read(path)
    bad.write_text(json.dumps({**raw, **change}))
    with pytest.raises(BadRecord, match=f"bad.json: {complaint}"):
        read(bad)


def test_a_record_in_another_encoding_is_a_bad_one(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes('{"suite": "\u00e9"}'.encode("latin-1"))
    with pytest.raises(BadRecord, match=r"bad.json: as a whole: Invalid JSON"):
        read(path)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadRecord, match="nowhere: no such file or folder"):
        read_all([tmp_path / "nowhere"])


def test_the_shipped_schema_is_the_present_one() -> None:
    assert (HOUSE / "results/schema/record.schema.json").read_text() == json_schema()


def test_what_was_not_measured_is_none_in_the_frame(tmp_path: Path) -> None:
    write(record(), tmp_path)
    table = frame([tmp_path])
    assert list(table["what"]) == ["verdict", "metric"]
    assert list(table["kind"]) == [record().subject.kind] * 2
    metric = table[table["what"] == "metric"].iloc[0]
    assert metric["value"] is None or metric["value"] != metric["value"]
    assert metric["samples"] == [1.0, 2.0]
    assert table[table["what"] == "verdict"].iloc[0]["status"] == "pass"


def test_the_newest_record_of_a_suite_counts(tmp_path: Path) -> None:
    write(record(status=Status.PASS, time="2030-01-02T00:00:00+00:00"), tmp_path)
    write(record(status=Status.FAIL, time="2030-01-01T00:00:00+00:00"), tmp_path)
    write(record("other", Status.NOT_CLAIMED), tmp_path)
    records = read_all([tmp_path])
    verdicts = merged(records)
    assert verdicts["mine"]["A1"] == [Status.PASS]
    assert "not claimed" in as_text(verdicts)
    markdown = as_markdown(verdicts, records)
    assert "| A1 conservation | pass | - |" in markdown
    assert "- **mine** 1: declares unit=1" in markdown


def test_kinds_that_share_a_name_share_a_column_unless_both_were_judged_by_one_invariant() -> None:
    manager, kernel, index = (
        ("mine", kind) for kind in ("CacheManager", "PagedAttention", "Index")
    )
    judged = [(*manager, "A1", Status.PASS), (*kernel, "K1", Status.FAIL)]
    assert by_column(judged) == {"mine": {"A1": [Status.PASS], "K1": [Status.FAIL]}}
    judged += [(*manager, "P1", Status.PASS), (*index, "P1", Status.FAIL)]
    assert by_column(judged)["mine (CacheManager)"] == {"A1": [Status.PASS], "P1": [Status.PASS]}
    assert by_column(judged)["mine (Index)"] == {"P1": [Status.FAIL]}
    assert set(by_column(judged)) == {f"mine ({kind})" for _, kind in (manager, kernel, index)}


def test_a_record_of_another_kind_is_not_a_newer_one(tmp_path: Path) -> None:
    write(record(status=Status.FAIL), tmp_path)
    newer = record(time="2031-01-01T00:00:00+00:00")
    subject = newer.subject.model_copy(update={"kind": "PrefixIndex", "version": "2"})
    write(newer.model_copy(update={"subject": subject}), tmp_path)
    records = read_all([tmp_path])
    verdicts = merged(records)
    assert verdicts["mine (CacheManager)"]["A1"] == [Status.FAIL]
    assert verdicts["mine (PrefixIndex)"]["A1"] == [Status.PASS]
    markdown = as_markdown(verdicts, records)
    assert "- **mine** (CacheManager) 1: declares unit=1" in markdown
    assert "- **mine** (PrefixIndex) 2: declares unit=1" in markdown


def test_each_shape_counts_and_what_one_of_them_reached_is_reached() -> None:
    def at(size: str, status: Status, time: str) -> Record:
        return record("mine", status, time).model_copy(update={"options": {"block_size": size}})

    ones = [at("1", Status.FAIL, "2030"), at("1", Status.NOT_REACHED, "2031")]
    passed, failed = at("16", Status.PASS, "2032"), at("16", Status.FAIL, "2032")
    assert merged(ones)["mine"]["A1"] == [Status.NOT_REACHED]
    assert merged([*ones, passed])["mine"]["A1"] == [Status.PASS]
    assert merged([*ones, failed])["mine"]["A1"] == [Status.FAIL]
    assert merged([at("1", Status.FAIL, "2030"), passed])["mine"]["A1"] == [
        Status.FAIL,
        Status.PASS,
    ]


def test_what_one_record_says_of_an_invariant_is_its_worst_entry() -> None:
    """Several checks vouch for one invariant; the last word may be that a state was not met."""
    looked = record("mine", Status.PASS)
    (entry,) = looked.verdicts
    unmet = entry.model_copy(update={"status": Status.NOT_REACHED})
    told = looked.model_copy(update={"verdicts": [entry, unmet]})
    assert merged([looked])["mine"]["A1"] == [Status.PASS]
    assert merged([told])["mine"]["A1"] == [Status.NOT_REACHED]


def test_totals_add_up_all_records_by_mode_and_block_size(tmp_path: Path) -> None:
    def ran(operations: int, **options: str) -> Record:
        counters = {"examples": 10, "operations": operations}
        findings = [{"invariant": "A1"}] * (operations == 5)
        environment = capture("random").model_copy(
            update={"time": "2030-01-02T03:04:05", "commit": "0123456789", "dirty": True}
        )
        changes = {"counters": counters, "options": options, "findings": findings}
        return record().model_copy(update={**changes, "environment": environment})

    search = {"assay": "search"}
    for each in (
        ran(2_000, **search, block_size="16"),
        ran(30_000, **search, block_size="16"),
        ran(5, **search, block_size="1"),
        ran(7),
    ):
        write(each, tmp_path / "records")
    output = tmp_path / "totals.md"
    arguments = ["merge", str(tmp_path / "records"), "--totals", str(output)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    headings, _, *rows = output.read_text().splitlines()
    assert headings.startswith("| implementation | version | assay | block size | suites |")
    end = "| 0123456 with changes | 2030-01-02 |"
    assert rows == [
        f"| mine | 1 | ? | mixed | allocator | 10 | 7 | 0 {end}",
        f"| mine | 1 | search | 1 | allocator | 10 | 5 | 1 {end}",
        f"| mine | 1 | search | 16 | allocator | 20 | 32,000 | 0 {end}",
    ]


def test_merge_joins_folders_and_writes_markdown(tmp_path: Path) -> None:
    write(record(), tmp_path / "one")
    write(record("other", Status.FAIL), tmp_path / "two")
    output = tmp_path / "table.md"
    arguments = ["merge", str(tmp_path / "one"), str(tmp_path / "two"), "--output", str(output)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "| A1 conservation | pass | **fail** |" in output.read_text()
    broken = CliRunner().invoke(app, ["merge", str(tmp_path / "three")])
    assert broken.exit_code == 2
    assert "no such file or folder" in broken.output
