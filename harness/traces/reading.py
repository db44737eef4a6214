"""Rows of a trace file, one at a time, plain or gzip; damage is said with file, line and reason.

No row is ever skipped or repaired: what cannot be read ends the reading with `BadTrace`, so that a
count is of the whole file or there is none. No more than one line is in memory.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import IO, Any, NoReturn

MAGIC = b"\x1f\x8b"
LONGEST_LINE = 1 << 28
"""Bytes; a longer line is damage. The longest in a known trace has 4 million."""

Opener = Callable[[Path], IO[bytes]]


class BadTrace(ValueError):
    """A trace that cannot be read: which file, which line (from 1), and what was expected."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path}, line {line}: {reason}")
        self.path, self.line, self.reason = path, line, reason


def open_plain(path: Path) -> IO[bytes]:
    """The default `Opener`; another one may watch how far the reading has come."""
    return path.open("rb")


class Row:
    """One line, its place, and access to its fields that checks them."""

    __slots__ = ("fields", "line", "path")

    def __init__(self, path: Path, line: int, fields: Mapping[str, Any]) -> None:
        self.path, self.line, self.fields = path, line, fields

    def bad(self, reason: str) -> NoReturn:
        """End the reading here."""
        raise BadTrace(self.path, self.line, reason)

    def within(self, fields: Any, name: str) -> Row:
        """A row for an object inside this one."""
        if not isinstance(fields, dict):
            self.bad(f"{name}: expected an object, got {_shown(fields)}")
        return Row(self.path, self.line, fields)

    def get(self, name: str) -> Any:
        """A field that has to be there."""
        if name not in self.fields:
            self.bad(f"no field {name!r}: expected it beside {sorted(self.fields)}")
        return self.fields[name]

    def whole(self, name: str, low: int = 0) -> int:
        """An int >= `low`."""
        value = self.get(name)
        if type(value) is not int or value < low:
            self.bad(f"{name}: expected an int >= {low}, got {_shown(value)}")
        return value

    def number(self, name: str, low: float = 0.0) -> float:
        """A finite number >= `low`."""
        value = self.get(name)
        if type(value) not in (int, float) or not math.isfinite(value) or value < low:
            self.bad(f"{name}: expected a number >= {low:g}, got {_shown(value)}")
        return float(value)

    def text(self, name: str) -> str:
        """A string."""
        value = self.get(name)
        if not isinstance(value, str):
            self.bad(f"{name}: expected a string, got {_shown(value)}")
        return value

    def listed(self, name: str) -> list[Any]:
        """A list."""
        value = self.get(name)
        if not isinstance(value, list):
            self.bad(f"{name}: expected a list, got {_shown(value)}")
        return value

    def ids(self, name: str) -> list[int]:
        """A list of ints >= 0."""
        ids = self.listed(name)
        if ids and (set(map(type, ids)) != {int} or min(ids) < 0):
            self.bad(f"{name}: expected ints >= 0, got {_shown(_first_wrong(ids))}")
        return ids


def _first_wrong(ids: list[Any]) -> Any:
    return next(value for value in ids if type(value) is not int or value < 0)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def lines(path: Path, opened: Opener = open_plain) -> Iterator[tuple[int, bytes]]:
    """Number (from 1) and text of each line, without its end; CRLF is an end too.

    The last line may lack an end, and may be empty. A truncated or damaged gzip stream is
    `BadTrace` at the line that could not be completed.
    """
    number = 0
    with ExitStack() as stack:
        try:
            raw = stack.enter_context(closing(opened(path)))
            head = raw.read(len(MAGIC))
            raw.seek(0)
            source: Any = raw
            if head == MAGIC:
                source = stack.enter_context(gzip.GzipFile(fileobj=raw))
            while line := source.readline(LONGEST_LINE):
                number += 1
                if len(line) == LONGEST_LINE:
                    raise BadTrace(path, number, f"longer than {LONGEST_LINE} bytes")
                yield number, line.rstrip(b"\r\n")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise BadTrace(path, number + 1, f"damaged gzip stream: {error}") from None
        except OSError as error:
            raise BadTrace(path, number + 1, f"cannot be read: {error.strerror}") from None


def _filled(path: Path, opened: Opener) -> Iterator[tuple[int, bytes]]:
    """The lines; empty ones may stand at the end only."""
    empty = 0
    for number, line in lines(path, opened):
        if not line.strip():
            empty = empty or number
            continue
        if empty:
            raise BadTrace(path, empty, "an empty line before the end of the file")
        yield number, line


def json_rows(path: Path, opened: Opener = open_plain) -> Iterator[Row]:
    """Each line of a JSON-lines file as an object."""
    for number, line in _filled(path, opened):
        try:
            fields = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise BadTrace(path, number, f"no JSON: {error}") from None
        yield Row(path, number, {}).within(fields, "row")


def csv_rows(
    path: Path, columns: Sequence[str], whole: Sequence[str], opened: Opener = open_plain
) -> Iterator[Row]:
    """Each line below the head; `columns` must be in the head, those of `whole` are ints.

    Public traces quote nothing and have no comma inside a cell, so a quote is damage.
    """
    head: list[str] | None = None
    for number, line in _filled(path, opened):
        try:
            cells = line.decode("utf-8").split(",")
        except UnicodeDecodeError as error:
            raise BadTrace(path, number, f"no UTF-8: {error.reason}") from None
        if head is None:
            head = [cell.strip() for cell in cells]
            missing = [name for name in columns if name not in head]
            if missing:
                raise BadTrace(path, number, f"no column {missing[0]!r}: the head is {head}")
            continue
        if len(cells) != len(head):
            reason = f"expected {len(head)} cells, got {len(cells)}"
            raise BadTrace(path, number, reason)
        yield _csv_row(path, number, dict(zip(head, cells, strict=True)), whole)
    if head is None:
        raise BadTrace(path, 1, f"empty: expected a head with {', '.join(columns)}")


def _csv_row(path: Path, number: int, cells: dict[str, Any], whole: Sequence[str]) -> Row:
    row = Row(path, number, cells)
    for name in whole:
        text = cells[name].strip()
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()):
            row.bad(f"{name}: expected an int, got {_shown(text)}")
        cells[name] = int(text)
    return row
