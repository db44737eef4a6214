"""Hit laws: what each implementation declares of its hits, and whether it keeps that.

A hit comes in multiples of `unit` tokens, never counts the last `reserve` tokens of a prompt, and
is `drop` units shorter than it could be; `publish` says when KV may be found, the rest who leaves
first. The contract has all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields

from kvassay.harness.contract import Capability, Declaration
from kvassay.harness.record import Record
from kvassay.harness.report.matrix import Column, matrix
from kvassay.harness.report.section import Section, Table

DECLARED = ("unit", "reserve", "drop", "publish", "order", "granularity", "dedup")
KEPT = ("P3", "P10", "P11", "P12")
KINDS = ("CacheManager", "PrefixIndex")
DEFAULTS = {one.name: str(one.default) for one in fields(Declaration)}


def section(records: Iterable[Record]) -> Iterator[Section]:
    """Of all managers that claim a prefix cache, and of prefix trees; none without any."""
    records = list(records)
    declared = {
        (record.subject.name, record.subject.kind): record.subject.declaration
        for record in records
        if record.subject.kind in KINDS
    }
    rows = []
    for column in matrix(records).columns:
        said = declared.get((column.name, column.kind))
        if said is not None and _hits(column, said):
            values = (said.get(name, DEFAULTS[name]) for name in DECLARED)
            verdicts = (_kept(column, id) for id in KEPT)
            rows.append((f"{column.name} {column.version}", column.kind, *values, *verdicts))
    if rows:
        headings = ("implementation", "kind", *DECLARED, *KEPT)
        yield Section(
            "hit-laws",
            "What hits what: declared, and kept",
            "Which part of a prompt a prefix cache finds again is declared (unit, trailing tokens "
            "that never count, units dropped, when KV is published, who leaves first), and "
            "judged: P3 the number of hits, P10 the order of victims, P11 duplicates, P12 that "
            "what must hit does.",
            [Table("Hit laws", headings, rows)],
        )


def _hits(column: Column, said: dict[str, str]) -> bool:
    claimed = Capability.PREFIX_CACHE.value in said.get("capabilities", "")
    return column.kind == "PrefixIndex" or claimed


def _kept(column: Column, id: str) -> str:
    return str(column.cells[id].status) if id in column.cells else "not judged"
