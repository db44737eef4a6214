"""Many trials, each in a process of its own: a fault may hang, or end its process.

Processes are forked where that can be done, so that what was imported and prepared once is there at
once. They take no signals from the keyboard: whoever asked for the trials ends them.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from kvassay.harness.trial.attempt import attempt
from kvassay.harness.trial.fate import Ended, Fate, ended
from kvassay.harness.trial.found import Effort
from kvassay.harness.trial.judging import warm
from kvassay.harness.trial.planted import Catalogue, Family, Planted

LIMIT = 300.0
"""Seconds after which a trial is given up."""
METHOD = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"


@dataclass(frozen=True)
class Asked:
    """One trial to be made."""

    planted: Planted
    effort: Effort
    lives: int = 1
    """Processes that it may end: a wild read may hit what is not there, or what is, by chance."""


@dataclass
class _Running:
    asked: Asked
    process: BaseProcess
    answers: Connection
    deadline: float
    lost: bool = False
    """Whether it ended without an answer."""


def catalogue(name: str) -> Catalogue:
    """The module of that name."""
    module: Any = import_module(name)
    return module  # type: ignore[no-any-return]


def prepare(where: str, families: set[Family]) -> None:
    """Do once what every trial of these families needs."""
    catalogue(where).prepare(families)
    warm(families)


def tried(
    where: str, asked: Sequence[Asked], workers: int, limit: float = LIMIT
) -> Iterator[Ended]:
    """How each trial ended, in the order of their ends; `where` is the catalogue of all."""
    waiting = list(reversed(asked))
    running: list[_Running] = []
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(_start(where, waiting.pop(), limit))
            soonest = max(0.0, min(each.deadline for each in running) - time.monotonic())
            ready = wait([each.answers for each in running], timeout=soonest)
            for each in list(running):
                if each.answers in ready or time.monotonic() > each.deadline:
                    running.remove(each)
                    one = _end(each, answered=each.answers in ready)
                    if one.fate is Fate.BROKEN and each.lost and each.asked.lives > 1:
                        waiting.append(replace(each.asked, lives=each.asked.lives - 1))
                    else:
                        yield one
    finally:
        for each in running:
            _stop(each)


def _start(where: str, asked: Asked, limit: float) -> _Running:
    context: Any = multiprocessing.get_context(METHOD)
    answers, theirs = context.Pipe(duplex=False)
    arguments = (where, asked.planted.key, asked.effort, theirs)
    process = context.Process(target=_work, args=arguments, daemon=True)
    process.start()
    theirs.close()
    return _Running(asked, process, answers, time.monotonic() + limit)


def _work(where: str, key: str, effort: Effort, answers: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    (planted,) = (one for one in catalogue(where).everything() if one.key == key)
    answers.send(attempt(planted, effort))


def _end(running: _Running, *, answered: bool) -> Ended:
    planted = running.asked.planted
    try:
        if not answered:
            return ended(planted, Fate.LEFT, "no answer within its time")
        answer: Ended = running.answers.recv()
        return answer
    except EOFError:
        running.lost = True
        running.process.join(1.0)
        code = running.process.exitcode
        return ended(planted, Fate.BROKEN, f"its process ended with status {code}")
    finally:
        _stop(running)


def _stop(running: _Running) -> None:
    if running.process.is_alive():
        running.process.join(0.2)
    if running.process.is_alive():
        running.process.kill()
    running.process.join()
    running.answers.close()
