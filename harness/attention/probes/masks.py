"""Whose fault it is that rows see the wrong keys: the lengths', the causal mask's, the window's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvassay.harness.attention.case import Case
from kvassay.harness.attention.probes.counting import Row
from kvassay.harness.attention.wrong import Anomaly


@dataclass(frozen=True)
class Mistake:
    """What one row sees that it must not, and what it misses; both empty where nobody knows."""

    row: Row
    missed: tuple[int, ...] = ()
    seen: tuple[int, ...] = ()
    keys: bool = True
    """Whether it is keys of its sequence that it sees, and nothing else."""


TOLD = 4
"""Lines that a story has at most, but for the last."""
ANOMALIES = {"K1": Anomaly.OUTPUT, "K5": Anomaly.CAUSAL, "K6": Anomaly.WINDOW}


def blamed(case: Case, mistakes: Sequence[Mistake]) -> str:
    """The invariant that is broken.

    The last row of a sequence that is shorter than the window is cut by no mask at all: where it is
    wrong, or where anything but keys was seen, the masks are not to blame. Nor is a window where a
    row sees the key at its edge and misses one further right.
    """
    if any(_uncut(case, mistake.row) or not mistake.keys for mistake in mistakes):
        return "K1"
    first = mistakes[0]
    later = [position for position in first.seen if position > first.row.position]
    if case.causal and later and len(later) == len(first.seen):
        return "K5"
    if case.window_left is not None and not _within(case.window_left, first):
        return "K6"
    return "K5" if case.causal and not first.row.last else "K1"


def _within(window_left: int, mistake: Mistake) -> bool:
    """Whether all that went wrong is that keys right of the window's edge were missed."""
    edge = mistake.row.position - window_left
    return bool(mistake.missed) and not mistake.seen and min(mistake.missed) > edge


def _uncut(case: Case, row: Row) -> bool:
    return row.last and (case.window_left is None or row.position < case.window_left)


def place(row: Row) -> str:
    """A row in words."""
    return f"the row at position {row.position} of sequence {row.sequence} ({row.length} keys)"


def story(entries: Iterable[tuple[Row, int, str]]) -> tuple[str, ...]:
    """Lines about rows, heads and what is wrong there; after the first, how many there are more."""
    heads: dict[tuple[str, str], list[int]] = {}
    for row, head, words in entries:
        heads.setdefault((place(row), words), []).append(head)
    lines = [
        f"{where}, head{'s' * (len(found) > 1)} {ranges(found)}: {words}"
        for (where, words), found in heads.items()
    ]
    rest = len(lines) - TOLD
    return (*lines[:TOLD], f"and {rest} rows more") if rest > 0 else tuple(lines)


def ranges(positions: Sequence[int]) -> str:
    """Positions in words: ``3, 16-31``."""
    runs: list[list[int]] = []
    for position in sorted(positions):
        if runs and position == runs[-1][1] + 1:
            runs[-1][1] = position
        else:
            runs.append([position, position])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
