"""The harness on trial: every planted fault is convicted, every control acquitted.

    tox run -e trial
    tox run -e trial -- --profile ci
    tox run -e trial -- --page results/kill_matrix.md --record results/kill_matrix.json
    tox run -e trial -- --necessity
    tox run -e trial -- --remove 10 --seed 1
    tox run -e trial -- --controls 5000
    tox run -e trial -- --family manager --without P5

Each fault is judged by the suites and checks that a user runs, in a process of its own. The run
fails (exit status 1) for a fault that survives, is convicted by an invariant that it does not name,
or is dead (what convicts it is not what was planted), and for a control that is convicted. Ctrl-C
ends it early, keeps what is known so far, and exits with 130.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from kvassay.harness.assay import write_whole
from kvassay.harness.environment import Environment, capture
from kvassay.harness.record import read
from kvassay.harness.trial.choice import FULL, PROFILES, Choice, choose, of_controls
from kvassay.harness.trial.fate import Ended
from kvassay.harness.trial.found import Effort
from kvassay.harness.trial.matrix import Matrix
from kvassay.harness.trial.necessity import AllOf, needs, with_only
from kvassay.harness.trial.page import (
    SUMMARY,
    as_markdown,
    as_record,
    of_record,
    removal,
    summary_row,
    told_needs,
)
from kvassay.harness.trial.planted import Family, Planted
from kvassay.harness.trial.removal import drawn, removed
from kvassay.harness.trial.workers import LIMIT, catalogue, prepare, tried
from kvassay.suites.benchmarks.arguments import positive

FAULTS = "kvassay.impls.faulty.registry"
STORED = Path(__file__).parents[2] / "results" / "kill_matrix.json"
BROKEN_OFF = 130
EVERY = 50
"""Trials between two lines of progress where there is no terminal."""
WITHOUT = 200
"""Examples for each suite where a check is taken out."""


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--profile", choices=list(PROFILES), default=FULL.name, help="how much is tried")
    add("--part", type=int, default=0, help="which part of the kernels the profile tries")
    add("--family", action="append", choices=[each.value for each in Family], help="only these")
    add("--only", default="", help="only those with this in their name")
    add("--without", default="", help="take checks out: ids, and names of checks of kernels")
    add("--necessity", action="store_true", help="also try what each check is needed for")
    add("--remove", type=positive, metavar="N", help="take N checks out, drawn at random, in turn")
    add("--seed", type=int, default=0, help="of the draw of --remove")
    add("--matrix", type=Path, default=STORED, help="record with what --remove tries, if not made")
    add("--controls", type=positive, help="controls only, with so many examples")
    add("--examples", type=positive, help="so many for each suite, in place of the profile's")
    add("--workers", type=positive, default=os.cpu_count() or 1, help="processes at a time")
    add("--catalogue", default=FAULTS, help="module that knows what to try")
    add("--page", type=Path, help="write the matrix to this file (Markdown)")
    add("--record", type=Path, help="write a record to this file (JSON)")
    return parser.parse_args(arguments)


def chosen(given: argparse.Namespace) -> Choice:
    """What is to be tried."""
    everything = catalogue(given.catalogue).everything()
    wanted = [one for one in everything if _wanted(one, given)]
    profile = PROFILES[given.profile]
    if given.controls is not None:
        profile = replace(profile, parts={}, controls=of_controls(given.controls))
    if given.examples is not None:
        profile = replace(profile, faults=replace(profile.faults, examples=given.examples))
    return choose(wanted, profile, given.part, frozenset(given.without.split(",")) - {""})


def _wanted(planted: Planted, given: argparse.Namespace) -> bool:
    family = given.family is None or planted.family.value in given.family
    return family and given.only in planted.name and not (given.controls and planted.is_fault)


def run(given: argparse.Namespace, console: Console) -> Matrix:
    """Try everything; what goes wrong is printed at once."""
    choice = chosen(given)
    prepare(given.catalogue, {each.planted.family for each in choice.asked})
    start, results = time.monotonic(), []
    limit = LIMIT if given.controls is None else 100 * LIMIT
    # Refreshed by hand: processes are not forked from a process of several threads.
    with Progress(console=console, auto_refresh=False, transient=True) as progress:
        bar = progress.add_task("on trial", total=len(choice.asked))
        try:
            for one in tried(given.catalogue, choice.asked, given.workers, limit):
                results.append(one)
                progress.update(bar, advance=1, description=f"on trial: {escape(one.key):50.50}")
                if not one.good:
                    progress.console.print(
                        f"{one.fate.value}: {escape(one.key)}: {escape(one.told)}"
                    )
                progress.refresh()
                if not console.is_terminal and len(results) % EVERY == 0:
                    progress.console.print(f"{len(results)} of {len(choice.asked)} tried")
        except KeyboardInterrupt:
            progress.console.print("broken off; what is known so far is kept")
    return Matrix(
        tuple(results),
        len(choice.asked),
        time.monotonic() - start,
        _profile(given),
        choice.told(),
        tuple(sorted(given.without.split(","))) if given.without else (),
    )


def _profile(given: argparse.Namespace) -> str:
    """How much was asked for, in words."""
    told = given.profile if given.controls is None else f"controls, {given.controls} examples"
    told += f", of {' and '.join(given.family)} only" if given.family else ""
    told += f", named *{given.only}*" if given.only else ""
    return told + (f", {given.examples} examples" if given.examples else "")


def with_necessity(matrix: Matrix, given: argparse.Namespace) -> Matrix:
    """The same with what each check is needed for: faults are tried without their only finder."""
    ended = with_only(matrix.ended, _known(given), _without(given), _all_of(given))
    return replace(matrix, ended=ended, necessity=True)


def without_some(matrix: Matrix, given: argparse.Namespace) -> Matrix:
    """The same with checks drawn at random, and what survives without each of them."""
    known, all_of = _known(given), _all_of(given)
    asked = drawn(needs(_here(matrix.ended, given)), given.remove, given.seed)
    rows = tuple(removed(need, known, _without(given), all_of) for need in asked)
    return replace(matrix, removed=rows, seed=given.seed)


def _here(ended: Sequence[Ended], given: argparse.Namespace) -> list[Ended]:
    """Of the families that are asked for, and of what is known here."""
    known, families = _known(given), given.family
    here = [one for one in ended if one.key in known]
    return [one for one in here if families is None or one.family in families]


def _known(given: argparse.Namespace) -> dict[str, Planted]:
    return {one.key: one for one in catalogue(given.catalogue).everything()}


def _without(given: argparse.Namespace) -> Effort:
    return Effort(examples=given.examples or WITHOUT)


def _all_of(given: argparse.Namespace) -> AllOf:
    return lambda asked: list(tried(given.catalogue, asked, given.workers))


def tell(matrix: Matrix, console: Console) -> None:
    """The summary."""
    table = Table(*SUMMARY, show_edge=False, pad_edge=False)
    for family in matrix.families():
        table.add_row(*summary_row(family, *_of(matrix, family)))
    table.add_section()
    table.add_row(*summary_row("all", matrix.faults, matrix.controls))
    console.print(table)
    if matrix.necessity:
        console.print(told_needs(needs(matrix.ended)))
    for text in (*matrix.problems(), *(f"over budget: {each}" for each in matrix.over_budget())):
        console.print(escape(text))
    console.print(f"{matrix.seconds:.0f} s, {matrix.left_out}")


def _of(matrix: Matrix, family: str) -> tuple[list[Ended], list[Ended]]:
    faults = [one for one in matrix.faults if one.family == family]
    return faults, [one for one in matrix.controls if one.family == family]


def keep(matrix: Matrix, environment: Environment, given: argparse.Namespace) -> None:
    """Write page and record, where they are asked for."""
    if given.page is not None:
        write_whole(given.page, as_markdown(matrix, environment))
    if given.record is not None:
        write_whole(given.record, as_record(matrix, environment).model_dump_json(indent=1) + "\n")


def remove(given: argparse.Namespace, console: Console) -> int:
    """Take checks out that a stored matrix says to be needed, and add what came of it."""
    record = read(given.matrix)
    matrix = of_record(record)
    prepare(given.catalogue, {one.family for one in _known(given).values()})
    matrix = without_some(matrix, given)
    keep(matrix, record.environment, given)
    return tell_removal(matrix, console)


def tell_removal(matrix: Matrix, console: Console) -> int:
    """Say which faults survived; 1 if a check let none survive."""
    for line in removal(matrix):
        console.print(escape(line), soft_wrap=True)
    return 0 if matrix.removed and all(row.survived for row in matrix.removed) else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """From the command line; returns the exit status."""
    os.environ.setdefault("TRITON_INTERPRET", "1")
    given, console = options(arguments), Console()
    if given.remove is not None and not given.necessity:
        return remove(given, console)
    matrix = run(given, console)
    if given.necessity and matrix.complete:
        matrix = with_necessity(matrix, given)
        matrix = matrix if given.remove is None else without_some(matrix, given)
    keep(matrix, capture("derandomized"), given)
    tell(matrix, console)
    if not matrix.complete:
        return BROKEN_OFF
    status = 1 if matrix.problems() else 0
    return status if given.remove is None else status | tell_removal(matrix, console)


if __name__ == "__main__":
    sys.exit(main())
