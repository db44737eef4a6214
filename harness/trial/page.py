"""The matrix as a page (Markdown) and as a record (JSON) that pages and frames are made from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from kvassay.harness.attention.law import WHOLE_LAW
from kvassay.harness.environment import Environment
from kvassay.harness.record import BadRecord, Direction, Metric, Record, Subject
from kvassay.harness.trial.fate import Ended, Fate
from kvassay.harness.trial.matrix import Figures, Matrix, in_order
from kvassay.harness.trial.necessity import Need, needs
from kvassay.harness.trial.reasons import reason
from kvassay.harness.trial.removal import Removed

SUITE, KIND = "trial", "Harness"
WHOLE, REMOVED = "trial_seconds", "removed"
UNMEASURED = "-"
HEAD = """# Kill matrix

The harness on trial: every planted fault must be convicted by an invariant that it breaks, and
every control (correct, and unusual) acquitted. Made by `tox run -e trial -- --page FILE`;
[impls/faulty](../impls/faulty) says what each fault restates and how it hides.
"""
OF_FAULTS = """*by* is the invariant of the shortest counterexample, with the suite or check;
*also* is what longer ones showed. *examples*: until then, 0 for a scenario of the pinned corpus.
*operations*: of the shrunk counterexample. *seconds*: of processor time, shrinking included.
*after*: the public report that it restates. In every counterexample corrupted code was run, and
the same without the fault shows nothing on it."""
OF_NECESSITY = """A check is the least that can be taken out: a function of the checkers of
managers, indexes and pairs that compares something and names what is wrong by one invariant or
another; a check of the attention suite; a circumstance of rigs; an invariant of instruments. A
fault that one check alone had found was tried again with that check taken out (the run goes on as
if it had found nothing wrong), and stands here if nothing else convicted it then. Managers and
indexes were judged with the inspection that they offer, and once more without; kernels by 40 cases
of each check. Left out are Triton's kernels, for which the checks are those of the others, and
engines seen from inside."""
OF_REMOVAL = """Drawn at random among all checks; each was taken out, by itself, and the faults that
need it were judged without it. Made by `tox run -e trial -- --remove 10 --seed N`."""
OF_INVARIANTS = """*named by*: faults that it may convict; *first*: those whose shortest
counterexample shows it; *seen*: those that it convicted at all, before the trial was over."""


def as_markdown(matrix: Matrix, environment: Environment, chart: str = "") -> str:
    """The whole page, with a chart of it if there is one (Markdown)."""
    return "\n".join(_lines(matrix, environment, chart)) + "\n"


def _lines(matrix: Matrix, environment: Environment, chart: str) -> Iterator[str]:
    yield HEAD
    yield f"{_told(matrix)} {_made(environment)}"
    yield ""
    yield from _table(SUMMARY, _summary(matrix))
    yield ""
    yield from (chart, "") if chart else ()
    yield from _problems(matrix)
    yield "## Faults"
    yield ""
    yield OF_FAULTS
    for family in matrix.families():
        yield from _family(matrix, family)
    yield "## Invariants"
    yield ""
    yield OF_INVARIANTS
    yield ""
    yield from _table(("invariant", "", "named by", "first", "seen"), _invariants(matrix))
    yield ""
    yield from _necessity(matrix)
    yield from removal(matrix)
    yield "## Controls"
    yield ""
    yield from _table(("control", "fate", "tried", "what is odd about it"), _controls(matrix))


def _told(matrix: Matrix) -> str:
    good = sum(one.fate is Fate.KILLED for one in matrix.faults)
    acquitted = sum(one.fate is Fate.ACQUITTED for one in matrix.controls)
    return (
        f"{good} of {len(matrix.faults)} faults killed, {acquitted} of {len(matrix.controls)} "
        f"controls acquitted, in {matrix.seconds:.0f} s (profile {matrix.profile}; "
        f"{matrix.left_out})."
    )


def _made(environment: Environment) -> str:
    """With what, and where."""
    commit = (environment.commit or "unknown")[:7] + (" with changes" if environment.dirty else "")
    machine = environment.processor or environment.machine
    return f"Commit {commit}, {environment.time[:10]}, Python {environment.python}, {machine}."


SUMMARY = (
    "family",
    "faults",
    "killed",
    "controls",
    "acquitted",
    "examples, median",
    "seconds, median",
    "worst",
    "operations, median",
    "worst",
)


def _summary(matrix: Matrix) -> Iterator[tuple[str, ...]]:
    for family in matrix.families():
        faults = [one for one in matrix.faults if one.family == family]
        yield summary_row(family, faults, [one for one in matrix.controls if one.family == family])
    yield summary_row("all", matrix.faults, matrix.controls)


def summary_row(name: str, faults: Sequence[Ended], controls: Sequence[Ended]) -> tuple[str, ...]:
    """One line of the summary."""
    figures = Figures.of(faults)
    return (
        name,
        str(len(faults)),
        str(sum(one.fate is Fate.KILLED for one in faults)),
        str(len(controls)),
        str(sum(one.fate is Fate.ACQUITTED for one in controls)),
        _number(figures.median_examples),
        _number(figures.median_seconds, 2),
        _number(figures.worst_seconds, 1),
        _number(figures.median_operations),
        _number(figures.worst_operations),
    )


def _problems(matrix: Matrix) -> Iterator[str]:
    told = matrix.problems() + [f"over budget: {text}" for text in matrix.over_budget()]
    if told:
        yield "**What is wrong:**"
        yield ""
        yield from (f"- {text}" for text in told)
        yield ""


def _family(matrix: Matrix, family: str) -> Iterator[str]:
    faults = [one for one in matrix.faults if one.family == family]
    if not faults:
        return
    yield ""
    yield f"### {family}"
    yield ""
    heads = ("fault", "names", "fate", "by", "also", "examples", "operations", "seconds", "after")
    yield from _table(heads, map(_fault, faults))
    yield ""


def _fault(one: Ended) -> tuple[str, ...]:
    first = " ".join(reversed(one.killers[0])) if one.killers else UNMEASURED
    also = sorted({name for _, name in one.killers[1:]} - {name for _, name in one.killers[:1]})
    return (
        one.name,
        " ".join(one.accepted),
        one.fate.value,
        first,
        " ".join(also) or UNMEASURED,
        _number(one.examples),
        _number(one.operations),
        _number(one.seconds, 2),
        one.modelled_on if one.modelled_on != "none" else UNMEASURED,
    )


def _invariants(matrix: Matrix) -> Iterator[tuple[str, ...]]:
    for name, uses in matrix.by_invariant().items():
        title = WHOLE_LAW[name].title if name in WHOLE_LAW else "crash or hang"
        yield name, title, str(uses.accepted), str(uses.first), str(uses.seen)


def _necessity(matrix: Matrix) -> Iterator[str]:
    """What would be missed without a check."""
    if not matrix.necessity:
        return
    all_needs = needs(matrix.ended)
    yield "## What each check is needed for"
    yield ""
    yield OF_NECESSITY
    yield ""
    yield told_needs(all_needs)
    yield ""
    rows = (
        (
            need.family,
            f"`{need.check}`",
            " ".join(sorted(need.invariants, key=in_order)) or UNMEASURED,
            str(len(need.only)),
            ", ".join(need.only) or reason(need.check),
        )
        for need in all_needs
    )
    yield from _table(("family", "check", "as", "faults", "that only it finds"), rows)
    yield ""


def told_needs(all_needs: Sequence[Need]) -> str:
    """How many checks are needed, in words."""
    useful = sum(bool(need.only) for need in all_needs)
    return f"{useful} of {len(all_needs)} checks find something that no other finds."


def removal(matrix: Matrix) -> Iterator[str]:
    """The section on checks that were drawn at random and taken out."""
    rows = matrix.removed
    if not rows:
        return
    yield "## Checks removed at random"
    yield ""
    yield OF_REMOVAL
    yield ""
    useful = sum(bool(row.survived) for row in rows)
    yield f"{useful} of {len(rows)} let a fault survive (seed {matrix.seed})."
    yield ""
    cells = (
        (
            row.family,
            f"`{row.check}`",
            f"{len(row.survived)} of {len(row.tried)}",
            ", ".join(row.survived) or reason(row.check),
        )
        for row in rows
    )
    yield from _table(("family", "check taken out", "survive", "which"), cells)
    yield ""


def _controls(matrix: Matrix) -> Iterator[tuple[str, ...]]:
    for one in matrix.controls:
        yield one.key, one.fate.value, _number(one.examples), one.hides or UNMEASURED


def _number(value: float | None, digits: int = 0) -> str:
    if value is None:
        return UNMEASURED
    return f"{value:.{digits}f}" if digits or value == int(value) else f"{value:.1f}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', '/') for cell in row)} |"


def as_record(matrix: Matrix, environment: Environment) -> Record:
    """All of a matrix: a finding for each fault, control and check taken out; its figures."""
    figures = Figures.of(matrix.faults)
    fates = {fate: sum(one.fate is fate for one in matrix.ended) for fate in Fate}
    return Record(
        suite=SUITE,
        subject=Subject(
            name="kvassay",
            kind=KIND,
            version=environment.packages.get("kvassay", "unversioned"),
            reference="kvassay",
            declaration={},
        ),
        environment=environment,
        options={
            "profile": matrix.profile,
            "without": " ".join(matrix.without),
            "left out": matrix.left_out,
            "necessity": "tried" if matrix.necessity else "not tried",
            "seed": str(matrix.seed),
        },
        counters={"asked": matrix.asked, **{fate.value: n for fate, n in fates.items()}},
        metrics=[
            _metric("kill_seconds", "s", figures.median_seconds, matrix, "seconds"),
            _metric("kill_operations", "1", figures.median_operations, matrix, "operations"),
            _metric("kill_examples", "1", figures.median_examples, matrix, "examples"),
            Metric(name=WHOLE, unit="s", direction=Direction.LOWER, value=matrix.seconds),
        ],
        findings=[
            *(one.as_dict() for one in (*matrix.faults, *matrix.controls)),
            *({REMOVED: asdict(row)} for row in matrix.removed),
        ],
    )


def of_record(record: Record) -> Matrix:
    """The matrix that `as_record` recorded; `BadRecord` for a record of something else."""
    options = record.options
    seconds = next((one.value for one in record.metrics if one.name == WHOLE), None)
    if record.suite != SUITE or seconds is None:
        raise BadRecord(f"{record.id}: expected a record of a trial, with its seconds")
    ended = [Ended.of_dict(one) for one in record.findings if REMOVED not in one]
    rows = [Removed.of_dict(one[REMOVED]) for one in record.findings if REMOVED in one]
    return Matrix(
        tuple(ended),
        record.counters["asked"],
        seconds,
        options["profile"],
        options["left out"],
        tuple(options["without"].split()),
        options["necessity"] == "tried",
        tuple(rows),
        int(options["seed"]),
    )


def _metric(name: str, unit: str, value: float | None, matrix: Matrix, field: str) -> Metric:
    """A median over the faults that were convicted, with its samples."""
    found = (getattr(one, field) for one in matrix.faults if one.killers)
    samples = [float(each) for each in found if each is not None]
    return Metric(name=name, unit=unit, direction=Direction.LOWER, value=value, samples=samples)
