"""Variants of the Triton kernel's tuning at decode: stages, tiles, split sizes.

    python -m kvassay.suites.benchmarks.kernels.tune --out DIR

Prints each variant's time over the floor on the shapes in `shapes.TUNED`, best first by the
geometric mean; what a variant changes is named, everything else is the default.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from kvassay.harness.roofline import floor, work
from kvassay.impls.interpreted import usual_tuning
from kvassay.suites.benchmarks.kernels import report, shapes
from kvassay.suites.benchmarks.kernels.ceilings import measured
from kvassay.suites.benchmarks.kernels.contenders import Prepare, triton
from kvassay.suites.benchmarks.kernels.measure import Table, measure

STAGES = (2, 3, 4)
BLOCK_N = (32, 64, 128)
LEAST_KEYS = (128, 512)


def variants(default: Any) -> Iterator[tuple[str, Any]]:
    """Tunings by what they change."""
    yield "default", default
    for stages in STAGES:
        for block_n in BLOCK_N:
            changed = replace(default, num_stages=stages, block_n=block_n)
            if changed != default:
                yield f"stages {stages}, keys per tile {block_n}", changed
    for least in LEAST_KEYS:
        yield f"at least {least} keys per split", replace(default, least_keys=least)


def contenders() -> dict[str, Prepare]:
    """The variants, each ready to prepare a batch."""
    return {name: triton(tuning) for name, tuning in variants(usual_tuning())}


def ranking(table: Table) -> list[tuple[float, str]]:
    """Geometric mean of measured / floor of each variant measured everywhere, best first."""
    names = set.intersection(*({*row.timed} for row in table.rows))
    found = []
    for name in names:
        logs = [
            math.log((row.timed[name].median or math.inf) / floor(work(row.shape), table.ceiling))
            for row in table.rows
        ]
        found.append((math.exp(sum(logs) / len(logs)), name))
    return sorted(found)


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each shape")
    parser.add_argument("--out", type=Path, help="folder for tuning.md")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    table = Table(device, measured(device, torch.bfloat16))
    for shape in shapes.TUNED if device == "cuda" else shapes.TINY[:1]:
        row = measure(shape, contenders(), device, torch.bfloat16, seconds=options.seconds)
        table.rows.append(row)
    lines = [f"{mean:6.2f} times the floor: {name}" for mean, name in ranking(table)]
    print("\n".join(lines))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        text = "# Tuning\n\n" + "\n".join(f"* {each}" for each in lines) + "\n\n"
        (options.out / "tuning.md").write_text(text + report.page(table), encoding="utf-8")


if __name__ == "__main__":
    main()
