"""How far a load has come, live, where somebody looks."""

from __future__ import annotations

from collections import Counter
from types import TracebackType

from rich import progress
from rich.console import Console

from kvassay.harness.metrics.timeline import Ending, Timeline


class Progress:
    """A bar of requests that have ended, and how."""

    def __init__(self, total: int, console: Console) -> None:
        self.counts: Counter[Ending] = Counter()
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("sending", total=total)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def told(self, timeline: Timeline) -> None:
        """A request has ended."""
        self.counts[timeline.ending] += 1
        said = ", ".join(f"{count} {ending}" for ending, count in self.counts.items())
        self._bar.update(self._task, advance=1, description=said)
