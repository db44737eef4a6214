"""Results of a sweep in a file that grows by a line for each cell, so that it can be resumed.

A line is written whole and at once; what is not a whole line (of a run that was ended in the middle
of one) is dropped when the file is read, and its cell is played again.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from kvassay.harness.sweep.cells import Cell, Counted, as_dict

LINES, TABLE = "cells.jsonl", "cells.csv"


class Kept:
    """The results in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._lines, self._table = folder / LINES, folder / TABLE
        self.found: dict[Cell, Counted] = dict(self._read())
        self._rewrite()

    def _read(self) -> Iterable[tuple[Cell, Counted]]:
        if not self._lines.exists():
            return
        for line in self._lines.read_text("utf-8").splitlines():
            try:
                kept = json.loads(line)
                yield Cell(**kept["cell"]), Counted(**kept["counted"])
            except (ValueError, KeyError, TypeError):
                continue

    def _rewrite(self) -> None:
        self._lines.write_text("".join(map(_line, self.found.items())), encoding="utf-8")

    def add(self, cell: Cell, counted: Counted) -> None:
        """Keep one result, on disk before this returns."""
        self.found[cell] = counted
        with self._lines.open("a", encoding="utf-8") as out:
            out.write(_line((cell, counted)))
            out.flush()
            os.fsync(out.fileno())

    def write_table(self, cells: Iterable[Cell]) -> Path:
        """The cells that there are, in their order: the same file for the same results."""
        rows = [as_dict(cell, self.found[cell]) for cell in sorted(cells) if cell in self.found]
        with self._table.open("w", encoding="utf-8", newline="") as out:
            if rows:
                writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
        return self._table


def _line(entry: tuple[Cell, Counted]) -> str:
    cell, counted = entry
    return json.dumps({"cell": asdict(cell), "counted": asdict(counted)}) + "\n"
