"""Times kernels on the shapes and prints them beside their floor and the contiguous baseline.

    python -m kvassay.suites.benchmarks.kernels --impl triton --impl sdpa-contiguous --out DIR

Without a GPU the shapes are tiny and Triton is interpreted: the numbers then show that the script
works, and nothing else.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from kvassay.suites.benchmarks.kernels import report, shapes
from kvassay.suites.benchmarks.kernels.ceilings import measured
from kvassay.suites.benchmarks.kernels.contenders import DENSE, contender
from kvassay.suites.benchmarks.kernels.measure import Table, measure


def main(arguments: list[str] | None = None) -> int:
    """From the command line; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--impl", action="append", help="a kernel's name; may be repeated")
    parser.add_argument("--shapes", choices=("full", "tiny"), help="full on a GPU, else tiny")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each shape")
    parser.add_argument("--out", type=Path, help="folder for records, table and chart")
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    wanted = options.shapes or ("full" if device == "cuda" else "tiny")
    names = options.impl or ["triton", *DENSE]
    dtype = torch.bfloat16
    table = Table(device, measured(device, dtype))
    contenders = {name: contender(name) for name in names}
    for shape in shapes.FULL if wanted == "full" else shapes.TINY:
        table.rows.append(measure(shape, contenders, device, dtype, seconds=options.seconds))
        print(report.line(table, table.rows[-1]), flush=True)
    print(report.page(table))
    if options.out is not None:
        report.keep(table, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
