"""An engine with a watch inside, and the traffic that puts it under pressure."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kvassay.harness.inside.playing import Engine, Nobody, Onlooker, play
from kvassay.harness.inside.traffic import Traffic
from kvassay.harness.inside.watch import Watch


class WatchedEngine(Engine, Protocol):
    """An engine whose backend tells a watch what it does."""

    @property
    def watch(self) -> Watch:
        """Follows every pass."""
        ...

    def close(self) -> None:
        """Let go of it, finished or not."""
        ...


@dataclass(frozen=True)
class Played:
    """What came of it."""

    watch: Watch
    seconds: float
    """Of the playing alone; the engine's building is not in it."""
    cpu_seconds: float
    """The same in processor time of this process."""


@dataclass(frozen=True)
class Scene:
    """Always the same requests; what an engine does with them is up to it."""

    build: Callable[[], WatchedEngine]
    longest: int
    """Tokens of a request, its output included."""
    vocabulary: int
    requests: int = 300
    output: int = 24
    """Tokens of the longest output."""
    together: int = 16
    seed: int = 0
    aligned: int | None = None
    """Where prompts part from each other, in tokens; None for the engine's block size."""

    def play(
        self, *, to_the_first: bool = False, tell: Callable[[int], None] = lambda _: None
    ) -> Played:
        """Build, play, close; with `to_the_first`, only until somebody is convicted."""
        engine = self.build()
        try:
            watch = engine.watch
            return Played(watch, *self._on(engine, watch, to_the_first, tell))
        finally:
            engine.close()

    def play_unwatched(self) -> float:
        """Build, play, close, while nobody keeps account; processor time of the playing alone."""
        engine = self.build()
        try:
            return self._on(engine, Nobody(), False, lambda _: None)[1]
        finally:
            engine.close()

    def _on(
        self,
        engine: WatchedEngine,
        onlooker: Onlooker,
        to_the_first: bool,
        tell: Callable[[int], None],
    ) -> tuple[float, float]:
        """Play; seconds, and seconds of processor time."""
        traffic = Traffic(
            self.seed,
            block_size=self.aligned or engine.watch.groups[0].block_size,
            longest=self.longest,
            vocabulary=self.vocabulary,
            output=self.output,
        )
        start, busy = time.perf_counter(), time.process_time()
        play(
            engine,
            onlooker,
            traffic,
            self.requests,
            together=self.together,
            to_the_first=to_the_first,
            tell=tell,
        )
        return time.perf_counter() - start, time.process_time() - busy
