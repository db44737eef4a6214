"""All that stands between a server and a published number; each part may be replaced.

The default is what ``kvassay bench serve`` uses. Faults and controls replace one part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kvassay.harness.load.arriving import drawn
from kvassay.harness.load.generator import Generator
from kvassay.harness.load.salting import salted
from kvassay.harness.load.watching import Watcher
from kvassay.harness.metrics.catalogue import METRICS
from kvassay.harness.metrics.metric import Metric
from kvassay.harness.metrics.run import Run
from kvassay.harness.metrics.timeline import Timeline
from kvassay.harness.serving.openai import OpenAIEngine
from kvassay.harness.workloads.plan import Planned

Timelines = Sequence[Timeline]


def measured_only(warm_up: Timelines, measured: Timelines, objectives: Mapping[str, float]) -> Run:
    """The run without the requests that warmed the server up."""
    return Run(tuple(measured), objectives)


@dataclass(frozen=True)
class Instrument:
    """A way to measure a server."""

    name: str = "kvassay"
    engine: type[OpenAIEngine] = OpenAIEngine
    watcher: type[Watcher] = Watcher
    generator: type[Generator] = Generator
    metrics: Mapping[str, Metric] = field(default_factory=lambda: METRICS)
    salting: Callable[[Sequence[Planned], int], Sequence[Planned]] = salted
    """Requests and the salt of a run to the requests that are sent."""
    arrivals: Callable[[float, float, int, int], list[float]] = drawn
    """Rate, cv, count and seed to times."""
    run_of: Callable[[Timelines, Timelines, Mapping[str, float]], Run] = measured_only
    """Warm-up, measured requests and objectives to the run."""
