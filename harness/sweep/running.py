"""Cells on Dask: in this process by default, or on a cluster that is there.

A cell that fails is tried once more, and told of if it fails again; the others go on. A worker that
dies gives its cells to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from kvassay.harness.sweep.cells import Cell, Counted, count

WANTED = "a sweep needs dask: pip install distributed"
TRIES_AGAIN = 1
PATIENCE = 20
"""Seconds to reach a scheduler."""


class NoCluster(RuntimeError):
    """There is nothing to run on; says why."""


@dataclass(frozen=True)
class Failed:
    """A cell without a result."""

    cell: Cell
    error: str


def _distributed() -> Any:
    try:
        return import_module("distributed")
    except ImportError:
        raise NoCluster(WANTED) from None


@contextmanager
def connected(scheduler: str | None, workers: int) -> Iterator[Any]:
    """A client: of that scheduler, or of `workers` threads of this process.

    Raises `NoCluster`.
    """
    distributed = _distributed()
    if scheduler is None:
        options = {"processes": False, "n_workers": 1, "threads_per_worker": workers}
        with distributed.Client(dashboard_address=None, **options) as client:
            yield client
        return
    try:
        client = distributed.Client(scheduler, timeout=PATIENCE)
    except (OSError, ValueError, TypeError) as error:
        raise NoCluster(f"no scheduler at {scheduler}: {error}") from None
    with client:
        yield client


def run(
    client: Any,
    cells: Iterable[Cell],
    kept: Callable[[Cell, Counted], None],
    play: Callable[[Cell], Counted] = count,
) -> list[Failed]:
    """Play cells, and tell each result as it comes; those that failed, in their order."""
    submitted = {
        client.submit(play, cell, key=f"kvassay {cell.key}", retries=TRIES_AGAIN, pure=False): cell
        for cell in cells
    }
    failed = []
    try:
        for future in _distributed().as_completed(list(submitted)):
            cell, error = submitted[future], future.exception()
            if error is None:
                kept(cell, future.result())
            else:
                failed.append(Failed(cell, f"{type(error).__name__}: {error}"))
    except BaseException:
        client.cancel(list(submitted))
        raise
    return sorted(failed, key=lambda one: one.cell)
