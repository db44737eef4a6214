"""How many examples the generator needs, beside uniform random operations.

For every planted fault: the number of examples until it is convicted under an invariant that it
accepts, median over seeds, with both generators on the same pools and run lengths and without
any inspection, unless the fault shows in nothing else (counters, events). The figure of merit is
the median ratio over the faults that are hard (uniform needs at least 50). What uniform has not
found when it ends counts as found then, so that the ratio is too small, if anything. ``python -m
kvassay.suites.benchmarks.yardstick`` prints the table of the faults in `managers`; with ``--all``,
of every fault of managers, then of every fault of indexes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from random import Random

from rich.console import Console
from rich.table import Table

from kvassay.harness.campaign import LENGTHS, invariant_of
from kvassay.harness.contract import PrefixIndex
from kvassay.harness.generator import FOCUS
from kvassay.harness.index import session as of_indexes
from kvassay.harness.index.uniform import uniform as uniform_on_index
from kvassay.harness.registry import Registration
from kvassay.harness.session import Run, drive, explore, without_inspection
from kvassay.harness.subjects import subject_of
from kvassay.harness.trial.planted import Family, Planted
from kvassay.harness.uniform import uniform
from kvassay.impls.faulty import registry
from kvassay.impls.faulty.managers import FAULTS
from kvassay.suites.benchmarks.arguments import positive

MOST = 1000
"""Examples after which a fault counts as not found."""
HARD = 50
SEEDS = 3

Example = Callable[[Registration, Random, int], Run]


@dataclass(frozen=True)
class Row:
    """Median number of examples for one fault."""

    fault: str
    generator: float
    uniform: float

    @property
    def factor(self) -> float:
        """How many times fewer examples the generator needs."""
        return self.uniform / self.generator


def _shape(registration: Registration, rng: Random) -> tuple[int, int]:
    """Blocks and tokens per block, from the usual ones."""
    shapes = subject_of(registration.kind).shapes
    return rng.choice(shapes.pools), rng.choice(shapes.sizes)


def by_generator(registration: Registration, rng: Random, number: int) -> Run:
    """One example of the suites' generator, the suites taking turns."""
    focus = list(FOCUS)[number % len(FOCUS)]
    shape = _shape(registration, rng)
    run = of_indexes.explore if registration.kind is PrefixIndex else explore
    return run(registration, rng, *shape, length=rng.choice(LENGTHS), focus=focus)


def by_uniform(registration: Registration, rng: Random, number: int) -> Run:
    """One example of uniform operations."""
    (blocks, size), length = _shape(registration, rng), rng.choice(LENGTHS)
    if registration.kind is PrefixIndex:
        capacity = blocks * size or None
        return of_indexes.drive(
            registration,
            capacity,
            size,
            lambda checker: islice(uniform_on_index(rng, checker), length),
        )
    return drive(registration, blocks, size, lambda checker: islice(uniform(rng, checker), length))


def needed(
    example: Example, registration: Registration, accepted: set[str], seed: int, most: int = MOST
) -> int:
    """Examples until a conviction under an accepted invariant; `most` + 1 if there is none."""
    for number in range(most):
        run = example(registration, Random(f"{seed}-{number}"), number)
        if run.verdict is not None and invariant_of(run.verdict) in accepted:
            return number + 1
    return most + 1


def measure(fault: Planted, most: int = MOST, seeds: int = SEEDS) -> Row:
    """One fault, both generators."""
    whole, accepted = fault.subject(), set(fault.accepted)
    blind = replace(whole, declaration=without_inspection(whole.declaration))

    def median(example: Example, subject: Registration) -> float:
        numbers = (needed(example, subject, accepted, seed, most) for seed in range(seeds))
        return statistics.median(numbers)

    generated = median(by_generator, blind)
    if generated > most:
        blind, generated = whole, median(by_generator, whole)
    return Row(fault.name, generated, median(by_uniform, blind))


def median_factor(rows: list[Row]) -> float:
    """Over the faults that are hard for uniform operations."""
    return statistics.median(row.factor for row in rows if row.uniform >= HARD)


HEADINGS = ("fault", "generator", "uniform", "factor")


def _cells(rows: list[Row], most: int) -> Iterator[tuple[str, ...]]:
    for row in sorted(rows, key=lambda row: -row.uniform):
        more, unfound = (">" if each > most else "" for each in (row.uniform, row.generator))
        numbers = f"{unfound}{row.generator:g}", f"{more}{row.uniform:g}", f"{more}{row.factor:.1f}"
        yield row.fault, *numbers


def merit(rows: list[Row], most: int) -> str:
    """The figure of merit, in words."""
    hard = [row for row in rows if row.uniform >= HARD]
    if not hard:
        return f"none of {len(rows)} faults is hard for uniform operations"
    ended = sum(row.uniform > most for row in hard)
    return (
        f"median factor over the {len(hard)} hard faults: {median_factor(rows):.1f} "
        f"({ended} of them not found by uniform operations in {most} examples)"
    )


def tell(rows: list[Row], most: int) -> None:
    """Print the table, and the figure of merit."""
    table = Table(*HEADINGS, show_edge=False)
    for cells in _cells(rows, most):
        table.add_row(*cells)
    Console().print(table)
    print(merit(rows, most))


HEAD = """# The generator beside uniform operations

Examples until a planted fault is convicted, by the suites' generator and by operations drawn
uniformly, on the same pools and run lengths: the median of {seeds} seed(s), {most} examples at
most. Both work without inspection, unless the fault shows in nothing else. *>* is
what was not found by then, and counts as found then, so that a factor is too small, if anything.
Made by `python -m kvassay.suites.benchmarks.yardstick --all --most {most} --seeds {seeds} --page
FILE`; nothing is timed, and the same code gives the same page.
"""


def page(tables: Mapping[str, list[Row]], most: int, seeds: int) -> str:
    """The tables, as Markdown."""
    lines = [HEAD.format(most=most, seeds=seeds)]
    for family, rows in tables.items():
        lines += [f"## {family}", "", f"{merit(rows, most).capitalize()}.", ""]
        lines += [f"| {' | '.join(HEADINGS)} |", "| --- | ---: | ---: | ---: |"]
        lines += [*(f"| {' | '.join(cells)} |" for cells in _cells(rows, most)), ""]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--all", action="store_true", help="every fault, of indexes too")
    parser.add_argument("--most", type=positive, default=MOST, help="examples of either")
    parser.add_argument("--seeds", type=positive, default=SEEDS)
    parser.add_argument("--page", type=Path, help="also write the tables to this file")
    given = parser.parse_args(arguments)
    measured: dict[str, list[Row]] = {}
    families = (Family.MANAGER, Family.INDEX) if given.all else (Family.MANAGER,)
    for family in families:
        faults = [one for one in registry.everything() if one.is_fault and one.family is family]
        faults = [one for one in faults if given.all or one.name in FAULTS]
        if given.all:
            print(f"\n{family.value}")
        measured[family.value] = [measure(one, given.most, given.seeds) for one in faults]
        tell(measured[family.value], given.most)
    if given.page is not None:
        given.page.write_text(page(measured, given.most, given.seeds), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
