"""How many examples the generator needs, beside uniform random operations.

For every planted fault: the number of examples until it is convicted under an invariant that it
accepts, median over seeds, with both generators on the same pools and run lengths and without
any inspection. The figure of merit is the median ratio over the faults that are hard (uniform
needs at least 50). ``python -m kvassay.suites.benchmarks.yardstick`` prints the table.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from random import Random

from rich.console import Console
from rich.table import Table

from kvassay.harness.campaign import LENGTHS, invariant_of
from kvassay.harness.generator import FOCUS
from kvassay.harness.registry import Registration, find
from kvassay.harness.session import Run, drive, explore, without_inspection
from kvassay.harness.subjects import MANAGERS
from kvassay.harness.uniform import uniform
from kvassay.impls.faulty.managers import FAULTS

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


def _shape(rng: Random) -> tuple[int, int]:
    """Blocks and tokens per block, from the usual ones."""
    return rng.choice(MANAGERS.shapes.pools), rng.choice(MANAGERS.shapes.sizes)


def by_generator(registration: Registration, rng: Random, number: int) -> Run:
    """One example of the suites' generator, the suites taking turns."""
    focus = list(FOCUS)[number % len(FOCUS)]
    shape = _shape(rng)
    return explore(registration, rng, *shape, length=rng.choice(LENGTHS), focus=focus)


def by_uniform(registration: Registration, rng: Random, number: int) -> Run:
    """One example of uniform operations."""
    shape, length = _shape(rng), rng.choice(LENGTHS)
    return drive(registration, *shape, lambda checker: islice(uniform(rng, checker), length))


def needed(example: Example, registration: Registration, accepted: set[str], seed: int) -> int:
    """Examples until a conviction under an accepted invariant; MOST + 1 if there is none."""
    for number in range(MOST):
        run = example(registration, Random(f"{seed}-{number}"), number)
        if run.verdict is not None and invariant_of(run.verdict) in accepted:
            return number + 1
    return MOST + 1


def measure(name: str) -> Row:
    """One fault, both generators."""
    fault = FAULTS[name]
    found = {entry.name: entry for entry in find("kvassay.impls.faulty.managers")}
    whole = found[f"fault-{name}"]
    blind = replace(whole, declaration=without_inspection(whole.declaration))
    accepted = set(fault.accepted)
    medians = [
        statistics.median(needed(example, blind, accepted, seed) for seed in range(SEEDS))
        for example in (by_generator, by_uniform)
    ]
    return Row(name, *medians)


def median_factor(rows: list[Row]) -> float:
    """Over the faults that are hard for uniform operations."""
    return statistics.median(row.factor for row in rows if row.uniform >= HARD)


def main() -> None:
    """Print the table."""
    rows = [measure(name) for name in FAULTS]
    table = Table("fault", "generator", "uniform", "factor", show_edge=False)
    for row in sorted(rows, key=lambda row: -row.uniform):
        more = ">" if row.uniform > MOST else ""
        table.add_row(
            row.fault, f"{row.generator:g}", f"{more}{row.uniform:g}", f"{more}{row.factor:.1f}"
        )
    Console().print(table)
    hard = sum(row.uniform >= HARD for row in rows)
    print(f"median factor over the {hard} hard faults: {median_factor(rows):.1f}")


if __name__ == "__main__":
    sys.exit(main())
