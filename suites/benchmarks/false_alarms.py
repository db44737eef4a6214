"""How often an implementation that is taken to be right is convicted, over many generated cases.

    python -m kvassay.suites.benchmarks.false_alarms --impl torch --cases 5000
    python -m kvassay.suites.benchmarks.false_alarms --controls managers --cases 5000

A case of a kernel is a call judged by the rounding budget as the `oracle` check does; told are the
totals and the largest value that each statistic had, as a part of its limit (1 would be a
rejection). A case of a manager or an index is an example of the campaigns of the suites, in equal
parts of each, after the pinned corpus. `results/false_alarms.md` keeps one row per implementation.
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

from kvassay.harness.assay import corpus_folder
from kvassay.harness.attention.case import Case
from kvassay.harness.attention.compare import Comparison, compare
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.generate import cases
from kvassay.harness.attention.reach import Reach, reached
from kvassay.harness.attention.wrong import Refused, Wrong
from kvassay.harness.campaign import Budget, Campaign, Geometry, load_known
from kvassay.harness.contract import CacheManager, PagedAttention
from kvassay.harness.generator import FOCUS
from kvassay.harness.index.law import SUITE
from kvassay.harness.registry import Registration, find
from kvassay.harness.subjects import subject_of
from kvassay.harness.violation import Crash

RESULTS = Path(__file__).parents[2] / "results" / "false_alarms.md"
STATISTICS = ("row", "element", "lse", "gain")
EVERY = 500
CONTROLS = {
    "managers": "kvassay.impls.faulty.controls",
    "indexes": "kvassay.impls.faulty.index_controls",
    "kernels": "kvassay.impls.faulty.kernel_controls",
}
"""Modules that register correct implementations with unusual habits."""
TITLE = """# False alarms

Implementations that are taken to be right, on generated cases; a conviction would be a fault of the
harness. Made by `python -m kvassay.suites.benchmarks.false_alarms`.
"""
OF_CACHES = """## Managers and indexes

Examples of the campaigns that the suites run, in equal parts of each, after the pinned corpus.

| implementation | block size | examples | operations | shapes refused | convictions |
|---|---|---|---|---|---|
"""
OF_KERNELS = """## Kernels

Each case is judged by the rounding budget; beside the counts, the largest value of each statistic
as a part of its limit: 1 would be a rejection.

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


def campaigns(
    registration: Registration, examples: int, block_size: int | None = None
) -> tuple[str, list[str]]:
    """The row of a manager or an index after so many examples, and what convicted it."""
    subject, wrong = subject_of(registration.kind), []
    foci = tuple(FOCUS) if registration.kind is CacheManager else (SUITE,)
    known = load_known([corpus_folder(subject.corpus)], load=subject.load) if subject.corpus else []
    tried = operations = refused = 0
    for focus in foci:
        budget, shape = Budget(examples // len(foci)), Geometry(block_size=block_size)
        outcome = Campaign(registration, focus, budget, shape, known).run()
        wrong += [f"{focus}: {finding.verdict}" for finding in outcome.findings.values()]
        tried += outcome.examples
        operations += outcome.num_operations
        refused += sum(outcome.refused_geometries.values())
    name, size = registration.name, block_size or "any"
    return f"| {name} | {size} | {tried} | {operations} | {refused} | {len(wrong)} |", wrong


def keep(row: str, path: Path) -> None:
    """Put a row into its table, in place of the implementation's former one."""
    rows = []
    if path.exists():
        rows = [line for line in path.read_text(encoding="utf-8").splitlines() if _is_row(line)]
    rows = [each for each in rows if _subject(each) != _subject(row)]
    text = [TITLE]
    for head in (OF_CACHES, OF_KERNELS):
        columns = head.splitlines()[-1].count("|")
        own = sorted(each for each in [*rows, row] if each.count("|") == columns)
        text += [head + "\n".join(own) + "\n"] if own else []
    path.write_text("\n".join(text), encoding="utf-8")


def _is_row(line: str) -> bool:
    return line.startswith("| ") and not line.startswith("| implementation")


def _subject(row: str) -> tuple[str, ...]:
    """What a row is about: a cache's block size belongs to it, a kernel's seed does not."""
    cells = row.split("|")
    of_kernel = row.count("|") == OF_KERNELS.splitlines()[-1].count("|")
    return tuple(cells[1:2] if of_kernel else cells[1:3])


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--impl", default="torch", help="a registered implementation")
    parser.add_argument("--controls", choices=CONTROLS, help="all controls of a kind instead")
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0, help="of a kernel's cases")
    parser.add_argument("--block-size", type=int, help="of a manager or an index")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file with the tables")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for registration in find(CONTROLS.get(options.controls, options.impl)):
        if registration.kind is PagedAttention:
            totals = count(registration.name, options.cases, options.seed)
            row = totals.row(registration.name, options.seed)
        else:
            row, wrong = campaigns(registration, options.cases, options.block_size)
            print("\n".join(wrong))
        print(row, flush=True)
        keep(row, options.out)


if __name__ == "__main__":
    main()
