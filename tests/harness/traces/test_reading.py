"""Lines and rows: what is intact is read whole, what is damaged is named with its place."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from kvassay.harness.traces.finding import DEFAULT, KNOWN, VARIABLE, NoTrace, folder, requests
from kvassay.harness.traces.reading import BadTrace, Row, csv_rows, json_rows, lines

HOUSE = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ["rows.txt", "rows.txt.gz"])
def test_lines_are_the_same_from_plain_text_and_gzip(written: Any, name: str) -> None:
    assert list(lines(written(name, "a", "b"))) == [(1, b"a"), (2, b"b")]
    assert list(lines(written(name, "a", "b", end="\r\n"))) == [(1, b"a"), (2, b"b")]


def test_a_last_line_needs_no_end(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(b"a\r\nb")
    assert list(lines(path)) == [(1, b"a"), (2, b"b")]


def test_a_gzip_stream_that_ends_early_is_said_after_what_could_be_read(tmp_path: Path) -> None:
    rows = b"".join(b'{"x": %d}\n' % number for number in range(20000))
    path = tmp_path / "rows.gz"
    path.write_bytes(gzip.compress(rows)[:-2000])
    got: list[int] = []
    with pytest.raises(BadTrace, match="damaged gzip stream") as caught:
        got.extend(row.whole("x") for row in json_rows(path))
    assert caught.value.line == len(got) + 1 > 2
    assert got == list(range(len(got)))
    path.write_bytes(gzip.compress(rows))
    assert sum(1 for _ in json_rows(path)) == 20000


def test_damage_inside_a_gzip_stream_is_said(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(b"\n".join(b"%d" % (7**n) for n in range(300))))
    packed[len(packed) // 2] ^= 0xFF
    path = tmp_path / "rows.gz"
    path.write_bytes(packed)
    with pytest.raises(BadTrace, match="damaged gzip stream"):
        list(lines(path))


def test_a_missing_file_is_said_as_such(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="line 1: cannot be read: No such file"):
        list(lines(tmp_path / "none"))


@pytest.mark.parametrize("line", ['{"x": 1', "[1]", "3", "\ufeff{}", "[" * 100000])
def test_what_is_no_object_is_said_with_its_line(written: Any, line: str) -> None:
    with pytest.raises(BadTrace, match=r"rows\.jsonl, line 2: ") as caught:
        list(json_rows(written("rows.jsonl", '{"x": 1}', line)))
    assert caught.value.line == 2


def test_text_that_is_no_utf_8_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(b'{"x": "\xff"}\n')
    with pytest.raises(BadTrace, match="line 1: no JSON"):
        list(json_rows(path))
    with pytest.raises(BadTrace, match="line 1: no UTF-8"):
        list(csv_rows(path, ("x",), ()))


def test_empty_lines_may_stand_at_the_end_only(written: Any) -> None:
    assert [row.line for row in json_rows(written("a", "{}", "{}", "", ""))] == [1, 2]
    with pytest.raises(BadTrace, match="line 2: an empty line"):
        list(json_rows(written("a", "{}", "", "{}")))


@pytest.mark.parametrize(
    ("method", "right", "wrong"),
    [
        ("whole", 0, (-1, 1.0, True, "1", None)),
        ("number", 0.5, (-0.1, float("nan"), float("inf"), False, "1")),
        ("text", "", (1, None)),
        ("listed", [], ("", {})),
        ("ids", [0, 3], ([-1], [1, True], [1.0], ["1"], 5)),
    ],
)
def test_fields_are_of_their_type_and_range(method: str, right: Any, wrong: tuple[Any]) -> None:
    def got(value: Any) -> Any:
        return getattr(Row(Path("rows"), 7, {"x": value}), method)("x")

    assert got(right) == right
    for value in wrong:
        with pytest.raises(BadTrace, match="rows, line 7: x: expected"):
            got(value)
    with pytest.raises(BadTrace, match="no field 'x'"):
        getattr(Row(Path("rows"), 7, {}), method)("x")


def test_cells_are_found_by_the_head(written: Any) -> None:
    rows = list(csv_rows(written("a", "y,x", "3,4"), ("x",), ("x",)))
    assert [row.whole("x") for row in rows] == [4]


@pytest.mark.parametrize(
    ("rows", "line", "reason"),
    [
        ((), 1, "empty"),
        (("y",), 1, "no column 'x'"),
        (("x,y", "1"), 2, "expected 2 cells, got 1"),
        (("x", "1.5"), 2, "x: expected an int, got '1.5'"),
        (("x", "1", "\u0663"), 3, "x: expected an int"),
        (("x", ""), 2, None),
    ],
)
def test_damaged_tables_are_said(
    written: Any, rows: tuple[str, ...], line: int, reason: str | None
) -> None:
    path = written("a", *rows)
    if reason is None:
        assert list(csv_rows(path, ("x",), ("x",))) == []
        return
    with pytest.raises(BadTrace, match=reason) as caught:
        list(csv_rows(path, ("x",), ("x",)))
    assert caught.value.line == line


def test_memory_does_not_grow_with_the_file(written: Any) -> None:
    def peak(count: int) -> int:
        path = written("a.jsonl.gz", *(f'{{"x": {number}}}' for number in range(count)))
        tracemalloc.start()
        assert sum(row.whole("x") for row in json_rows(path)) == count * (count - 1) // 2
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    assert peak(20000) < 1.5 * peak(2000) < 20 * 20000 * 10


def test_the_folder_is_the_variable_or_beside_the_repository(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert folder() == tmp_path
    with pytest.raises(NoTrace, match=f"set {VARIABLE}"):
        requests("agentic")
    monkeypatch.delenv(VARIABLE)
    assert folder() == DEFAULT == HOUSE.parent / "shared" / "traces"


def test_a_trace_is_a_known_name_or_a_format_and_a_path(written: Any) -> None:
    row = '{"timestamp": 5, "input_length": 3, "output_length": 1, "hash_ids": [0]}'
    path = written("mine.jsonl", row)
    assert next(requests(f"mooncake:{path}")).input_tokens == 3
    for wrong in ("mine", "moon:cake", "mooncake:", f"csv:{path}"):
        with pytest.raises(NoTrace, match="expected one of"):
            requests(wrong)
    assert "mooncake-conversation" in KNOWN
