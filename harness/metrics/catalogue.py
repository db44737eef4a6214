"""All metrics, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Iterable

from kvassay.harness.metrics import cache, latency, rates, stages
from kvassay.harness.metrics.metric import Measured, Metric
from kvassay.harness.metrics.run import Run

METRICS: dict[str, Metric] = {
    metric.tag: metric
    for metric in (
        latency.TimeToFirstToken(),
        stages.Queueing(),
        stages.LookUp(),
        stages.Reservation(),
        stages.Prefill(),
        stages.Unsplit(),
        latency.InterToken(),
        latency.InterChunk(),
        latency.TimePerOutputToken(),
        latency.EndToEnd(),
        latency.SendDelay(),
        rates.Complete(),
        rates.Truncated(),
        rates.Failed(),
        rates.Cancelled(),
        rates.RequestThroughput(),
        rates.OutputThroughput(),
        rates.Goodput(),
        cache.CachedTokens(),
        cache.HitRate(),
        cache.DeclaredHitRate(),
        cache.Preemptions(),
    )
}
"""By tag."""


def measure(run: Run, metrics: Iterable[Metric] = tuple(METRICS.values())) -> dict[str, Measured]:
    """Every metric of a run, by tag."""
    return {metric.tag: metric.measure(run) for metric in metrics}
