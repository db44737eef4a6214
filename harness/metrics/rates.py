"""What a run got done: requests by how they ended, and complete ones and their tokens per second.

A run lasts from the first intended start to the last end. Tokens of requests that are not complete
are not counted: nobody got what was asked for.
"""

from __future__ import annotations

from typing import ClassVar

from kvassay.harness.metrics.latency import EndToEnd, TimePerOutputToken, TimeToFirstToken
from kvassay.harness.metrics.metric import Need, OfRequest, OfRun, names
from kvassay.harness.metrics.reading import output_tokens
from kvassay.harness.metrics.run import Run
from kvassay.harness.metrics.timeline import Ending, Timeline
from kvassay.harness.record import Direction


class _Ended(OfRun):
    unit = "1"
    ending: ClassVar[Ending]

    def of(self, run: Run) -> float | None:
        return float(sum(one.ending is self.ending for one in run.timelines))


class Complete(_Ended):
    """Requests that the server finished.

    `count(ending = complete)`
    """

    tag, ending, direction = "requests_complete", Ending.COMPLETE, Direction.HIGHER
    elsewhere = names(
        vllm="`completed`, those cut off after a chunk among them",
        aiperf="`request_count`",
        guidellm="`successful`",
    )


class Truncated(_Ended):
    """Requests whose stream ended without a reason.

    `count(ending = truncated)`
    """

    tag, ending = "requests_truncated", Ending.TRUNCATED


class Failed(_Ended):
    """Requests that ended with an error.

    `count(ending = failed)`
    """

    tag, ending = "requests_failed", Ending.FAILED
    elsewhere = names(
        vllm="`failed`",
        aiperf="`error_request_count`",
        guidellm="`errored`",
    )


class Cancelled(_Ended):
    """Requests that the client gave up, or never sent.

    `count(ending = cancelled)`
    """

    tag, ending = "requests_cancelled", Ending.CANCELLED
    elsewhere = names(aiperf="`cancelled_request_count`", guidellm="`incomplete`")


class _PerSecond(OfRun):
    direction = Direction.HIGHER

    def count(self, run: Run) -> float | None:
        """What is divided by the run's seconds."""
        raise NotImplementedError

    def of(self, run: Run) -> float | None:
        counted = self.count(run)
        if counted is None or not run.seconds:
            return None
        return counted / run.seconds


class RequestThroughput(_PerSecond):
    """Complete requests per second.

    `count(ending = complete) / (last end - first intended start)`
    """

    tag, unit = "request_throughput", "1/s"
    elsewhere = names(
        vllm="`request_throughput`",
        aiperf="`request_throughput`",
        guidellm="`requests_per_second`",
    )

    def count(self, run: Run) -> float | None:
        return len(run.complete)


class OutputThroughput(_PerSecond):
    """Output tokens of complete requests per second.

    `sum(output tokens) / (last end - first intended start)`
    """

    tag, unit = "output_throughput", "token/s"
    needs = (Need.TOKEN_COUNT,)
    elsewhere = names(
        vllm="`output_throughput`",
        aiperf="`output_token_throughput`",
        guidellm="`output_tokens_per_second`",
    )

    def count(self, run: Run) -> float | None:
        counts = [output_tokens(one) for one in run.complete]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None


class Goodput(_PerSecond):
    """Complete requests per second that meet every objective.

    `count(complete and ttft, tpot, e2e <= their objectives) / (last end - first intended start)`

    A request without a token meets no objective; one of a single token meets that on `tpot`.
    """

    tag, unit = "goodput", "1/s"
    needs = (Need.SLO, Need.CHUNKS)
    elsewhere = names(
        vllm="`request_goodput`, `tpot` of one token as 0",
        aiperf="`goodput`",
    )

    def count(self, run: Run) -> float | None:
        unknown = set(run.objectives) - set(OBJECTIVES)
        if unknown:
            raise ValueError(f"objectives: expected some of {[*OBJECTIVES]}, got {sorted(unknown)}")
        if not run.objectives:
            return None
        met = [meets(one, run) for one in run.complete]
        return None if None in met else met.count(True)


OBJECTIVES: dict[str, OfRequest] = {
    metric.tag: metric for metric in (TimeToFirstToken(), TimePerOutputToken(), EndToEnd())
}
"""The metrics on which there can be objectives."""


def meets(one: Timeline, run: Run) -> bool | None:
    """Whether a complete request meets all objectives; None if that is not known."""
    count = output_tokens(one)
    for tag, limit in run.objectives.items():
        value = OBJECTIVES[tag].of(one)
        if value is not None and value <= limit:
            continue
        if value is not None or tag != TimePerOutputToken.tag or count == 0:
            return False
        if count is None:
            return None
    return True
