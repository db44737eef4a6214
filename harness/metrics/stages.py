"""Where the time to the first token goes, as far as the server or the rig tells.

The stages are measured by whoever runs them, and are None for a server that is seen from outside.
What they leave of the time to the first token is told, too: a split that does not add up shows.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from kvassay.harness.metrics.latency import TimeToFirstToken
from kvassay.harness.metrics.metric import Need, OfRequest
from kvassay.harness.metrics.timeline import Timeline


class Stage(StrEnum):
    """Keys of `Timeline.stages`."""

    QUEUE = "queue"
    LOOKUP = "lookup"
    RESERVATION = "reservation"
    PREFILL = "prefill"


class _Staged(OfRequest):
    unit = "s"
    needs = (Need.STAGES,)
    stage: ClassVar[Stage]

    def of(self, one: Timeline) -> float | None:
        return one.stages.get(self.stage)


class Queueing(_Staged):
    """Time to the first token: waiting to be scheduled.

    `stages[queue]`
    """

    tag, stage = "ttft_queue", Stage.QUEUE


class LookUp(_Staged):
    """Time to the first token: look-up in the prefix cache, keys included.

    `stages[lookup]`
    """

    tag, stage = "ttft_lookup", Stage.LOOKUP


class Reservation(_Staged):
    """Time to the first token: getting blocks, evictions included.

    `stages[reservation]`
    """

    tag, stage = "ttft_reservation", Stage.RESERVATION


class Prefill(_Staged):
    """Time to the first token: computing the prompt.

    `stages[prefill]`
    """

    tag, stage = "ttft_prefill", Stage.PREFILL


class Unsplit(OfRequest):
    """Time to the first token: what the stages leave.

    `ttft - sum(stages)`
    """

    tag, unit = "ttft_rest", "s"
    needs = (Need.STAGES, Need.CHUNKS)

    def of(self, one: Timeline) -> float | None:
        whole = TimeToFirstToken().of(one)
        if whole is None or not one.stages:
            return None
        return whole - sum(one.stages.get(stage, 0.0) for stage in Stage)
