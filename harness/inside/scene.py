"""An engine with a watch inside, and the traffic that puts it under pressure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kvassay.harness.inside.playing import Engine, play
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

    def play(
        self, *, to_the_first: bool = False, tell: Callable[[int], None] = lambda _: None
    ) -> Watch:
        """Build, play, close; with `to_the_first`, only until somebody is convicted."""
        engine = self.build()
        try:
            watch = engine.watch
            traffic = Traffic(
                self.seed,
                block_size=watch.groups[0].block_size,
                longest=self.longest,
                vocabulary=self.vocabulary,
                output=self.output,
            )
            play(
                engine,
                watch,
                traffic,
                self.requests,
                together=self.together,
                to_the_first=to_the_first,
                tell=tell,
            )
        finally:
            engine.close()
        return watch
