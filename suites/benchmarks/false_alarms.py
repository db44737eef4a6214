"""How often a kernel that is taken to be right is rejected, over many generated cases.

    python -m kvassay.suites.benchmarks.false_alarms --impl torch --cases 5000

Every case is a kernel call judged by the rounding budget as the `oracle` check does. Printed, and
kept in `results/false_alarms.md` with one row per implementation, are the totals and the largest
value that each statistic had, as a part of its limit (1 would be a rejection).
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random

import torch

from kvassay.harness.attention.case import Case
from kvassay.harness.attention.compare import Comparison, compare
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.generate import cases
from kvassay.harness.attention.reach import Reach, reached
from kvassay.harness.attention.wrong import Refused, Wrong
from kvassay.harness.contract import PagedAttention
from kvassay.harness.registry import find
from kvassay.harness.violation import Crash

RESULTS = Path(__file__).parents[2] / "results" / "false_alarms.md"
STATISTICS = ("row", "element", "lse", "gain")
EVERY = 500
HEAD = """# False alarms

Generated cases on which an implementation that is taken to be right was judged by the rounding
budget, and the largest value of each statistic as a part of its limit: 1 would be a rejection.
Made by `python -m kvassay.suites.benchmarks.false_alarms`.

| implementation | seed | cases | refused | rejected | row | element | LSE | gain | kinds reached |
|---|---|---|---|---|---|---|---|---|---|
"""


@dataclass
class Totals:
    """What came of the cases."""

    judged: int = 0
    refused: int = 0
    rejected: list[str] = field(default_factory=list)
    largest: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STATISTICS, 0.0))
    met: Counter[Reach] = field(default_factory=Counter)

    def add(self, kernel: Kernel, case: Case) -> None:
        """One case."""
        try:
            seen = compare(kernel, case)
        except Refused:
            self.refused += 1
            return
        except (Wrong, Crash) as wrong:
            self.rejected.append(f"{wrong}\n  {case}")
            return
        self.judged += 1
        self.met.update(reached(case))
        self._measure(seen)
        if not seen.right:
            self.rejected.append(f"{seen.judgement.problem}\n  {case}")

    def _measure(self, seen: Comparison) -> None:
        for name in STATISTICS:
            value = getattr(seen.judgement, name)
            if value is not None:
                part = value / getattr(seen.judgement.limits, name)
                self.largest[name] = max(self.largest[name], part)

    def row(self, name: str, seed: int) -> str:
        """As a line of the table."""
        parts = " | ".join(f"{self.largest[each]:.2f}" for each in STATISTICS)
        return (
            f"| {name} | {seed} | {self.judged} | {self.refused} | {len(self.rejected)} "
            f"| {parts} | {len(self.met)} of {len(Reach)} |"
        )


def count(name: str, num_cases: int, seed: int) -> Totals:
    """Judge so many cases of a registered kernel, and print what is rejected."""
    (registration,) = (each for each in find(name) if each.kind is PagedAttention)
    kernel, totals, start = Kernel.of(registration), Totals(), time.monotonic()
    for number, case in enumerate(islice(cases(kernel, Random(seed)), num_cases), start=1):
        known = len(totals.rejected)
        totals.add(kernel, case)
        for text in totals.rejected[known:]:
            print(f"case {number}: {text}", flush=True)
        if number % EVERY == 0:
            seconds = time.monotonic() - start
            print(f"{number} cases, {len(totals.rejected)} rejected, {seconds:.0f} s", flush=True)
    return totals


def keep(row: str, path: Path) -> None:
    """Put a row into the table, in place of the implementation's former one."""
    rows = []
    if path.exists():
        rows = [line for line in path.read_text(encoding="utf-8").splitlines() if _is_row(line)]
    name = row.split("|")[1]
    rows = [each for each in rows if each.split("|")[1] != name]
    path.write_text(HEAD + "\n".join(sorted([*rows, row])) + "\n", encoding="utf-8")


def _is_row(line: str) -> bool:
    return line.startswith("| ") and not line.startswith("| implementation")


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--impl", default="torch", help="a registered kernel")
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS, help="file with the table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    totals = count(options.impl, options.cases, options.seed)
    row = totals.row(options.impl, options.seed)
    print(row)
    keep(row, options.out)


if __name__ == "__main__":
    main()
