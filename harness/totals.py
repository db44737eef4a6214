"""How much was tried: records summed by implementation, mode and shape, as a page.

Unlike verdicts, of which the newest counts, all runs add up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from kvassay.harness.record import Record

HEADINGS = (
    "implementation",
    "version",
    "assay",
    "block size",
    "suites",
    "examples",
    "operations",
    "failures",
    "commit",
    "date",
)
Group = tuple[str, str, str, str]
"""Implementation, version, mode and block size."""


def as_markdown(records: Iterable[Record]) -> str:
    """One row per implementation, version, mode and block size."""
    groups: dict[Group, list[Record]] = defaultdict(list)
    for record in records:
        groups[_group(record)].append(record)
    rows = [HEADINGS, ("---",) * len(HEADINGS)]
    rows += [(*group, *_sums(groups[group])) for group in sorted(groups, key=_order)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _group(record: Record) -> Group:
    options = record.options
    mode, size = options.get("assay", "?"), options.get("block_size", "mixed")
    return record.subject.name, record.subject.version, mode, size


def _order(group: Group) -> tuple[object, ...]:
    """Block sizes by number, those of mixed ones first."""
    *others, size = group
    return (*others, int(size) if size.isdigit() else 0)


def _sums(records: Sequence[Record]) -> tuple[str, ...]:
    suites = ", ".join(sorted({record.suite for record in records}))
    counts = [
        sum(record.counters.get(name, 0) for record in records)
        for name in ("examples", "operations")
    ]
    failures = sum(len(record.findings) for record in records)
    commits = sorted({_commit(record) for record in records})
    dates = sorted({record.environment.time[:10] for record in records})
    numbers = [f"{number:,}" for number in (*counts, failures)]
    return (suites, *numbers, ", ".join(commits), " to ".join(dict.fromkeys((dates[0], dates[-1]))))


def _commit(record: Record) -> str:
    commit, dirty = record.environment.commit, record.environment.dirty
    return "unknown" if commit is None else commit[:7] + " with changes" * bool(dirty)
