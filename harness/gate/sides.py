"""Base and head: which implementation, in which interpreter, with which code in front.

Both run on this machine at the same time, in processes of their own, and take turns.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from kvassay.harness.control.pairing import turns
from kvassay.harness.environment import Environment
from kvassay.harness.far import BridgeError, Far
from kvassay.harness.gate.deciding import rounds_needed
from kvassay.harness.record import Subject

LIMIT = 300.0
"""Seconds for one answer."""
SAMPLES = 5
"""Pairs of samples in a round, after one that is thrown away."""


class SideFailed(RuntimeError):
    """A side did not do what was asked of it; says which, and what came instead."""


@dataclass(frozen=True)
class Side:
    """One of the two."""

    label: str
    """``base`` or ``head``."""
    reference: str
    """As of ``--impl``."""
    name: str = ""
    """Of the implementation, where the reference leads to several."""
    path: Path | None = None
    """Put before all other places that Python imports from."""
    python: str = sys.executable

    def environment(self) -> dict[str, str]:
        """Of its processes."""
        variables = dict(os.environ)
        if self.path is not None:
            paths = (str(self.path.resolve()), variables.get("PYTHONPATH"))
            variables["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        return variables

    def absolute(self) -> str:
        """The reference as it is understood in another folder: a file's path is resolved."""
        path = Path(self.reference)
        return str(path.resolve()) if path.suffix == ".py" and path.exists() else self.reference

    def command(self) -> list[str]:
        """Of its worker."""
        path = self.environment().get("PYTHONPATH")
        prefix = [] if path is None else ["env", f"PYTHONPATH={path}"]
        worker = "kvassay.harness.gate.worker"
        # Without the working directory in the path, which would come before what is to be tried.
        return [*prefix, self.python, "-P", "-m", worker, self.reference, self.name]


@dataclass(frozen=True)
class Opened:
    """What a side says that it is."""

    subject: Subject
    environment: Environment
    origin: str
    """The file that registers it."""


class Process:
    """A side's worker."""

    def __init__(self, side: Side) -> None:
        self.side = side
        try:
            self._far = Far(side.command(), LIMIT)
        except OSError as error:
            raise SideFailed(f"{side.label}: {side.python} does not start: {error}") from None

    def ask(self, op: str, **rest: Any) -> dict[str, Any]:
        """One answer; `SideFailed` for none or an error."""
        try:
            reply = self._far.ask(
                op, "".join(f",{json.dumps(k)}:{json.dumps(v)}" for k, v in rest.items())
            )
        except BridgeError as error:
            raise SideFailed(f"{self.side.label} ({self.side.reference}): {error}") from None
        if "error" in reply:
            raise SideFailed(f"{self.side.label} ({self.side.reference}): {op}: {reply['error']}")
        return reply

    def open(self) -> Opened:
        """What it is."""
        reply = self.ask("open")
        return Opened(
            Subject.model_validate(reply["subject"]),
            Environment.model_validate(reply["environment"]),
            str(reply["origin"]),
        )

    def end(self) -> None:
        """The process goes."""
        self._far.end()


@contextmanager
def running(*sides: Side) -> Iterator[list[Process]]:
    """A worker for each side."""
    with ExitStack() as ending:
        processes = [_started(side, ending) for side in sides]
        yield processes


def _started(side: Side, ending: ExitStack) -> Process:
    process = Process(side)
    ending.callback(process.end)
    return process


Paired = dict[str, list[tuple[float, float]]]
"""Seconds of base and head by name: the medians of a round's samples would hide which were taken
together, so a round is the pair that has the median ratio."""


def timed(
    base: Side, head: Side, rounds: int, watch: Callable[[], None] = lambda: None
) -> tuple[Paired, str]:
    """Rounds of both, each in new processes; a reason instead of times for what is not timed.

    `SideFailed` if a side fails, `ValueError` for fewer rounds than could ever tell.
    """
    found: Paired = {}
    for number in range(rounds):
        with running(*turns([base, head], number)) as processes:
            ordered = sorted(processes, key=lambda one: one.side is head)
            samples, why = _round((ordered[0], ordered[1]), number)
        if samples is None:
            return {}, why
        needed = rounds_needed(len(samples))
        if rounds < needed:
            raise ValueError(f"rounds: {len(samples)} times need at least {needed}, got {rounds}")
        for name, pairs in samples.items():
            found.setdefault(name, []).append(_middle(pairs))
        watch()
    return found, ""


def _round(
    processes: tuple[Process, Process], number: int
) -> tuple[dict[str, list[tuple[float, float]]] | None, str]:
    samples: dict[str, list[tuple[float, float]]] = {}
    for place in range(SAMPLES + 1):
        seconds: dict[str, dict[str, float]] = {}
        for process in turns(processes, number + place):
            reply = process.ask("time", number=place)
            if reply["seconds"] is None:
                return None, str(reply["why"])
            seconds[process.side.label] = reply["seconds"]
        base, head = (seconds[one.side.label] for one in processes)
        if base.keys() != head.keys():
            raise SideFailed(
                f"base and head time different things: {sorted(base.keys() ^ head.keys())}"
            )
        if place:
            for name in base:
                samples.setdefault(name, []).append((base[name], head[name]))
    return samples, ""


def _middle(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """The pair whose ratio is the median; their number is odd."""
    wanted = median(head / base for base, head in pairs)
    return min(pairs, key=lambda pair: abs(pair[1] / pair[0] - wanted))
