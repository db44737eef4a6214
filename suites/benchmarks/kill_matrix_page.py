"""The kill matrix as a page, from its record.

``python -m kvassay.suites.benchmarks.kill_matrix_page`` writes `results/kill_matrix.md` and its
chart from `results/kill_matrix.json` (``tox run -e trial -- --record results/kill_matrix.json``);
``--check`` says whether what is stored is what it makes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvassay.harness.record import read
from kvassay.harness.report import style
from kvassay.harness.trial.fate import Ended, Fate
from kvassay.harness.trial.matrix import Matrix
from kvassay.harness.trial.page import as_markdown, of_record
from kvassay.suites.benchmarks.stored import Made, command, image

NAME = CHART = "kill_matrix"
CAPTION = "Planted faults that were killed, by family, and how many examples that took"
MOST = 1000
"""Examples at the right end of the chart."""


def chart(matrix: Matrix) -> Any:
    """Faults by family, killed and not; and the share that so many examples kill."""
    figure, (bars, soon) = style.panels(2, 5.2)
    families = [name for name in matrix.families() if _of(matrix, name)][::-1]
    killed = [sum(one.fate is Fate.KILLED for one in _of(matrix, name)) for name in families]
    others = [len(_of(matrix, name)) - known for name, known in zip(families, killed, strict=True)]
    names = [
        f"{name}: {count} of {count + other}"
        for name, count, other in zip(families, killed, others, strict=True)
    ]
    bars.barh(names, killed, color=style.colour(0), hatch=style.hatch(0), label="killed")
    bars.barh(
        names, others, left=killed, color=style.colour(4), hatch=style.hatch(1), label="not killed"
    )
    bars.set(title="planted faults, killed", xlabel="faults")
    style.legend(bars, "center right")
    counted = [name for name in families if any(map(_counted, _of(matrix, name)))]
    for place, name in enumerate(counted):
        _curve(soon, [one for one in _of(matrix, name) if _counted(one)], name, place)
    soon.set(
        title="killed within so many examples",
        xlabel="examples; 0 is a scenario of the pinned corpus",
        ylabel="% of the faults that were killed",
        ylim=(0, 103),
    )
    soon.set_xscale("symlog", linthresh=1)
    soon.set_xlim(-0.1, MOST)
    style.legend(soon, "lower right")
    return figure


def _of(matrix: Matrix, family: str) -> Sequence[Ended]:
    return [one for one in matrix.faults if one.family == family]


def _counted(one: Ended) -> bool:
    return one.fate is Fate.KILLED and one.examples is not None


def _curve(axes: Any, killed: Sequence[Ended], name: str, place: int) -> None:
    ordered = sorted(one.examples or 0 for one in killed)
    shares = [100 * (number + 1) / len(ordered) for number in range(len(ordered))]
    axes.step(
        [*ordered, MOST],
        [*shares, shares[-1]],
        style.LINES[place % len(style.LINES)],
        where="post",
        color=style.colour(place),
        label=name,
    )


def made(results: Path) -> Made:
    """Of the record in the folder; `BadRecord` without one."""
    record = read(results / f"{NAME}.json")
    matrix = of_record(record)
    text = as_markdown(matrix, record.environment, image(CHART, CAPTION))
    return Made(NAME, text, {CHART: lambda: chart(matrix)})


def main(arguments: list[str] | None = None) -> int:
    """From the command line."""
    return command(made, __doc__, arguments)


if __name__ == "__main__":
    sys.exit(main())
