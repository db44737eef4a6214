"""How long a call takes on a device, side by side with others.

The callables are run in rounds, one after the other in each, so that what drifts (clocks, load)
drifts for all. Before every sample the L2 cache is overwritten, and callers give each callable
several sets of inputs that are used in turn: a cache that is still warm from the last call would
be measured instead of memory. On a GPU the device's own timers bracket the call, behind enough
queued work to hide the launch; on a CPU it is the clock. The statistic is the median; samples are
kept.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

FLUSH_BYTES = 256 * 2**20
"""More than the L2 of any GPU."""
WARM_UP = 3
LEAST_SAMPLES = 5

Call = Callable[[], object]


@dataclass
class Timed:
    """Samples of one contender."""

    name: str
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float | None:
        """Seconds; None if nothing was measured."""
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def spread(self) -> float | None:
        """Half the distance between the quartiles, relative to the median."""
        if len(self.seconds) < 4:
            return None
        low, middle, high = statistics.quantiles(self.seconds, n=4)
        return (high - low) / 2 / middle


class Stopwatch:
    """Times single calls on a device, its L2 cache overwritten before each."""

    def __init__(self, device: str) -> None:
        self.device = device
        size = FLUSH_BYTES if device == "cuda" else 1
        self._scratch = torch.empty(size, dtype=torch.int8, device=device)

    def seconds(self, call: Call) -> float:
        """One sample."""
        if self.device != "cuda":
            start = time.perf_counter()
            call()
            return time.perf_counter() - start
        before, after = _event(), _event()
        self._scratch.zero_()
        before.record()
        call()
        after.record()
        after.synchronize()
        return float(before.elapsed_time(after)) / 1000


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def side_by_side(
    contenders: dict[str, Sequence[Call]],
    device: str,
    *,
    samples: int = 50,
    limit: float = 5.0,
) -> dict[str, Timed]:
    """Time every contender in rounds, its calls in turn.

    Ends after `samples` rounds, or after `limit` seconds once there are `LEAST_SAMPLES`. Raises
    `ValueError` for a contender without a call.
    """
    for name, calls in contenders.items():
        if not calls:
            raise ValueError(f"{name}: expected at least one call to time, got none")
    watch = Stopwatch(device)
    timed = {name: Timed(name) for name in contenders}
    for calls in contenders.values():
        for number in range(WARM_UP):
            watch.seconds(calls[number % len(calls)])
    start = time.monotonic()
    for number in range(samples):
        if number >= LEAST_SAMPLES and time.monotonic() - start > limit:
            break
        for name, calls in contenders.items():
            timed[name].seconds.append(watch.seconds(calls[number % len(calls)]))
    return timed


def captured(call: Call, device: str) -> Call:
    """A call as a CUDA graph: launched at once, without the time that Python takes.

    On a CPU it is the call itself. Whatever memory the call allocates is reused at every replay.
    """
    if device != "cuda":
        return call
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay
