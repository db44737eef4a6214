"""The budget of attention kernels calibrated: false alarms, and detection beside other tolerances.

``python -m kvassay.suites.benchmarks.calibration`` judges emulated kernels on the grid of
`harness.attention.calibration`, and writes `results/calibration.csv` (one line per judgement),
`results/calibration.md` and its chart. ``--quick`` prints the tables of a small
part and writes nothing; ``--tables`` writes tables and chart again from the judgements that are
there; ``--check`` measures everything again and says where the stored judgements, or the tables
made of them, are others (with ``--quick``: of the small part). The same seeds give the same
verdicts.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

import torch

from kvassay.harness.attention.calibration import (
    CONTENTS,
    CORRECT,
    CRITERIA,
    FAULTS,
    HOSTILE_SEEDS,
    LENGTHS,
    LONG_CONTENTS,
    MARGIN,
    QUICK_HOSTILE_SEEDS,
    REQUIRED,
    SLOPPY,
    TYPES,
    Row,
    complaints,
    disagreement,
    hostile_rows,
    is_quick,
    points,
    rows_of,
    shortfalls,
)
from kvassay.harness.attention.hostile import STRATEGIES
from kvassay.harness.attention.precision import MODELLED
from kvassay.harness.budget import Limits, limits
from kvassay.harness.record import BadRecord
from kvassay.harness.report import style
from kvassay.suites.benchmarks.stored import RESULTS, Made, image, stale, told
from kvassay.suites.benchmarks.stored import write as publish

NAME = CHART = "calibration"
RAW, TABLES = RESULTS / f"{NAME}.csv", RESULTS / f"{NAME}.md"
CAPTION = "Detection of planted errors by context length"
STATISTICS = ("row", "element", "gain", "lse")
SHOWN = ("last key dropped", "one wrong block of 16", "k_scale 2 % off", "v_scale 0.4 % off")
"""Faults whose detection is shown by length."""
OTHERS = tuple(name for name in CRITERIA if name != "1e-3 for all types")
"""Criteria beside which detection is shown; the other one rejects correct kernels."""


def measure(*, quick: bool) -> Iterator[Row]:
    """Every judgement, one after the other."""
    torch.set_num_threads(1)
    for point in points():
        if is_quick(point) or not quick:
            yield from rows_of(point)
    for seed in range(QUICK_HOSTILE_SEEDS if quick else HOSTILE_SEEDS):
        yield from hostile_rows(seed)


def write(rows: Iterable[Row], path: Path) -> None:
    """As CSV, statistics with three digits."""
    with path.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(field.name for field in fields(Row))
        for row in rows:
            table.writerow(
                f"{value:.3g}" if isinstance(value, float) else value for value in astuple(row)
            )


def read(path: Path) -> list[Row]:
    """What `write` wrote."""
    with path.open(newline="") as file:
        return [_row(line) for line in csv.DictReader(file)]


def _row(line: dict[str, str]) -> Row:
    numbers = {name: float(line[name]) for name in STATISTICS}
    counts = {name: int(line[name]) for name in ("length", "seed")}
    return Row(**{**line, **counts, **numbers})  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------ tables


def percent(rows: list[Row], rejects: Callable[[Row], bool]) -> float:
    """Percentage of rows that are rejected."""
    return 100 * sum(map(rejects, rows)) / len(rows)


def rejects(criterion: str) -> Callable[[Row], bool]:
    """Whether one of the other criteria rejects a row."""
    place = list(CRITERIA).index(criterion)
    return lambda row: row.others[place] == "-"


def of(rows: Iterable[Row], kind: str, name: str) -> list[Row]:
    """The rows of one kernel."""
    return [row for row in rows if (row.kind, row.name) == (kind, name)]


def table(head: Iterable[str], lines: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    head = list(head)
    rows = [head, ["---"] * len(head), *([str(cell) for cell in line] for line in lines)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def limits_table() -> str:
    """The limits, classes and types that share them on one line."""
    shared: dict[Limits, list[str]] = {}
    for (name, dtype), rounding in itertools.product(TYPES.items(), MODELLED):
        shared.setdefault(limits(rounding, dtype), []).append(f"{rounding.value} {name}")
    lines = [
        (", ".join(who), bounds.row, bounds.element, bounds.lse, f"{bounds.gain:.2g}")
        for bounds, who in shared.items()
    ]
    return table(("class and query", "row", "element", "LSE", "gain"), lines)


def _largest(rows: list[Row]) -> Iterator[str]:
    for name in STATISTICS:
        yield f"{max(getattr(row, name) for row in rows):.2f}"


def alarms_table(rows: list[Row]) -> str:
    """Correct kernels on the grid."""
    kinds = [("correct", name) for name in CORRECT] + [("sloppy", name) for name in SLOPPY]
    lines = []
    for kind, name in kinds:
        for wide in (False, True):
            found = [row for row in of(rows, kind, name) if (row.dtype == "fp32") == wide]
            if not found:
                continue
            typical = statistics.median(row.row for row in found)
            rejected = sum(row.rejected for row in found)
            others = (f"{percent(found, rejects(other)):.0f}" for other in CRITERIA)
            bits = "fp32" if wide else "16 bit"
            median = f"{typical:.2f}"
            lines.append((name, bits, len(found), rejected, median, *_largest(found), *others))
    head = ("kernel", "query", "cases", "rejected", "row p50", *STATISTICS, *CRITERIA)
    return table(head, lines)


def hostile_table(rows: list[Row]) -> str:
    """Correct kernels on hostile batches."""
    lines = []
    for name in STRATEGIES:
        found = of(rows, "hostile", name)
        lines.append((name, len(found), sum(row.rejected for row in found), *_largest(found)))
    return table(("kernel", "cases", "rejected", *STATISTICS), lines)


def points_off(short: float) -> float:
    """A shortfall as what it is off, to one digit; 0 has no sign."""
    return round(-short, 1) + 0.0


def detection_table(rows: list[Row]) -> str:
    """Faults, in percent of the cases."""
    lines, short = [], shortfalls(rows)
    for name in FAULTS:
        found = of(rows, "fault", name)
        if not found:
            continue
        others = [f"{percent(found, rejects(other)):.0f}" for other in OTHERS]
        output = f"{percent(found, lambda row: row.output_rejected):.0f}"
        lse = f"{percent(found, lambda row: row.lse_rejected):.0f}"
        both = f"**{percent(found, lambda row: row.rejected):.0f}**"
        beside = (str(REQUIRED[name]), f"{points_off(short[name]):+.1f}")
        lines.append((name, len(found), *others, output, lse, both, *beside))
    head = ("fault", "cases", *OTHERS, "output", "LSE", "output and LSE", "required", "points off")
    return table(head, lines)


def by_length(rows: list[Row], name: str, rejected: Callable[[Row], bool]) -> dict[int, float]:
    """Detection of a fault by length, in percent, over contents that there are at every length."""
    found = [row for row in of(rows, "fault", name) if row.content in LONG_CONTENTS]
    lengths = [length for length in LENGTHS if any(row.length == length for row in found)]
    return {
        length: percent([row for row in found if row.length == length], rejected)
        for length in lengths
    }


CURVES: dict[str, Callable[[Row], bool]] = {
    "budget, output and LSE": lambda row: row.rejected,
    "budget, output alone": lambda row: row.output_rejected,
    **{name: rejects(name) for name in OTHERS},
}


def length_table(rows: list[Row]) -> str:
    """Detection by context length."""
    lines = []
    for name, (curve, rejected) in itertools.product(SHOWN, CURVES.items()):
        found = by_length(rows, name, rejected)
        lines.append((name, curve, *(f"{found[n]:.0f}" if n in found else "" for n in LENGTHS)))
    return table(("fault", "judged by", *map(str, LENGTHS)), lines)


TEXT = """# Calibration of the attention budget

Written by `python -m kvassay.suites.benchmarks.calibration` from `calibration.csv`, which holds one
line for each of its {count:,} judgements of emulated kernels. How the error of a kernel is modelled
is said in `harness/attention/rounding_error.py`, what is judged in `harness/budget.py`.

The grid: decodes of {lengths} keys, in {types},
contents {contents} and tiny, {shapes}.
The longest are in 16 bit and {long_contents} alone.

## Limits

{limits}

Row, element and LSE in modelled standard deviations, gain as a relative error. A row whose error
has few degrees of freedom, and a gain that is hidden by its own standard error, may be larger.

## False alarms

{alarms:,} correct results, **{rejected} rejected**. Every kernel is judged by its own class. Row,
element, gain and LSE are the largest values met, as parts of their limits; the other criteria: how
many percent of these correct results they reject.

{alarms_table}

Batches on which rounding errors do not average out, with random features, head sizes, lengths,
scales and cache types; contents:
{hostile_contents}.

{hostile_table}

## Detection

Percent of the cases in which a fault is seen, over bf16 and fp16, contents
{contents}, and all lengths. *Output and LSE* is what the budget rejects: by row, element and gain
(the one that sees a v_scale), or by the LSE. {agreement}
FlashInfer's tolerance is that of its tests for each type; the baseline of FlashAttention's
criterion is the emulated eager kernel.

{detection}

By length, over {long_contents}:

{lengths_table}

{chart}
"""


def agreement(rows: list[Row]) -> str:
    """How the shares compare with those required, in one sentence."""
    short = {name: by for name, by in shortfalls(rows).items() if of(rows, "fault", name)}
    worst = max(short, key=lambda name: short[name])
    within = sum(by <= MARGIN for by in short.values())
    return (
        f"**{within} of {len(short)} faults are within {MARGIN} points of what is required, or "
        f"above**; furthest below is *{worst}*, by {max(short[worst], 0.0):.1f}."
    )


def text(rows: list[Row]) -> str:
    """All of `calibration.md`."""
    right = [row for row in rows if row.kind != "fault"]
    hostile_contents = sorted({row.content for row in rows if row.kind == "hostile"})
    return TEXT.format(
        count=len(rows),
        lengths=", ".join(map(str, LENGTHS)),
        types=", ".join(TYPES),
        long_contents=" and ".join(LONG_CONTENTS),
        contents=", ".join(CONTENTS),
        shapes="head sizes 64 and 128, 1, 4 or 8 query heads per KV head",
        limits=limits_table(),
        alarms=len(right),
        rejected=sum(row.rejected for row in right),
        alarms_table=alarms_table(rows),
        hostile_contents=", ".join(hostile_contents),
        hostile_table=hostile_table(rows),
        agreement=agreement(rows),
        detection=detection_table(rows),
        lengths_table=length_table(rows),
        chart=image(CHART, CAPTION),
    )


def chart(rows: list[Row]) -> Any:
    """Detection by context length, one panel per fault."""
    figure, panels = style.panels(len(SHOWN))
    for panel, name in zip(panels, SHOWN, strict=True):
        for place, (curve, rejected) in enumerate(CURVES.items()):
            found = by_length(rows, name, rejected)
            ours = curve.startswith("budget")
            look = {"linewidth": 2.5} if ours else {"linewidth": 1.2, "linestyle": "--"}
            look |= {"color": style.colour(place), "marker": style.marker(place), "markersize": 4}
            panel.plot(list(found), list(found.values()), label=curve, **look)
        panel.set(title=name, xscale="log", xlabel="context length, keys", ylim=(-4, 104))
    panels[0].set_ylabel("cases in which the fault is seen, %")
    style.legend_below(figure, panels[0], len(CURVES))
    return figure


def made(results: Path) -> Made:
    """Of the judgements that are stored; `BadRecord` without any."""
    path = results / RAW.name
    if not path.is_file():
        raise BadRecord(f"{path}: no judgements are stored")
    rows = read(path)
    return Made(NAME, text(rows), {CHART: lambda: chart(rows)})


def disagreements(stored: Iterable[Row], measured: Iterable[Row]) -> list[str]:
    """Judgements that came out otherwise than stored, or are not stored; one sentence each."""
    before = {identity(row): row for row in stored}
    found = []
    for row in measured:
        known = before.get(identity(row))
        differs = f"not stored: {row}" if known is None else disagreement(known, row)
        if differs is not None:
            found.append(differs)
    return found


def identity(row: Row) -> tuple[object, ...]:
    """What a judgement is about."""
    return row.kind, row.name, row.dtype, row.content, row.length, row.seed


def main() -> int:
    """Measure and write, print or compare; 1 where the budget does not do what it has to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small part, printed only")
    parser.add_argument("--tables", action="store_true", help="from the judgements that are there")
    parser.add_argument("--check", action="store_true", help="compare with what is stored")
    options = parser.parse_args()
    if options.check:
        found = disagreements(read(RAW), measure(quick=options.quick))
        print("\n".join(found) or "the stored calibration is what was measured")
        return max(told(stale(made(RESULTS))), bool(found))
    if options.quick:
        print(text(list(measure(quick=True))))
        return 0
    if not options.tables:
        write(measure(quick=False), RAW)
    publish(made(RESULTS))
    found = complaints(read(RAW))
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
